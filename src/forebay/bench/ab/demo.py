"""The demo: the same dialogs against vLLM without and with the pool, then after both restart.

The engine's KV cache is too small for the dialogs, so without the pool every turn is computed from
its first token. Answers are greedy and in float32, where equal histories give equal answers.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from forebay.bench.ab.figures import DemoFigures, figures_of, share_equal, turns_of
from forebay.bench.ab.variants import OpenServer, StartedServer, VllmServer
from forebay.bench.load import client
from forebay.bench.load.client import Completion, Failed
from forebay.bench.load.clients import ClientGroup, ClientsResult, FinishedRequest, run_clients
from forebay.bench.load.sessions import ChatSession, SyntheticText
from forebay.bench.load.workloads import Dialogs
from forebay.bench.processes import PoolProcess, running_pool
from forebay.bench.result import machine
from forebay.bench.result.format import AbResult, EqualAnswers, LoadResult, PoolFigures, SlaBounds
from forebay.bench.result.summary import step_of
from forebay.engines.start import demo_model, vllm
from forebay.errors import StartupError
from forebay.settings import DiskSetting, Settings
from forebay.sys.scratch import scratch

Show = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)
_STOP_S: Final = 60.0  # a pool writes for up to 20 s
_CONTEXT_TOKENS: Final = 4096
_HASH_S: Final = 300.0
_LOOKUP_MS: Final = 1000.0  # where vLLM computes on every core, the pool may be late to answer
# On CPU, vLLM keeps more cores to itself with a connector than without; both get all of them here.
_ALL_CORES: Final = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
# Of one user there is no SLA; this one is far beyond what a token takes on any machine.
_BOUNDS: Final = SlaBounds(tpot_ms=1000.0)
_ALONE: Final = "vLLM alone"
_WITH: Final = "vLLM with Forebay"

DIALOGS: Final = Dialogs(turns=4, first_tokens=2650, turn_tokens=50, answer_tokens=16, hold=5)


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo does; the last turn of every dialog comes after the restart."""

    parent: str  # a directory on the drive that stands for NVMe
    dialogs: Dialogs = DIALOGS
    kv_cache_bytes: int = 192 << 20  # 46 KB a token: not two dialogs
    dram_bytes: int = 1 << 30
    disk_bytes: int = 2 << 30


class RepeatedTurn(NamedTuple):
    """The last turn of every dialog once more, medians: the pool against vLLM's own cache."""

    pool_ttft_s: float  # after all others, from the pool
    own_ttft_s: float  # and at once again


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything that was measured."""

    dialogs: Dialogs
    cache_bytes: int  # the engine's own KV cache
    without: DemoFigures
    with_pool: DemoFigures
    moved: PoolFigures
    again: RepeatedTurn
    equal: float  # share of answers, word for word
    next_without_ttft_s: float  # median of the turn after the restart, had there been no pool
    restarted: DemoFigures
    restarted_moved: PoolFigures
    restarted_equal: float
    seconds: float
    ab: AbResult  # the dialogs before the restart, as every comparison has them

    @property
    def speedup(self) -> float:
        """How many times sooner a returning turn begins."""
        return self.without.later_ttft_s / self.with_pool.later_ttft_s

    def as_json(self) -> dict[str, Any]:
        """Names for programs."""
        return {
            "dialogs": self.dialogs.hold,
            "turns": self.dialogs.turns,
            "kv_cache_bytes": self.cache_bytes,
            "without": self.without.as_json(),
            "with": {**self.with_pool.as_json(), **msgspec.structs.asdict(self.moved)},
            "again_pool_ttft_s": round(self.again.pool_ttft_s, 4),
            "again_own_cache_ttft_s": round(self.again.own_ttft_s, 4),
            "answers_equal": self.equal,
            "later_ttft_speedup": round(self.speedup, 2),
            "restarted": {
                **self.restarted.as_json(),
                **msgspec.structs.asdict(self.restarted_moved),
            },
            "restarted_answers_equal": self.restarted_equal,
            "restarted_without_ttft_s": round(self.next_without_ttft_s, 4),
            "seconds": round(self.seconds, 1),
        }


@dataclass(slots=True)
class _Demo:
    """A demo under way. Used by one thread."""

    plan: DemoPlan
    show: Show
    engine: VllmServer
    disk: DiskSetting
    words: SyntheticText = field(default_factory=SyntheticText)
    done: int = 0  # answers
    dialogs: list[ChatSession] = field(default_factory=list)
    again: RepeatedTurn | None = None
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by variant

    def say(self, what: str) -> None:
        """What is being done, for whoever watches; a start counts like a few answers."""
        total = 2 * self.plan.dialogs.hold * self.plan.dialogs.turns
        self.show(what, min(1.0, self.done / total))

    def on_finished(self, finished: FinishedRequest) -> None:
        """An answer has come."""
        self.done += 1
        if isinstance(finished.outcome, Completion):
            first = f"{finished.outcome.ttft_s:.2f} s to its first token"
            self.say(f"{finished.session}, turn {finished.turn + 1}: {first}")

    def make(self) -> list[ChatSession]:
        """The dialogs, before anything is said; the same every time."""
        return list(self.plan.dialogs.queue(self.words, 1, "demo"))

    def hold(self, opened: OpenServer, dialogs: list[ChatSession], rounds: int) -> ClientsResult:
        """So many further turns of every dialog, one user after the other."""
        group = ClientGroup(clients=1, hold=len(dialogs), rounds=rounds, patience=1)
        return asyncio.run(run_clients(opened.target, iter(dialogs), group, self.on_finished))

    @contextlib.contextmanager
    def opened(self, variant: StartedServer, pool: PoolProcess | None) -> Iterator[OpenServer]:
        """An engine on that pool, or on none; warm, and gone afterwards."""
        with variant.on(pool, self.say) as opened:
            self.commands[variant.name] = opened.commands
            hello = [{"role": "user", "content": "Hello"}]
            asyncio.run(client.ask(opened.target, hello, 2))
            yield opened

    def without(self) -> tuple[ClientsResult, ClientsResult]:
        """All dialogs on vLLM alone: those before the restart, and the turn after it."""
        dialogs = self.make()
        with self.opened(StartedServer(_ALONE, self.engine), None) as opened:
            held = self.hold(opened, dialogs, self.plan.dialogs.turns - 1)
            return held, self.hold(opened, dialogs, 1)

    def with_pool(self, rounds: int) -> tuple[ClientsResult, PoolFigures]:
        """So many further turns of every dialog on a pool that begins, and ends, with them."""
        self.say("starting a pool")
        with running_pool(self.plan.dram_bytes, [self.disk]) as pool:
            with self.opened(StartedServer(_WITH, self.engine), pool) as opened:
                opened.counted()
                held = self.hold(opened, self.dialogs, rounds)
                moved = opened.counted()
                if moved is None:
                    raise StartupError("the pool went away.")
                if self.again is None:  # the second time, drive and DRAM would be mixed
                    self.again = self.once_more(opened)
            self.say("ending the pool")
            pool.stop(_STOP_S)
        return held, moved

    def once_more(self, opened: OpenServer) -> RepeatedTurn:
        """What a hit in the pool costs over one in vLLM's own cache."""
        self.say("asking once more, from the pool and from vLLM's own cache")
        pairs = [(_ask_again(opened, each), _ask_again(opened, each)) for each in self.dialogs]
        return RepeatedTurn(
            median(first.ttft_s for first, _ in pairs), median(own.ttft_s for _, own in pairs)
        )

    def result(self, name: str, held: ClientsResult, moved: PoolFigures | None) -> LoadResult:
        """The dialogs before the restart, as every comparison has them."""
        return LoadResult(
            steps=(step_of(1, [held], pool=moved),),
            name=name,
            model="SmolLM2-135M-Instruct, float32",
            workload=self.plan.dialogs.options(),
            commands=self.commands[name],
            machine=machine.this_machine(),
            versions=machine.these_versions(),
        )


