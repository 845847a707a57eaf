"""What an engine's scheduler and its workers tell each other, once a step."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from forebay.engines.copies.contract import LoadPart, Store

EVERYTHING: Final = sys.maxsize
# Shards of a chunk: workers that each copy a part of it. A slot may be committed, or let go, when
# all of them have reported it; today there is one, and every report is complete.
SHARDS: Final = 1
_Copied = TypeVar("_Copied")


@dataclass(slots=True)
class StepPlan:
    """From the scheduler to the workers: what to copy in one step."""

    number: int = 0  # of this step, from 1
    reported: int = EVERYTHING  # the last step that workers had reported when this was built
    freed: int = EVERYTHING  # the last step that stored blocks which may be free now; 0: none
    engine: str = ""  # the name under which the scheduler has joined the pool
    generation: int = 0  # of the pool's slab; 0: no pool
    loads: list[LoadPart] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


@dataclass(slots=True)
class WorkerReport:
    """From a worker to the scheduler; of several workers, what all of them did."""

    step: int = 0  # the last that was begun
    stored: dict[tuple[int, int], int] = field(default_factory=dict)  # (generation, offset) → ranks
    missed: dict[tuple[int, int], int] = field(default_factory=dict)  # not copied: give them back
    over: dict[int, int] = field(default_factory=dict)  # a part's serial → ranks; slots are free
    digests: dict[tuple[int, int], bytes] = field(default_factory=dict)  # of what was stored

    def add(self, other: "WorkerReport") -> None:
        """Take another worker's report into this one."""
        self.step = max(self.step, other.step)
        both: list[tuple[dict[Any, int], dict[Any, int]]] = [
            (self.stored, other.stored),
            (self.missed, other.missed),
            (self.over, other.over),
        ]
        for mine, theirs in both:
            for what, ranks in theirs.items():
                mine[what] = mine.get(what, 0) + ranks
        self.digests |= other.digests


def by_all(reported: Mapping[_Copied, int]) -> list[_Copied]:
    """What the workers of all shards have reported, of what was reported by so many."""
    return [what for what, ranks in reported.items() if ranks >= SHARDS]
