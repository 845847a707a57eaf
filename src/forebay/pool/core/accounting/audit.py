"""Checks the pool's accounting: budgets, pins, slots and states must agree."""

from collections import Counter

from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.dram import Dram
from forebay.pool.core.loading.loads import Loads


def violations(dram: Dram, loads: Loads) -> list[str]:
    """Every invariant that does not hold, one sentence each; empty if all is well."""
    chunks = list(dram.chunks)
    found = [
        *_compare("taken bytes", dram.slab.taken_bytes, sum(c.slot_bytes for c in chunks)),
        *_compare("load budget", dram.load_budget.used_bytes, sum(map(_pinned_bytes, chunks))),
        *_compare("store budget", dram.store_budget.used_bytes, sum(map(_unsettled_bytes, chunks))),
        *_compare("pinned chunks", dram.pinned_chunks, sum(1 for chunk in chunks if chunk.pins)),
        *_compare("payload", dram.chunks.payload_bytes, sum(chunk.length for chunk in chunks)),
    ]
    for tenant in {*dram.quotas.holders(), *(chunk.name.tenant for chunk in chunks)}:
        mine = sum(chunk.slot_bytes for chunk in chunks if chunk.name.tenant == tenant)
        found += _compare(f"slots of {tenant.hex()}", dram.quotas.used_bytes(tenant), mine)
    booked = {name: has for name, has in dram.chunks.namespaces().items() if has != (0, 0)}
    counts, sizes = Counter[bytes](), Counter[bytes]()
    for chunk in chunks:
        counts[chunk.name.namespace] += 1
        sizes[chunk.name.namespace] += chunk.length
    if booked != {name: (count, sizes[name]) for name, count in counts.items()}:
        found.append("the books of namespaces are wrong")
    for engine in {chunk.engine for chunk in chunks} | {e for c in chunks for e in c.load_pins}:
        mine = sum(_pinned_bytes(chunk) for chunk in chunks if _charged(chunk) == engine)
        found += _compare(f"loads of {engine}", dram.load_budget.used_by(engine), mine)
    held = Counter(id(chunk) for request in loads.requests for chunk in request.held.values())
    held.update(id(chunk) for chunk in loads.acquisition.orphaned_pins)
    kept = Counter(id(chunk) for request in loads.requests for chunk in request.retained.pinned)
    found += _compare("retained bytes", loads.retained_bytes, _retained_bytes(loads))
    for chunk in chunks:
        load_pins = sum(chunk.load_pins.values())
        found += _compare(f"load pins of slot {chunk.offset}", load_pins, held[id(chunk)])
        if chunk.pins < load_pins + kept[id(chunk)]:
            found.append(
                f"slot {chunk.offset} has fewer pins than loads and requests that retain it"
            )
        if chunk.state is not SlotState.READY and chunk.pins:
            found.append(f"slot {chunk.offset} is pinned though it is not ready")
    if dram.slab.allocated_bytes > dram.slab.cap_bytes and not dram.slab.excess():
        found.append("the slab is above its cap")
    return found


def _pinned_bytes(chunk: Chunk) -> int:
    return chunk.slot_bytes if chunk.state is SlotState.LOADING or chunk.load_pins else 0


def _charged(chunk: Chunk) -> str:
    """The engine whose share of the load budget a chunk counts against."""
    return next(iter(chunk.load_pins), chunk.engine)


def _unsettled_bytes(chunk: Chunk) -> int:
    return chunk.slot_bytes if chunk.is_unsettled else 0


def _retained_bytes(loads: Loads) -> int:
    sizes = {
        (request.engine, key): loads.retained_for(request.engine, key)
        for request in loads.requests
        for key in request.keys[: request.retained.chunks]
    }
    return sum(sizes.values())


def _compare(what: str, booked: int, counted: int) -> list[str]:
    return [] if booked == counted else [f"{what}: {booked} booked, {counted} counted"]
