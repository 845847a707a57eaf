"""Two results side by side: what each carries under an SLA, and what one gains over the other."""

from dataclasses import dataclass
from typing import Any

from forebay.bench.result.format import LoadResult, LoadStep, SlaBounds
from forebay.plan.measured import Judged, Sla, failed_share, judged
from forebay.plan.measured import MeasuredStep as Load


@dataclass(frozen=True, slots=True)
class JudgedResult:
    """One result under an SLA."""

    name: str
    point: LoadStep | None  # the operating point: the last step before the first violation
    violation: LoadStep | None  # the first


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One load on both variants; None where one was not measured at it."""

    clients: int
    off: LoadStep | None
    on: LoadStep | None

    @property
    def gain(self) -> float | None:
        """Requests a second of the second over the first, less one."""
        if self.off is None or self.on is None or not self.off.req_s:
            return None
        return self.on.req_s / self.off.req_s - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two results say together."""

    bounds: SlaBounds
    off: JudgedResult
    on: JudgedResult
    rows: tuple[ComparedStep, ...]

    @property
    def clients_ratio(self) -> float | None:
        """Clients under the SLA, of the second over the first."""
        if self.off.point is None or self.on.point is None:
            return None
        return self.on.point.clients / self.off.point.clients

    @property
    def req_s_ratio(self) -> float | None:
        """Requests a second at the operating points."""
        if self.off.point is None or self.on.point is None or not self.off.point.req_s:
            return None
        return self.on.point.req_s / self.off.point.req_s

    @property
    def ttft_ratio(self) -> float | None:
        """Time to the first token at the operating points: how many times sooner."""
        times = [judged.point.ttft_ms if judged.point else None for judged in (self.off, self.on)]
        if times[0] is None or times[1] is None or not times[1].mean:
            return None
        return times[0].mean / times[1].mean

    def as_json(self) -> dict[str, Any]:
        """Names for programs; docs/bench-format.md has them."""
        return {
            "sla": {"tpot_ms": self.bounds.tpot_ms, "ttft_ms": self.bounds.ttft_ms},
            "off": _judged_json(self.off),
            "on": _judged_json(self.on),
            "clients_ratio": _rounded(self.clients_ratio),
            "req_s_ratio": _rounded(self.req_s_ratio),
            "ttft_ratio": _rounded(self.ttft_ratio),
            "rows": [_row_json(row) for row in self.rows],
        }


def compare(off: LoadResult, on: LoadResult, bounds: SlaBounds) -> Comparison:
    """What the second result gains over the first."""
    steps = [{step.clients: step for step in result.steps} for result in (off, on)]
    clients = sorted(steps[0].keys() | steps[1].keys())
    return Comparison(
        bounds,
        judged_result(off, bounds),
        judged_result(on, bounds),
        tuple(ComparedStep(count, steps[0].get(count), steps[1].get(count)) for count in clients),
    )


def judged_result(result: LoadResult, bounds: SlaBounds) -> JudgedResult:
    """A result's operating point and first violation; the planner judges likewise."""
    found = judge(result.steps, bounds)
    steps = {step.clients: step for step in result.steps}
    point = None if found.point is None else steps[found.point.clients]
    violation = None if found.violation is None else steps[found.violation.clients]
    return JudgedResult(result.name, point, violation)


def judge(steps: tuple[LoadStep, ...], bounds: SlaBounds) -> Judged:
    """As the planner would."""
    return judged((load_of(step) for step in steps), sla_of(bounds))


def sla_of(bounds: SlaBounds) -> Sla:
    """The bounds as the planner has them; a SettingsError if they cannot be meant."""
    return Sla(bounds.tpot_ms, bounds.ttft_ms)


def load_of(step: LoadStep) -> Load:
    """A step as the planner has it."""
    return Load(
        clients=step.clients,
        req_s=step.req_s,
        tpot_ms=None if step.tpot_ms is None else step.tpot_ms.mean,
        ttft_ms=None if step.ttft_ms is None else step.ttft_ms.mean,
        output_tok_s=step.output_tok_s,
        failed_share=failed_share(step.errors, step.requests),
    )


def _judged_json(judged: JudgedResult) -> dict[str, Any]:
    point, violation = judged.point, judged.violation
    return {
        "name": judged.name,
        "clients": None if point is None else point.clients,
        "req_s": None if point is None else point.req_s,
        "ttft_ms": None if point is None or point.ttft_ms is None else point.ttft_ms.mean,
        "tpot_ms": None if point is None or point.tpot_ms is None else point.tpot_ms.mean,
        "first_violation": None if violation is None else violation.clients,
    }


def _row_json(row: ComparedStep) -> dict[str, Any]:
    gain = None if row.gain is None else round(100 * row.gain, 1)
    off, on = row.off, row.on
    return {
        "clients": row.clients,
        "off_req_s": None if off is None else off.req_s,
        "on_req_s": None if on is None else on.req_s,
        "gain_percent": gain,
    }


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)
