"""Benchmark results, as far as the planner needs them: the operating point under an SLA.

A result is `{"steps": [{"clients": 16, "req_s": 3.47, "ttft_ms": {"mean": 246}, "tpot_ms":
{"mean": 38.8}}, ...]}`; an A/B result holds two of them, `{"off": {...}, "on": {...}}`. The
operating point is the last step before the first violation; the benchmark's report asks here too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.errors import SettingsError
from forebay.plan.number import real, whole

STEPS_MAX: Final = 10_000
AB_SIDES: Final = ("off", "on")
FAILED_SHARE_MAX: Final = 0.01  # of a step's requests; what refuses more serves nobody


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


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One load of one benchmark."""

    clients: int
    req_s: float
    tpot_ms: float | None  # None: no request was answered
    ttft_ms: float | None
    output_tok_s: float | None
    failed_share: float = 0.0  # of all requests

    def meets(self, sla: Sla) -> bool:
        """Whether the step is within the SLA; a bound on a time that was not measured is broken."""
        if self.tpot_ms is None or self.tpot_ms > sla.tpot_ms:
            return False
        if self.failed_share > FAILED_SHARE_MAX:
            return False
        return sla.ttft_ms is None or (self.ttft_ms is not None and self.ttft_ms <= sla.ttft_ms)


class Judged(NamedTuple):
    """The steps of a benchmark between which its SLA is broken."""

    point: MeasuredStep | None  # the operating point: the last step before the first violation
    violation: MeasuredStep | None  # the first one


def judged(steps: Iterable[MeasuredStep], sla: Sla) -> Judged:
    """The operating point and the first violation, where there are such."""
    point = None
    for step in sorted(steps, key=lambda step: step.clients):
        if not step.meets(sla):
            return Judged(point, step)
        point = step
    return Judged(point, None)


def failed_share(errors: int, answered: int | None) -> float:
    """Of all requests; where nobody says how many were answered, one error counts as all."""
    if not errors:
        return 0.0
    return 1.0 if answered is None else errors / (errors + answered)


def ab_sides(source: str, document: object) -> tuple[object, object]:
    """The two results of an A/B document: without and with the pool."""
    if not isinstance(document, Mapping) or not all(side in document for side in AB_SIDES):
        raise SettingsError(
            f"{source} is not an A/B result: it must hold 'off' and 'on', each with 'steps'."
        )
    return document["off"], document["on"]


def operating_point(source: str, document: object, sla: Sla) -> MeasuredStep:
    """The last step before the first violation; an error if not even the first one is within."""
    point, first = judged(_steps(source, document), sla)
    if point is None:
        assert first is not None
        tpot = "no answer" if first.tpot_ms is None else f"TPOT {first.tpot_ms:g} ms"
        ttft = "" if first.ttft_ms is None else f" and TTFT {first.ttft_ms:g} ms"
        failed = f" and {first.failed_share:.0%} of requests failed" if first.failed_share else ""
        raise SettingsError(
            f"no step of {source} is within the SLA of {sla}: at {first.clients} clients it had"
            f" {tpot}{ttft}{failed}; raise --tpot-ms or --ttft-ms."
        )
    return point


def _steps(source: str, document: object) -> list[MeasuredStep]:
    listed = document.get("steps") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= STEPS_MAX:
        raise SettingsError(f"steps is missing or empty in {source}: it is no benchmark result.")
    return [_step(f"steps[{place}]", source, entry) for place, entry in enumerate(listed)]


def _step(place: str, source: str, entry: object) -> MeasuredStep:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{place} in {source} must be an object.")
    if "tpot_ms" not in entry:  # null is another matter: nothing was answered
        raise SettingsError(f"{place}.tpot_ms is missing in {source}.")
    tokens = entry.get("output_tok_s")
    errors = whole(f"{place}.errors in {source}", entry.get("errors", 0), least=0)
    answered = entry.get("requests")
    if answered is not None:
        answered = whole(f"{place}.requests in {source}", answered, least=0)
    return MeasuredStep(
        clients=whole(f"{place}.clients in {source}", entry.get("clients"), most=10**9),
        req_s=real(f"{place}.req_s in {source}", entry.get("req_s"), zero=True),
        tpot_ms=_mean(f"{place}.tpot_ms", source, entry["tpot_ms"]),
        ttft_ms=_mean(f"{place}.ttft_ms", source, entry.get("ttft_ms")),
        output_tok_s=None
        if tokens is None
        else real(f"{place}.output_tok_s in {source}", tokens, zero=True),
        failed_share=failed_share(errors, answered),
    )


def _mean(place: str, source: str, times: object) -> float | None:
    if times is None:
        return None
    if not isinstance(times, Mapping):
        raise SettingsError(f"{place} in {source} must be an object with 'mean'.")
    return real(f"{place}.mean in {source}", times.get("mean"), zero=True)
