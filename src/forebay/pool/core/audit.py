"""What must always be true of a pool's books."""

from collections import Counter

from forebay.pool.core.chunks import Chunk, State
from forebay.pool.core.loading.loads import Loads
from forebay.pool.core.room import Room


def violations(room: Room, loads: Loads) -> list[str]:
    """Every broken invariant, in a sentence each; empty when all is well."""
    chunks = list(room.chunks)
    found = [
        *_compare("taken bytes", room.slab.taken_bytes, sum(c.slot_bytes for c in chunks)),
        *_compare("pinned bytes", room.pinned_bytes, sum(map(_pinned_bytes, chunks))),
        *_compare("unsettled bytes", room.unsettled_bytes, sum(map(_unsettled_bytes, chunks))),
    ]
    held = Counter(id(chunk) for request in loads.requests() for chunk in request.held.values())
    held.update(id(chunk) for chunk in loads.strays)
    kept = Counter(id(chunk) for request in loads.requests() for chunk in request.pinned_ahead)
    found += _compare("kept bytes", loads.kept_bytes, _kept_bytes(loads))
    for chunk in chunks:
        found += _compare(f"asks of slot {chunk.offset}", chunk.asks, held[id(chunk)])
        if chunk.pins < chunk.asks + kept[id(chunk)]:
            found.append(f"slot {chunk.offset} has fewer pins than asks and requests that keep it")
        if chunk.state is not State.READY and chunk.pins:
            found.append(f"slot {chunk.offset} is pinned though it is not ready")
    if room.slab.allocated_bytes > room.slab.cap_bytes and not room.slab.excess():
        found.append("the slab is above its cap")
    return found


def _pinned_bytes(chunk: Chunk) -> int:
    return chunk.slot_bytes if chunk.state is State.LOADING or chunk.asks else 0


def _unsettled_bytes(chunk: Chunk) -> int:
    return chunk.slot_bytes if chunk.state is State.FILLING or chunk.writing else 0


def _kept_bytes(loads: Loads) -> int:
    sizes = {
        key: request.slot_bytes
        for request in loads.requests()
        for key in request.keys[: request.kept_chunks]
    }
    return sum(sizes.values())


def _compare(what: str, booked: int, counted: int) -> list[str]:
    return [] if booked == counted else [f"{what}: {booked} booked, {counted} counted"]
