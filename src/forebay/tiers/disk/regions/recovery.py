"""What a region file holds: read from its table of contents, or found by walking it.

The table of a sealed region is believed (its records are verified when they are loaded). A region
without one was open when its process died: it is walked from the front and every record in it is
verified whole, because the last of them may be torn. Where a header is damaged the walk goes on
page by page; a record is recognised by its own hash, generation and place.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import xxhash

from forebay.record import region as layout
from forebay.record.header import (
    HEADER_BYTES,
    MAGIC,
    Damage,
    RecordHeader,
    record_bytes,
    unpack,
)
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.transfer import read_whole

_WINDOW_BYTES: Final = 4 << 20
_SMALL_STEP_BYTES: Final = 64 << 10  # once something in the region was unreadable
_UNREADABLE_MAX: Final = 32  # reads of one region that may fail before the rest is given up
_SECTOR_BYTES: Final = 512  # what a drive writes whole or not at all


class Found(NamedTuple):
    """A region file's content."""

    generation: int
    size_bytes: int
    entries: Iterable[layout.ContentsEntry]
    contents: bytes  # the entries, packed
    end: int  # where the next record would go
    sealed: bool  # read from a table of contents


def recover(disk: Disk, descriptor: int, named: int, size_bytes: int) -> Found | Damage | None:
    """Read one region; `named` is the generation in its file's name.

    A region whose header is damaged is still walked, by the generation in its name. None: its life
    never began, or too little is left of it. Damage is returned only for a file that holds nothing
    of ours: it may be another's (NOT_A_RECORD) or a later Forebay's (NEWER_VERSION). OSError: its
    header cannot be read, and nothing else tells whose it is.
    """
    page = memory.allocate(PAGE_BYTES)
    unreadable: OSError | None = None
    try:
        head = page[: read_whole(disk, descriptor, [page], 0)]
    except OSError as error:
        head, unreadable = page[:0], error
    header = layout.unpack_header(head)
    if header is Damage.NEWER_VERSION:
        return header
    generation = named if isinstance(header, Damage) else header.generation
    if size_bytes >= layout.FIRST_RECORD + PAGE_BYTES:  # room for a footer, if not for a record
        found = _read_or_walk(disk, descriptor, generation, size_bytes)
        if found.contents or found.sealed or not isinstance(header, Damage):
            return found
    if unreadable is not None:
        raise unreadable
    return _judge(header, head)


def _judge(header: layout.RegionHeader | Damage, head: memoryview) -> Damage | None:
    """What a file is that holds no record: ours, of a life that never began, or another's."""
    # Created, perhaps preallocated, but the sector with its magic never reached the medium.
    if not any(head[:_SECTOR_BYTES]):
        return None
    # Our magic without our hash is a header torn while it was written, by creation or eviction.
    if header is Damage.HEADER_HASH or not isinstance(header, Damage):
        return None
    return header


def packed_contents(disk: Disk, descriptor: int, generation: int, size_bytes: int) -> bytes:
    """The entries of a region's records, by its table or, where none is to be had, by a walk."""
    return _read_or_walk(disk, descriptor, generation, size_bytes).contents


def _read_or_walk(disk: Disk, descriptor: int, generation: int, size_bytes: int) -> Found:
    try:
        table = read_contents(disk, descriptor, generation, size_bytes)
    except OSError:
        table = None  # the records themselves may be readable
    if isinstance(table, Found):
        return table
    return _walk(disk, descriptor, generation, size_bytes)


def read_contents(
    disk: Disk, descriptor: int, generation: int, size_bytes: int
) -> Found | Damage | None:
    """What a region's table says; None: not sealed in this life; Damage: not to be believed."""
    page = memory.allocate(PAGE_BYTES)
    count = read_whole(disk, descriptor, [page], size_bytes - PAGE_BYTES)
    footer = layout.unpack_footer(page[:count])
    if isinstance(footer, Damage):
        return footer if any(page[:count]) else None
    if (footer.generation, footer.size_bytes) != (generation, size_bytes):  # verify: footer place
        return None
    used = footer.records * layout.ENTRY_BYTES
    contents = memory.allocate(used)
    if read_whole(disk, descriptor, [contents], footer.contents_offset) < used:
        return Damage.CUT
    entries = layout.unpack_contents(contents, footer)
    if isinstance(entries, Damage):
        return entries
    packed = bytes(contents[:used])
    return Found(generation, size_bytes, entries, packed, footer.contents_offset, sealed=True)


