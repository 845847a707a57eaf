"""What the two sides of the connector tell each other, once a step."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of one chunk: whole blocks that lie in the slab and in the engine's KV cache."""

    offset: int  # of the chunk's slot in the slab
    first: int  # the first of these blocks, counted in the chunk
    blocks: list[int]  # ids in the engine's KV cache


@dataclass(frozen=True, slots=True)
class Load:
    """Pieces to be copied into the KV cache for one request."""

    request: str
    generation: int  # of the slab that the offsets are of
    pieces: list[Piece]
    is_last: bool  # nothing more will come for this request
    failed: list[int] = field(default_factory=list)  # blocks that cannot be loaded after all
    serial: int = 0  # by which a worker reports it as copied


@dataclass(frozen=True, slots=True)
class Store:
    """One chunk to be copied out of the KV cache."""

    generation: int
    piece: Piece


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """From the scheduler's side to the workers'."""

    engine: str = ""  # the name under which the scheduler's side has joined the pool
    generation: int = 0  # of the pool's slab; 0: no pool
    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


@dataclass(slots=True)
class Report(KVConnectorWorkerMetadata):
    """From a worker's side to the scheduler's; of several workers, what all of them did."""

    stored: dict[tuple[int, int], int] = field(default_factory=dict)  # (generation, offset) → ranks
    missed: dict[tuple[int, int], int] = field(default_factory=dict)  # not copied: give them back
    copied: dict[int, int] = field(default_factory=dict)  # a load's serial → ranks

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Report":
        """Both workers' reports as one."""
        assert isinstance(other, Report)
        both: list[tuple[dict[Any, int], dict[Any, int]]] = [
            (self.stored, other.stored),
            (self.missed, other.missed),
            (self.copied, other.copied),
        ]
        for mine, theirs in both:
            for what, ranks in theirs.items():
                mine[what] = mine.get(what, 0) + ranks
        return self
