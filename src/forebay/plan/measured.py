"""Steps of a benchmark, as far as the planner needs them: the operating point under an SLA.

That is the last step before the first violation; the benchmark's report asks here too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec

from forebay.errors import SettingsError
from forebay.plan.number import real

STEPS_MAX: Final = 10_000
FAILED_SHARE_MAX: Final = 0.01  # of a step's requests; with more failures it breaks any SLA

STATISTICS: Final = ("mean", "p50", "p95", "p99")  # of times over requests

Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Real = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


@dataclass(frozen=True, slots=True)
class Sla:
    """The bounds that a step must meet."""

    tpot_ms: float = 50.0  # time per output token
    ttft_ms: float | None = None  # time to the first token
    e2e_ms: float | None = None  # time to the last token
    at: str = "mean"  # which of STATISTICS over the step's requests is bounded

    def __post_init__(self) -> None:
        real("tpot_ms", self.tpot_ms)
        for name in ("ttft_ms", "e2e_ms"):
            if getattr(self, name) is not None:
                real(name, getattr(self, name))
        if self.at not in STATISTICS:
            raise SettingsError(f"at must be one of {', '.join(STATISTICS)}, not {self.at!r:.40}.")

    def __str__(self) -> str:
        return " and ".join(f"{self.at} {bound}" for bound in self.bounds())

    def bounds(self) -> list[str]:
        """Each bound as text, such as `TPOT <= 50 ms`."""
        named = [("TPOT", self.tpot_ms), ("TTFT", self.ttft_ms), ("end to end", self.e2e_ms)]
        return [f"{name} <= {bound:g} ms" for name, bound in named if bound is not None]

    def of(self, times: "TimeStats | None") -> float | None:
        """The bounded statistic of a time; None if it was not measured."""
        found = None if times is None else getattr(times, self.at)
        assert found is None or isinstance(found, float | int)
        return found

    def admits(self, ttft_ms: float, tpot_ms: float | None, e2e_ms: float) -> bool:
        """Whether one request is within every bound; with a single token it has no TPOT."""
        pairs = [(tpot_ms, self.tpot_ms), (ttft_ms, self.ttft_ms), (e2e_ms, self.e2e_ms)]
        return all(time <= bound for time, bound in pairs if time is not None and bound is not None)


class TimeStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """A time over requests, in ms."""

    mean: Real
    p50: Real | None = None
    p95: Real | None = None
    p99: Real | None = None


class MeasuredStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a benchmark, with a number of clients at once."""

    clients: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    req_s: Real
    tpot_ms: TimeStats | None  # None: no request was answered
    ttft_ms: TimeStats | None = None
    e2e_ms: TimeStats | None = None
    errors: Count = 0
    requests: Count | None = None  # that were answered
    output_tok_s: Real | None = None

    @property
    def failed_share(self) -> float:
        """The share of requests that failed; 1 if any did and the answered ones are unknown."""
        if not self.errors:
            return 0.0
        return 1.0 if self.requests is None else self.errors / (self.errors + self.requests)

    def meets(self, sla: Sla) -> bool:
        """Whether the step is within the SLA; a bound on an unmeasured time counts as broken."""
        if self.failed_share > FAILED_SHARE_MAX:
            return False
        pairs = [
            (self.tpot_ms, sla.tpot_ms),
            (self.ttft_ms, sla.ttft_ms),
            (self.e2e_ms, sla.e2e_ms),
        ]
        found = [(sla.of(times), bound) for times, bound in pairs if bound is not None]
        return all(time is not None and time <= bound for time, bound in found)


_Step = TypeVar("_Step", bound=MeasuredStep)


def judged(steps: Iterable[_Step], sla: Sla) -> tuple[_Step | None, _Step | None]:
    """The operating point and the first violation; None for what there is not."""
    point = None
    for step in sorted(steps, key=lambda step: step.clients):
        if not step.meets(sla):
            return point, step
        point = step
    return point, None


def operating_point(source: str, steps: Iterable[MeasuredStep], sla: Sla) -> MeasuredStep:
    """The last step before the first violation; SettingsError if the first step violates."""
    point, first = judged(steps, sla)
    if point is None:
        assert first is not None
        tpot = "no answer" if first.tpot_ms is None else _said("TPOT", sla, first.tpot_ms)
        ttft = "" if first.ttft_ms is None else " and " + _said("TTFT", sla, first.ttft_ms)
        failed = f" and {first.failed_share:.0%} of requests failed" if first.failed_share else ""
        raise SettingsError(
            f"no step of {source} is within the SLA of {sla}: at {first.clients} clients it had"
            f" {tpot}{ttft}{failed}; raise --tpot-ms or --ttft-ms."
        )
    return point


def _said(name: str, sla: Sla, times: TimeStats) -> str:
    found = sla.of(times)
    return f"no {sla.at} of {name}" if found is None else f"{name} {found:g} ms"
