"""The slab as one worker sees it: slots of the size its model needs, and its shard of each."""

import logging
from itertools import repeat
from typing import Final

import numpy as np

from forebay.engines.copies.contract import WorkerSlab
from forebay.engines.geometry import Geometry, Shard
from forebay.pool.client.slab import MappedSlab
from forebay.quantity import format_size
from forebay.tiers.dram.slab import cap_bytes_for, slot_bytes_for

_log: Final = logging.getLogger("forebay")


def chunk_bytes_of(shape: Geometry, widest: tuple[int, ...]) -> int:
    """The largest size of a chunk in its slot; `widest` as in StepPlan, empty before a step."""
    return max(
        group.in_slot(wide or group.block_bytes, is_encoded=group.is_encoded)
        * group.chunk_blocks
        * group.shards
        for group, wide in zip(shape.groups, widest or repeat(0), strict=False)
    )


def worker_slab(
    mapped: MappedSlab, generation: int, shape: Geometry, shard: Shard, widest: tuple[int, ...]
) -> WorkerSlab:
    """A mapped slab as this worker uses it."""
    slot_bytes = slot_bytes_for(chunk_bytes_of(shape, widest))
    has_one_size = not (shape.local or shape.is_encoded)  # records that do not fit take more
    return WorkerSlab(
        generation,
        np.frombuffer(mapped.memory, dtype=np.uint8),
        mapped.arena_bytes,
        mapped.size_bytes,
        mapped.given_back,
        slot_bytes if has_one_size else mapped.arena_bytes,
        shard.number,
        widest,
        mapped.segments,
    )


def warn_if_too_small(mapped: MappedSlab, chunk_bytes: int) -> None:
    """Warn if no arena holds a chunk of this model."""
    slot_bytes = slot_bytes_for(chunk_bytes)
    if slot_bytes > mapped.arena_bytes:
        _log.warning(
            "the pool's DRAM is too small for this model: a chunk has %s, so nothing is stored;"
            " start the pool with --dram %s or more",
            format_size(chunk_bytes),
            format_size(cap_bytes_for(slot_bytes)).replace(" ", ""),
        )