def _walk(disk: Disk, descriptor: int, generation: int, size_bytes: int) -> Found:
    window = Window(disk, descriptor, size_bytes)
    entries: list[layout.ContentsEntry] = []
    contents = bytearray()
    end = layout.FIRST_RECORD
    for at, header in walk(window, generation):
        if not isinstance(header, RecordHeader):
            continue
        name = header.name
        entries.append(
            layout.ContentsEntry(
                name.key, name.namespace, layout.short(name.parent), at, header.length, name.group
            )
        )
        contents += layout.pack_entry(header, at)
        end = at + record_bytes(header.length)
    return Found(generation, size_bytes, entries, bytes(contents), end, sealed=False)


def walk(
    window: "Window", generation: int
) -> Iterator[tuple[int, RecordHeader | Damage | OSError | None]]:
    """Every page where a record may begin, with what stands there; see `record_at`.

    What cannot be read is stepped over, a few times: a failing drive takes seconds for each.
    """
    at = layout.FIRST_RECORD
    unreadable = 0
    while at + PAGE_BYTES <= window.size_bytes and unreadable < _UNREADABLE_MAX:
        found: RecordHeader | Damage | OSError | None
        try:
            found = record_at(window, at, generation)
        except OSError as error:
            unreadable += 1
            found = error
        yield at, found
        at += record_bytes(found.length) if isinstance(found, RecordHeader) else PAGE_BYTES


def record_at(window: "Window", at: int, generation: int) -> RecordHeader | Damage | None:
    """The record that begins at `at`; None: none of this life; Damage: one, but not a sound one."""
    page = window.view(at, PAGE_BYTES)
    if bytes(page[: len(MAGIC)]) != MAGIC:
        return None
    if not layout.is_for(page, layout.Position(generation, at)):  # verify: walked place
        return None
    header = unpack(bytes(page))
    if isinstance(header, Damage):
        return header
    if at + record_bytes(header.length) > window.size_bytes:  # verify: walked length
        return Damage.LENGTH
    if window.hash(at + HEADER_BYTES, header.length) != header.payload_hash:  # verify: walked hash
        return Damage.PAYLOAD_HASH
    return header


class Window:
    """A region read in large steps, whatever the size of its records."""

    def __init__(self, disk: Disk, descriptor: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._disk = disk
        self._descriptor = descriptor
        self._buffer = memory.allocate(_WINDOW_BYTES)
        self._step_bytes = _WINDOW_BYTES
        self._start = self._stop = 0

    def view(self, at: int, size: int) -> memoryview:
        """Up to `size` bytes at `at`; fewer at the end of window or file. OSError: unreadable."""
        if not self._start <= at < self._stop:
            self._read(at, size)
        return self._buffer[at - self._start : min(at + size, self._stop) - self._start]

    def _read(self, at: int, size: int) -> None:
        self._start = self._stop = at
        try:
            step = self._buffer[: self._step_bytes]
            self._stop += read_whole(self._disk, self._descriptor, [step], at)
        except OSError:
            # What is unreadable may lie behind what is wanted.
            self._step_bytes = _SMALL_STEP_BYTES
            wanted = self._buffer[: memory.padded(size)]
            self._stop += read_whole(self._disk, self._descriptor, [wanted], at)

    def hash(self, at: int, length: int) -> bytes:
        """The hash of these bytes; of fewer, and so another, where the file ends early."""
        digest = xxhash.xxh3_128()
        stop = at + length
        while at < stop:
            part = self.view(at, stop - at)
            if not part:
                break
            digest.update(part)
            at += len(part)
        return digest.digest()
