"""A rising load of dialogs, each load kept, and the report of `forebay bench ab` about it.

Each load of each variant is a part of its own: what is measured is kept, and the next run goes on
behind it. A load that is repeated has bars in the report's charts, from the least to the most.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from forebay.bench.gpu import requests
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY, WITH_POOL
from forebay.bench.report import page
from forebay.bench.result.compare import compare
from forebay.bench.result.format import AbResult, LoadResult, LoadStep, RepeatOrder
from forebay.bench.result.machine import gpus, these_versions, this_machine
from forebay.plan.measured import Sla

_BOUND: Final = Sla(tpot_ms=50.0)
_SLOWER_MAX: Final = 3.0  # a request of more clients, where fewer still found all in a cache
_MARGIN: Final = 1.2
_MORE_TIME: Final = 1.05  # than a load had that did not end: worth trying again
_NAMES: Final = {GPU_ONLY: "vLLM alone", FOREBAY: "vLLM with Forebay"}
_FIGURES: Final = ("ttft_ms", "tpot_ms", "e2e_ms")  # their means
_Kept = dict[str, Any]  # a LoadStep as it lies in the row's file


@dataclass(slots=True)
class Ramp:
    """The loads of a row. One dialog a client, whose next turn comes at once."""

    run: RowRun
    clients: Sequence[int]
    held_bytes: int  # by memory and drive, beneath the GPU
    order: tuple[str, ...]  # of the variants, in each repeat
    _row_s: float = 0.0  # that the row had when it began

    def __post_init__(self) -> None:
        """Leave out what memory and drive cannot hold, and say so in the results."""
        self._row_s = self.run.until - time.monotonic()
        self.run.results.found["left_out"] = {}
        dialog_bytes = requests.dialog_tokens(self.run.scale) * self.run.scale.token_bytes
        wanted_bytes = {clients: clients * dialog_bytes for clients in self.clients}
        for clients, size_bytes in wanted_bytes.items():
            if size_bytes > self.held_bytes:
                held_gb = f"{self.held_bytes / 1e9:.1f} GB"
                why = f"their KV is {size_bytes / 1e9:.1f} GB, memory and drive hold {held_gb}"
                self._leave_out(clients, why)
        self.clients = [each for each in self.clients if wanted_bytes[each] <= self.held_bytes]
        self._keep()

    @property
    def repeats(self) -> int:
        return self.run.repeats or 1

    def steps(self, variant: str, clients: int) -> list[_Kept]:
        """The measured runs of a load."""
        of_variant = self._found("steps").setdefault(variant, {})
        found: list[_Kept] = of_variant.setdefault(str(clients), [])
        return found

    def missing(self, variant: str) -> list[tuple[int, int]]:
        """The repeats and numbers of clients that are still to be measured, in order.

        A load that did not end although it was a run's first is left out until a row has more time.
        """
        found = []
        for clients in self.clients:
            tried_s = self._tried.get(f"{variant}, {clients}")
            if tried_s is not None and self._row_s < _MORE_TIME * tried_s:
                self._leave_out(clients, f"{variant} did not end within {tried_s:.0f} s")
                continue
            measured = len(self.steps(variant, clients))
            found += [(repeat, clients) for repeat in range(measured, self.repeats)]
        return sorted(found)

    def expected_s(self, variant: str, clients: int) -> float:
        """The most time that a load takes, judged by the next smaller one; 0 if none is known.

        More clients take longer in proportion. Where fewer of them found their dialogs in the GPU,
        more may not find them and have to wait for all of it to be computed; memory and drive hold
        the dialogs of every load.
        """
        smaller = [each for each in self.clients if each < clients and self.steps(variant, each)]
        if not smaller:
            return 0.0
        last = self.steps(variant, max(smaller))[-1]
        slower = 1.0 if variant in WITH_POOL else _slower_at_most(last)
        return float(_MARGIN * slower * last["seconds"] * clients / max(smaller))

    def may_begin(self, variant: str, clients: int, *, is_first: bool) -> bool:
        """Whether there is time for a load; the first of a run always begins."""
        if is_first:
            self._tried[f"{variant}, {clients}"] = self._row_s
            self._keep()
            return True
        if self.run.has_time(self.expected_s(variant, clients)):
            return True
        self.run.say(f"no time for {clients} clients; run the row again")
        return False

    async def ask(self, variant: str, engine: TokenEngine, clients: int, repeat: int) -> None:
        """Measure a load and keep it. No other load has its dialogs; all variants do."""
        work = requests.one_dialog_each(engine, self.run.scale, clients, repeat)
        step, joules = await self.run.joules(work)
        kept: _Kept = msgspec.to_builtins(step)
        if joules is not None:
            kept["joules_a_request"] = round(joules / max(1, step.requests or 0), 1)
        self.steps(variant, clients).append(kept)
        self._tried.pop(f"{variant}, {clients}", None)
        self._keep()
        self.run.say(f"{variant}, {clients} clients: {step.req_s} requests/s, TPOT {step.tpot_ms}")

    def report(self) -> None:
        """The page and the figures, over the loads that both variants have."""
        common = [each for each in self.clients if all(self.steps(name, each) for name in _NAMES)]
        if not common:
            return
        sides = {name: [_middle(self.steps(name, each)) for each in common] for name in _NAMES}
        off, on = (self._result(name, sides[name]) for name in (GPU_ONLY, FOREBAY))
        repeats = self._repeats(common)
        ab = AbResult(off=off, on=on, sla=_BOUND, repeats=repeats, gpus=len(gpus()) or None)
        self.run.results.beside("compared", compare(off, on, _BOUND).as_json())
        for clients in common:
            self._divide(clients)
        written = page.write(self.run.results.path.with_suffix(""), ab)
        self.run.say(f"the report: {written}")

    def _divide(self, clients: int) -> None:
        """Ratios of a load, run by run."""
        pairs = list(zip(self.steps(FOREBAY, clients), self.steps(GPU_ONLY, clients), strict=False))
        rates = [ours["req_s"] / alone["req_s"] for ours, alone in pairs]
        self.run.results.spread(f"requests_per_s_{clients}_clients", rates)
        for figure in _FIGURES:
            means = [ours[figure]["mean"] / alone[figure]["mean"] for ours, alone in pairs]
            self.run.results.spread(f"{figure[:-3]}_mean_{clients}_clients", means)

    def _repeats(self, common: Sequence[int]) -> tuple[RepeatOrder, ...]:
        """Each repeat that both variants have whole."""
        whole = min(len(self.steps(name, each)) for name in _NAMES for each in common)
        sides = {GPU_ONLY: "off", FOREBAY: "on"}
        found = [
            RepeatOrder(
                tuple(sides[name] for name in self.order),
                {
                    side: self._result(name, [self.steps(name, each)[number] for each in common])
                    for name, side in sides.items()
                },
            )
            for number in range(whole)
        ]
        return tuple(found) if len(found) > 1 else ()

    def _result(self, variant: str, steps: Sequence[_Kept]) -> LoadResult:
        scale = self.run.scale
        left_out = sorted(self._left_out.items(), key=lambda each: int(each[0]))
        return LoadResult(
            tuple(msgspec.convert(step, LoadStep) for step in steps),
            name=_NAMES[variant],
            model=f"{scale.config['num_hidden_layers']} layers, made-up weights",
            workload={"name": "dialogs", "turns": requests.TURNS},
            notes=tuple(f"{clients} clients are left out: {why}" for clients, why in left_out),
            machine=this_machine(),
            versions=these_versions(),
        )

    @property
    def _left_out(self) -> dict[str, str]:
        """Loads that are not measured, and why."""
        return self._found("left_out")

    @property
    def _tried(self) -> dict[str, float]:
        """First loads of a run that have not ended, with the seconds that the row had."""
        return self._found("tried")

    def _found(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.run.results.found.setdefault(name, {})
        return found

    def _leave_out(self, clients: int, why: str) -> None:
        self._left_out[str(clients)] = why
        self.run.say(f"{clients} clients are left out: {why}")

    def _keep(self) -> None:
        self.run.results.beside("bound", str(_BOUND))


def _slower_at_most(last: _Kept) -> float:
    """How much longer requests could take if nothing were found in a cache."""
    prompts, cached = last.get("prompt_tokens"), last.get("cached_tokens")
    if not prompts or cached is None or cached >= prompts:
        return _SLOWER_MAX
    return min(_SLOWER_MAX, float(prompts / (prompts - cached)))


def _middle(runs: Sequence[_Kept]) -> _Kept:
    """The run of a load with the median throughput; of an even number, the lower one."""
    return sorted(runs, key=lambda step: float(step["req_s"]))[(len(runs) - 1) // 2]
