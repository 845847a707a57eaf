"""A check of the doctor and its finding: how bad it is, what is wrong, and what to do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from forebay.observe.doctor.facts import Facts


class Severity(StrEnum):
    """How bad a finding is, the least first."""

    SKIPPED = "skipped"  # not checked; the sentence says why
    OK = "ok"  # as it should be
    NOTE = "note"  # nothing is wrong, but something could be better or is worth knowing
    WARNING = "warning"  # it works, but worse than it could
    PROBLEM = "problem"  # a pool or an engine will not start, or nothing will be shared


class Group(StrEnum):
    """The section of a report that shows a check."""

    DRIVES = "Drives"
    MEMORY = "Memory"
    LIMITS = "Limits of the process and the container"
    POOL = "The pool"
    SHARING = "What an engine would share"
    PROMPTS = "Recorded prompts"


class Observation(NamedTuple):
    """One thing that a check has seen."""

    severity: Severity
    sentence: str  # what is the case
    advice: str = ""  # a sentence on what to do; empty if there is nothing to do


Look = Callable[[Facts], Iterable[Observation]]


@dataclass(frozen=True, slots=True)
class Check:
    """One check; `docs/doctor.md` lists them all."""

    name: str
    group: Group
    finds: str  # what it looks for, in a few words
    worst: Severity
    look: Look


class DoctorFinding(NamedTuple):
    """An observation, and which check made it."""

    check: str
    group: Group
    severity: Severity
    sentence: str
    advice: str


def ok(sentence: str) -> Observation:
    """Something is as it should be."""
    return Observation(Severity.OK, sentence)


def skipped(sentence: str) -> Observation:
    """Something was not checked, and why."""
    return Observation(Severity.SKIPPED, sentence)


def note(sentence: str, advice: str = "") -> Observation:
    """Something is worth knowing."""
    return Observation(Severity.NOTE, sentence, advice)


def warning(sentence: str, advice: str) -> Observation:
    """Something works, but worse than it could."""
    return Observation(Severity.WARNING, sentence, advice)


def problem(sentence: str, advice: str) -> Observation:
    """Something will not work."""
    return Observation(Severity.PROBLEM, sentence, advice)
