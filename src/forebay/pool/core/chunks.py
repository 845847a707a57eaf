"""The chunks in DRAM: by key, by slot, and as a forest that continues in the lower tiers.

A `Chunk` is one group's record of a chunk of tokens, in a slot. It lives as long as it has the
slot; `Dram` alone changes its state:

    FILLING   an engine writes into the slot         → READY (commit) or dropped (abort, exit)
    LOADING   a lower tier writes into the slot      → READY (verified) or dropped (miss)
    READY     can be read; may be pinned, and may be being written to lower tiers
              → dropped (evicted, damaged, cleared, its prefix is gone), if nobody uses it;
              what is damaged or cleared while it is in use is condemned: nobody finds it

Promised: no chunk that can be found has a hole before it. Its parent is in some tier, and when the
last copy of the parent goes, what continues it in DRAM goes too. Not thread-safe: the pool's thread
owns it.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import takewhile
from typing import Final

from forebay.record.header import ROOT, RecordName
from forebay.record.region import short
from forebay.tiers.contract import LargestNamespaces, NamespaceUsage
from forebay.tiers.namespaces import NamespaceTable

NO_TIERS: Final[frozenset[int]] = frozenset()


class SlotState(IntEnum):
    """What is in a chunk's slot."""

    FILLING = 0  # an engine writes into it
    LOADING = 1  # a lower tier writes into it
    READY = 2  # verified, or committed by an engine


class Chunk:
    """One chunk in DRAM."""

    __slots__ = (
        "beside",
        "digest",
        "engine",
        "guarded_parent",
        "key",
        "length",
        "load_pins",
        "name",
        "offset",
        "pins",
        "prefetched_from",
        "shards",
        "since",
        "slot_bytes",
        "source",
        "state",
        "tiers",
        "used_at",
        "writing_to",
    )

    def __init__(self, name: RecordName, state: SlotState, offset: int, length: int) -> None:
        self.name = name  # holds the short key while LOADING, the full one otherwise
        self.key = short(name.key)
        self.state = state
        self.offset = offset
        self.length = length
        self.slot_bytes = 0
        self.since = 0.0  # when it got its slot; of a READY one, when it became so; monotonic
        # When a READY chunk was last handed out, or stored; None: not since it was loaded.
        self.used_at: float | None = None
        self.pins = 0  # pins of all kinds
        self.load_pins: dict[str, int] = {}  # of these, pins for loads, by engine
        self.guarded_parent: Chunk | None = None  # pinned while this chunk is filled
        self.tiers = NO_TIERS  # lower tiers that have a copy, by number
        self.writing_to = NO_TIERS  # lower tiers that it is being written to
        self.beside: bytes | None = (
            None  # if it has no parent: the chunk that it was stored for, if any
        )
        self.engine = ""  # the engine that fills it, or for which it is read
        self.digest = b""  # payload hash of a READY chunk, from its producer or its record
        self.shards = 1  # number of shards that the digest covers
        self.prefetched_from = -1  # lower tier it was prefetched from, until it is used; else -1
        self.source = 0  # where it was when last wanted: 0: DRAM, n: lower tier n - 1

    @property
    def parent(self) -> bytes | None:
        """The short key of its parent record, if it has one."""
        parent = self.name.parent
        return None if parent == ROOT else short(parent)

    def take_source(self) -> int:
        """Where it was found by whoever wants it first; after this call that is DRAM."""
        source, self.source = self.source, 0
        return source

    @property
    def is_unsettled(self) -> bool:
        """Whether it is being filled, or written to a lower tier for the first time.

        The store budget counts these; a further copy in a further tier does not hold up stores.
        """
        return self.state is SlotState.FILLING or (bool(self.writing_to) and not self.tiers)

    @property
    def is_busy(self) -> bool:
        """Whether somebody uses the slot."""
        return self.state is not SlotState.READY or self.pins > 0 or bool(self.writing_to)


