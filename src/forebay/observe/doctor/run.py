"""Runs all checks, one after the other; a check that fails is a finding and ends no other."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from forebay.barrier import Barrier
from forebay.observe.doctor import drives, memory, pools, process, requests, sharing
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import Check, DoctorFinding, Observation, Severity
from forebay.observe.doctor.prompts import checks as prompts

CHECKS: Final = (
    *drives.CHECKS,
    *memory.CHECKS,
    *process.CHECKS,
    *pools.CHECKS,
    *sharing.CHECKS,
    *requests.CHECKS,
    *prompts.CHECKS,
)
FINDINGS_MAX: Final = 1000  # of one check
_BAD: Final = (Severity.WARNING, Severity.PROBLEM)


def examine(
    facts: Facts,
    checks: Sequence[Check] = CHECKS,
    show: Callable[[str, float], None] = lambda _what, _done: None,
) -> list[DoctorFinding]:
    """Run all checks and return their findings, in order; `show` is told which one is running."""
    barrier = Barrier()
    findings = []
    for number, check in enumerate(checks):
        show(check.name, number / len(checks))
        failed = Observation(
            Severity.PROBLEM,
            "This check failed unexpectedly; the lines on standard error say where.",
            "Report it with those lines; the other checks are not affected.",
        )
        found = barrier.result(f"the doctor's check {check.name}", [failed], _look, check, facts)
        findings += [DoctorFinding(check.name, check.group, *each) for each in found]
    return findings


def is_bad(findings: Iterable[DoctorFinding]) -> bool:
    """Whether any finding is a warning or a problem."""
    return any(finding.severity in _BAD for finding in findings)


def _look(check: Check, facts: Facts) -> list[Observation]:
    return [each for each, _ in zip(check.look(facts), range(FINDINGS_MAX), strict=False)]
