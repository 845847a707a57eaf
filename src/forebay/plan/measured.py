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
FAILED_SHARE_MAX: Final = 0.01  # of a step's requests; what refuses more serves nobody

Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Real = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


@dataclass(frozen=True, slots=True)
class Sla:
    """What a step must keep to count."""

    tpot_ms: float = 50.0  # mean time per output token
    ttft_ms: float | None = None  # mean time to the first token

    def __post_init__(self) -> None:
        real("tpot_ms", self.tpot_ms)
        if self.ttft_ms is not None:
            real("ttft_ms", self.ttft_ms)

    def __str__(self) -> str:
        ttft = "" if self.ttft_ms is None else f" and mean TTFT <= {self.ttft_ms:g} ms"
        return f"mean TPOT <= {self.tpot_ms:g} ms{ttft}"


class TimeStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """A time over requests, in ms."""

    mean: Real
    p50: Real | None = None
    p95: Real | None = None
    p99: Real | None = None


class MeasuredStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One load of one benchmark: so many clients at once."""

    clients: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    req_s: Real
    tpot_ms: TimeStats | None  # None: no request was answered
    ttft_ms: TimeStats | None = None
    errors: Count = 0
    requests: Count | None = None  # that were answered
    output_tok_s: Real | None = None

    @property
    def failed_share(self) -> float:
        """Of all requests; where nobody says how many were answered, one error counts as all."""
        if not self.errors:
            return 0.0
        return 1.0 if self.requests is None else self.errors / (self.errors + self.requests)

    def meets(self, sla: Sla) -> bool:
        """Whether the step is within the SLA; a bound on a time that was not measured is broken."""
        if self.tpot_ms is None or self.tpot_ms.mean > sla.tpot_ms:
            return False
        if self.failed_share > FAILED_SHARE_MAX:
            return False
        if sla.ttft_ms is None:
            return True
        return self.ttft_ms is not None and self.ttft_ms.mean <= sla.ttft_ms


_Step = TypeVar("_Step", bound=MeasuredStep)


def judged(steps: Iterable[_Step], sla: Sla) -> tuple[_Step | None, _Step | None]:
    """The operating point and the first violation, where there are such."""
    point = None
    for step in sorted(steps, key=lambda step: step.clients):
        if not step.meets(sla):
            return point, step
        point = step
    return point, None


def operating_point(source: str, steps: Iterable[MeasuredStep], sla: Sla) -> MeasuredStep:
    """The last step before the first violation; an error if not even the first one is within."""
    point, first = judged(steps, sla)
    if point is None:
        assert first is not None
        tpot = "no answer" if first.tpot_ms is None else f"TPOT {first.tpot_ms.mean:g} ms"
        ttft = "" if first.ttft_ms is None else f" and TTFT {first.ttft_ms.mean:g} ms"
        failed = f" and {first.failed_share:.0%} of requests failed" if first.failed_share else ""
        raise SettingsError(
            f"no step of {source} is within the SLA of {sla}: at {first.clients} clients it had"
            f" {tpot}{ttft}{failed}; raise --tpot-ms or --ttft-ms."
        )
    return point