class ChunkTable:
    """Chunks by key and by slot."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Chunk] = {}
        self._by_offset: dict[int, Chunk] = {}
        self._children: dict[bytes, set[Chunk]] = {}  # parent → children in DRAM
        # Keys of chunks that are READY and not condemned: lookups need no more.
        self._ready: set[bytes] = set()
        self._condemned: set[bytes] = set()  # keys of chunks that go when nobody uses them
        self._namespaces = NamespaceTable()
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._by_key.values())

    def get(self, key: bytes) -> Chunk | None:
        """The chunk with a short key, in any state, condemned or not."""
        return self._by_key.get(key)

    def is_coming_or_ready(self, key: bytes) -> bool:
        """Whether a chunk is READY or LOADING, so that a lookup finds it."""
        chunk = self._by_key.get(key)
        if chunk is None or key in self._condemned:
            return False
        return chunk.state is not SlotState.FILLING

    def is_filling(self, key: bytes) -> bool:
        """Whether an engine is storing a chunk."""
        chunk = self._by_key.get(key)
        return chunk is not None and chunk.state is SlotState.FILLING

    def ready_prefix(self, keys: list[bytes]) -> int:
        """How many keys, counted from the first, are READY."""
        # A single call in C if all are READY, as in most lookups.
        if self._ready.issuperset(keys):
            return len(keys)
        return len(list(takewhile(self._ready.__contains__, keys)))

    def ready(self, keys: list[bytes]) -> Iterator[Chunk]:
        """The READY chunks of these keys, up to the first that is not READY."""
        return map(self._by_key.__getitem__, takewhile(self._ready.__contains__, keys))

    def is_ready(self, key: bytes) -> bool:
        """Whether this chunk is READY; the only method that any thread may call."""
        return key in self._ready

    def is_condemned(self, key: bytes) -> bool:
        """Whether a chunk is to go once nobody uses it; until then no other can have its key."""
        return key in self._condemned

    def before_condemned(self, keys: list[bytes]) -> list[bytes]:
        """The keys up to the first that is condemned."""
        if self._condemned.isdisjoint(keys):  # the usual case
            return keys
        return list(takewhile(lambda key: key not in self._condemned, keys))

    def at(self, offset: int) -> Chunk | None:
        """The chunk in a slot."""
        return self._by_offset.get(offset)

    def add(self, chunk: Chunk) -> None:
        """A chunk got a slot."""
        assert chunk.key not in self._by_key
        assert chunk.offset not in self._by_offset
        self._by_key[chunk.key] = chunk
        self._by_offset[chunk.offset] = chunk
        self._link(chunk)
        self._enter(chunk)

    def namespaces(self) -> dict[bytes, NamespaceUsage]:
        """The usage of every namespace that has chunks here, or lately had."""
        return self._namespaces.usage()

    def usage_of(self, namespaces: Sequence[bytes]) -> list[NamespaceUsage]:
        """The usage of each of these namespaces."""
        return self._namespaces.usage_of(namespaces)

    def largest_namespaces(self, limit: int) -> LargestNamespaces:
        """The namespaces with the most bytes; costs the same however many there are."""
        return LargestNamespaces(self._namespaces.largest(limit), len(self._namespaces))

    def set_ready(self, chunk: Chunk) -> None:
        """A chunk's slot can be read from now on."""
        chunk.state = SlotState.READY
        self._ready.add(chunk.key)

    def set_condemned(self, chunk: Chunk) -> None:
        """Nobody finds this chunk any more, though it is in use."""
        self._ready.discard(chunk.key)
        self._condemned.add(chunk.key)

    def rename(self, chunk: Chunk, name: RecordName) -> None:
        """Give a loaded chunk the full name that its record has."""
        self._unlink(chunk)
        self._leave(chunk)
        chunk.name = name
        self._enter(chunk)
        self._link(chunk)

    def remove(self, chunk: Chunk) -> None:
        """A chunk has no slot any more."""
        del self._by_key[chunk.key]
        self._ready.discard(chunk.key)
        self._condemned.discard(chunk.key)
        del self._by_offset[chunk.offset]
        self._unlink(chunk)
        self._leave(chunk)

    def descendants(self, *keys: bytes) -> list[Chunk]:
        """All chunks in DRAM that continue these keys through chunks in DRAM, nearest first.

        The keys' own chunks are left out, even if forged records name them as their own
        descendants.
        """
        found: dict[Chunk, None] = {}
        stack, given = list(keys), set(keys)
        while stack:
            for child in self._children.get(stack.pop(), ()):
                if child not in found and child.key not in given:
                    found[child] = None
                    stack.append(child.key)
        return list(found)

    def has_children(self, key: bytes) -> bool:
        """Whether a chunk in DRAM continues this key."""
        return key in self._children

    def _enter(self, chunk: Chunk) -> None:
        """Count a chunk that is here now."""
        table, number = self._namespaces, self._namespaces.refer(chunk.name.namespace)
        self.payload_bytes += chunk.length
        table.records[number] += 1
        table.payload_bytes[number] += chunk.length

    def _leave(self, chunk: Chunk) -> None:
        """Count a chunk that is gone."""
        table = self._namespaces
        number = table.numbers[chunk.name.namespace]
        self.payload_bytes -= chunk.length
        table.records[number] -= 1
        table.payload_bytes[number] -= chunk.length
        table.release(number)

    def _link(self, chunk: Chunk) -> None:
        parent = chunk.parent
        if parent is not None:
            self._children.setdefault(parent, set()).add(chunk)

    def _unlink(self, chunk: Chunk) -> None:
        parent = chunk.parent
        children = self._children.get(parent) if parent is not None else None
        if parent is None or children is None:
            return
        children.discard(chunk)
        if not children:
            del self._children[parent]
