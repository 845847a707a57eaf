"""What an engine's scheduler and its workers tell each other in each step.

Workers may report one slot, or one part of a load, in different steps: the scheduler's side
collects the reports, and acts when all workers have reported.
"""

import sys
from dataclasses import dataclass, field
from typing import Final

from forebay.engines.copies.contract import LoadPart, Store

EVERYTHING: Final = sys.maxsize


@dataclass(slots=True)
class StepPlan:
    """From the scheduler to the workers: what to copy in one step."""

    number: int = 0  # of this step, from 1
    reported: int = EVERYTHING  # the last step reported by workers when this one was built
    freed: int = EVERYTHING  # the last step that stored blocks since freed; 0: none
    engine: str = ""  # the name under which the scheduler has joined the pool
    generation: int = 0  # generation of the pool's slab; 0: no pool
    widest: tuple[int, ...] = ()  # by group, a block's bytes in the largest shard; empty: one shard
    loads: list[LoadPart] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


@dataclass(slots=True)
class WorkerReport:
    """From a worker to the scheduler; several workers' reports are merged with `add`."""

    step: int = 0  # the last step begun; of several workers, the last begun by all
    # A store's serial → shard → digest of the stored bytes; b"": not stored, give the slot back.
    stored: dict[int, dict[int, bytes]] = field(default_factory=dict)
    over: dict[int, set[int]] = field(default_factory=dict)  # a part's serial → ranks that are done
    # Rank → the slab that it copies, and up to where it can, from its start; 0: none.
    reach: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, other: "WorkerReport") -> None:
        """Merge another worker's report into this one."""
        self.step = min(self.step, other.step)
        for serial, digests in other.stored.items():
            self.stored.setdefault(serial, {}).update(digests)
        for serial, ranks in other.over.items():
            self.over.setdefault(serial, set()).update(ranks)
        self.reach.update(other.reach)
