"""What the two sides of the connector tell each other, once a step."""

import sys
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from forebay.engines.vllm.copies.contract import Load, Store

EVERYTHING: Final = sys.maxsize


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """From the scheduler's side to the workers'."""

    number: int = 0  # of this step, from 1
    heard: int = EVERYTHING  # the last step of which the scheduler knew, when it built this one
    freed: int = EVERYTHING  # the last step that stored blocks which may be free now; 0: none
    engine: str = ""  # the name under which the scheduler's side has joined the pool
    generation: int = 0  # of the pool's slab; 0: no pool
    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


@dataclass(slots=True)
class Report(KVConnectorWorkerMetadata):
    """From a worker's side to the scheduler's; of several workers, what all of them did."""

    step: int = 0  # the last that was begun
    stored: dict[tuple[int, int], int] = field(default_factory=dict)  # (generation, offset) → ranks
    missed: dict[tuple[int, int], int] = field(default_factory=dict)  # not copied: give them back
    over: dict[int, int] = field(default_factory=dict)  # a load's serial → ranks; slots are free

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Report":
        """Both workers' reports as one."""
        assert isinstance(other, Report)
        self.step = max(self.step, other.step)
        both: list[tuple[dict[Any, int], dict[Any, int]]] = [
            (self.stored, other.stored),
            (self.missed, other.missed),
            (self.over, other.over),
        ]
        for mine, theirs in both:
            for what, ranks in theirs.items():
                mine[what] = mine.get(what, 0) + ranks
        return self
