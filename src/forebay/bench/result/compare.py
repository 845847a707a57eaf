"""Two results side by side: what each carries under an SLA, and what one gains over the other."""

from dataclasses import asdict, dataclass
from typing import Any

from forebay.bench.result.format import LoadResult, LoadStep
from forebay.plan.measured import Sla, TimeStats, judged


@dataclass(frozen=True, slots=True)
class JudgedResult:
    """What one result carries under an SLA."""

    name: str
    point: LoadStep | None  # the operating point: the last step before the first violation
    violation: LoadStep | None  # the first

    def as_json(self) -> dict[str, Any]:
        """All of them None where not even the first step is within the SLA."""
        point, names = self.point, ("clients", "req_s", "ttft_ms", "tpot_ms")
        found = dict.fromkeys(names) if point is None else {n: getattr(point, n) for n in names}
        return {
            "name": self.name,
            **{n: each.mean if isinstance(each, TimeStats) else each for n, each in found.items()},
            "first_violation": None if self.violation is None else self.violation.clients,
        }


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One load on both variants; None where one was not measured at it."""

    clients: int
    off: LoadStep | None
    on: LoadStep | None

    @property
    def gain(self) -> float | None:
        """Requests per second of the second result over the first's, minus one."""
        if self.off is None or self.on is None or not self.off.req_s:
            return None
        return self.on.req_s / self.off.req_s - 1

    def as_json(self) -> dict[str, Any]:
        return {
            "clients": self.clients,
            "off_req_s": None if self.off is None else self.off.req_s,
            "on_req_s": None if self.on is None else self.on.req_s,
            "gain_percent": None if self.gain is None else round(100 * self.gain, 1),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    sla: Sla
    off: JudgedResult
    on: JudgedResult
    rows: tuple[ComparedStep, ...]

    def same_clients(self) -> ComparedStep | None:
        """The largest step that both carry within the SLA; else the largest that both have."""
        both = [row for row in self.rows if row.off and row.on]
        points = [each.point for each in (self.off, self.on)]
        limits = [point.clients for point in points if point is not None]
        within = [row for row in both if len(limits) == 2 and row.clients <= min(limits)]
        found = within or both
        return found[-1] if found else None

    def as_json(self) -> dict[str, Any]:
        """Names for programs; docs/bench-format.md has them."""
        off, on = self.off.as_json(), self.on.as_json()
        ratios = {
            "clients_ratio": _over(on["clients"], off["clients"]),
            "req_s_ratio": _over(on["req_s"], off["req_s"]),
            "ttft_ratio": _over(off["ttft_ms"], on["ttft_ms"]),  # how many times faster
        }
        return {
            "sla": asdict(self.sla),
            "off": off,
            "on": on,
            **{name: None if found is None else round(found, 3) for name, found in ratios.items()},
            "rows": [row.as_json() for row in self.rows],
        }


def compare(off: LoadResult, on: LoadResult, sla: Sla) -> Comparison:
    steps = [{step.clients: step for step in result.steps} for result in (off, on)]
    clients = sorted(steps[0].keys() | steps[1].keys())
    return Comparison(
        sla,
        judged_result(off, sla),
        judged_result(on, sla),
        tuple(ComparedStep(count, steps[0].get(count), steps[1].get(count)) for count in clients),
    )


def judged_result(result: LoadResult, sla: Sla) -> JudgedResult:
    """A result's operating point and first violation; the planner judges likewise."""
    return JudgedResult(result.name, *judged(result.steps, sla))


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other
