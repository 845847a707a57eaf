"""The format of result files; docs/bench-format.md has every field with its unit.

A result only needs `steps`, each with `clients`, `req_s` and `tpot_ms`; everything else may be
missing, and a reader ignores what it does not know.
"""

from typing import Annotated, Final

import msgspec

from forebay.plan.measured import STEPS_MAX, Count, MeasuredStep, Real, Sla, TimeStats

FORMAT: Final = "forebay-bench/1"


class TurnFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same figures of one turn of all dialogs; the first is 1."""

    turn: Annotated[int, msgspec.Meta(ge=1)]
    requests: Count
    ttft_ms: TimeStats | None = None
    tpot_ms: TimeStats | None = None
    e2e_ms: TimeStats | None = None


class ServerFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the server's own metrics said meanwhile."""

    running_mean: Real | None = None
    waiting_mean: Real | None = None
    waiting_max: Real | None = None
    kv_use_max: Real | None = None  # share of the engine's KV cache
    preemptions: Count | None = None
    prefix_hit_tokens: Count | None = None  # found in the engine's own cache
    external_hit_tokens: Count | None = None  # found in a pool beneath it
    external_query_tokens: Count | None = None


class PoolFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pool stored and gave back meanwhile, and what it held at the end."""

    stored_chunks: Count = 0
    stored_bytes: Count = 0
    written_chunks: Count = 0  # to NVMe
    written_bytes: Count = 0
    read_nvme_chunks: Count = 0  # into DRAM
    read_nvme_bytes: Count = 0
    read_dram_chunks: Count = 0  # by the engine, wherever they came from
    read_dram_bytes: Count = 0
    dram_bytes: Count = 0  # held at the end
    nvme_bytes: Count = 0
    outcomes: dict[str, Count] = {}  # requests by what the pool was to them: loaded, or why not


class PoolSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pool had counted by a time of a step, since the step began."""

    at_s: Real
    stored_bytes: Count = 0
    written_bytes: Count = 0
    read_nvme_bytes: Count = 0
    read_dram_bytes: Count = 0


class LoadStep(MeasuredStep, frozen=True, omit_defaults=True):
    """One load, with all that is known of it."""

    within: Count | None = None  # requests that met every bound of the result's SLA by themselves
    errors_by_kind: dict[str, Count] = msgspec.field(default_factory=dict)
    # Of each kind the first one's, as the server gave it.
    error_reasons: dict[str, str] = msgspec.field(default_factory=dict)
    skipped: Count = 0  # that were never sent because their client had given up
    seconds: Real | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    cached_tokens: Count | None = None  # of the prompts; None where the server does not say
    late: Count = 0  # sent behind their time, because the answer before was
    turns: tuple[TurnFigures, ...] = ()
    server: ServerFigures | None = None
    pool: PoolFigures | None = None
    pool_samples: tuple[PoolSample, ...] = ()

    @property
    def good_s(self) -> float | None:
        """Goodput: requests a second that met every bound; None where that was not counted."""
        if self.within is None or not self.seconds:
            return None
        return self.within / self.seconds


class MachineFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    cpu: str = ""
    cores: Count = 0
    memory_bytes: Count = 0
    gpus: tuple[str, ...] = ()
    system: str = ""


class LoadResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One server under rising load."""

    steps: Annotated[tuple[LoadStep, ...], msgspec.Meta(min_length=1, max_length=STEPS_MAX)]
    format: str = FORMAT
    name: str = ""  # for people
    url: str = ""
    model: str = ""
    workload: dict[str, str | int | float | bool | None] = {}
    sla: Sla | None = None  # by which `within` was counted
    begun: str = ""  # UTC
    seconds: Real | None = None
    ended: str = ""  # why it ended before its last step; empty: it did not
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    machine: MachineFacts | None = None
    versions: dict[str, str] = {}


class EqualAnswers(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many answers of one variant were, word for word, those of the other."""

    answers: Count
    equal: Count

    @property
    def share(self) -> float:
        """Of all that both gave."""
        return self.equal / self.answers if self.answers else 1.0


class ResultPair(msgspec.Struct, frozen=True, omit_defaults=True):
    """The same load without and with."""

    off: LoadResult
    on: LoadResult


class RepeatOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One repeat: which variant came first, and what each measured."""

    sides: tuple[str, ...]
    results: dict[str, LoadResult]


class AbResult(msgspec.Struct, frozen=True, omit_defaults=True):
    off: LoadResult
    on: LoadResult
    format: str = FORMAT
    sla: Sla = Sla()
    others: tuple[LoadResult, ...] = ()  # further configurations
    equal: EqualAnswers | None = None
    stateless: ResultPair | None = None  # nothing comes back: what the pool costs then
    pool: PoolFigures | None = None  # evidence: what moved in all
    repeats: tuple[RepeatOrder, ...] = ()  # each run by itself where there were several
    gpus: Count | None = None  # of each side
    gpu_hour_price: Real | None = None  # of one, in dollars