def run(plan: DemoPlan, show: Show) -> DemoReport:
    """Hold all dialogs; minutes. A StartupError says in a sentence what is in the way."""
    begun = time.monotonic()
    vllm.require()
    show("preparing the demo model", 0.0)
    model = demo_model.prepare()
    know_weights(model)
    with scratch(plan.parent) as home:
        nvme = home / "nvme"
        nvme.mkdir(mode=0o700)
        disk = DiskSetting(str(nvme), plan.disk_bytes)
        demo = _Demo(plan, show, engine_of(model, plan.kv_cache_bytes), disk)
        demo.dialogs = demo.make()
        before, after = demo.without()
        held, moved = demo.with_pool(plan.dialogs.turns - 1)
        restarted, restarted_moved = demo.with_pool(1)
    assert demo.again is not None
    turns, others = turns_of(held), turns_of(before)
    same = share_equal(turns, others)
    return DemoReport(
        dialogs=plan.dialogs,
        cache_bytes=plan.kv_cache_bytes,
        without=figures_of(before),
        with_pool=figures_of(held),
        moved=moved,
        again=demo.again,
        equal=same,
        next_without_ttft_s=figures_of(after).later_ttft_s,
        restarted=figures_of(restarted),
        restarted_moved=restarted_moved,
        restarted_equal=share_equal(turns_of(restarted), turns_of(after)),
        seconds=time.monotonic() - begun,
        ab=AbResult(
            off=demo.result(_ALONE, before, None),
            on=demo.result(_WITH, held, moved),
            sla=_BOUNDS,
            equal=EqualAnswers(len(turns), round(same * len(turns))),
            pool=moved,
        ),
    )


def engine_of(model: str, kv_cache_bytes: int, context_tokens: int = _CONTEXT_TOKENS) -> VllmServer:
    """The demo model on vLLM, on whatever this machine has; its cache must hold one context."""
    return VllmServer(
        model=model,
        served_name=demo_model.NAME,
        arguments=(
            "--enforce-eager",
            *("--dtype", "float32", "--max-model-len", str(context_tokens)),
            *("--max-num-seqs", "4", "--kv-cache-memory-bytes", str(kv_cache_bytes)),
            "--enable-prompt-tokens-details",
        ),
        settings=Settings(no_pool="fail", lookup_deadline_ms=_LOOKUP_MS),
        variables=_ALL_CORES,
        is_offline=True,
    )


def know_weights(model: str) -> None:
    """Have the weights hashed now: an engine shares nothing until it knows them."""
    command = [sys.executable, "-P", "-m", "forebay.engines.weights", model]
    try:
        subprocess.run(command, capture_output=True, timeout=_HASH_S, check=True)
    except (OSError, subprocess.SubprocessError):
        raise StartupError("the demo model's weights cannot be read.") from None


def _ask_again(opened: OpenServer, dialog: ChatSession) -> Completion:
    """The last turn of a dialog once more; nothing is added to it."""
    ask = dialog.request(dialog.turn - 1)
    answer = asyncio.run(client.ask(opened.target, ask.messages, 1))
    if isinstance(answer, Failed):
        raise StartupError(f"a request failed: {answer.why}.")
    return answer
