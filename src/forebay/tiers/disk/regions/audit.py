"""Audit of a directory that no pool is using: every record read and verified, nothing changed.

What a warm start believes (tables of contents) is not believed here. The directory's lock is held
meanwhile, so that no pool can begin in it. `repair.py` drops what this module finds.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from forebay.errors import DirectoryError
from forebay.record import region as layout
from forebay.record.header import (
    HEADER_BYTES,
    Damage,
    RecordHeader,
    RecordName,
    is_erased,
    mismatch,
    record_bytes,
)
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.transfer import read_whole
from forebay.tiers.disk.regions.directory import LOCK_NAME, generation_in, region_names
from forebay.tiers.disk.regions.recovery import Found, Window, read_contents, walk

_AT_ONCE: Final = 4  # regions
_NOT_OURS_BUT_FINE: Final = {LOCK_NAME, "lost+found"}
_SAFE_MODE: Final = 0o700


class Kind(StrEnum):
    """What can be wrong."""

    RECORD = "damaged record"
    CONTENTS = "bad table of contents"
    HEADER = "bad region header"
    SIZE = "wrong size"
    UNREADABLE = "unreadable"
    MODE = "unsafe mode"
    FOREIGN = "foreign file"
    NEWER = "another format version"


class Fault(NamedTuple):
    """One thing that is wrong."""

    kind: Kind
    file: str  # its name in the directory; "." is the directory itself
    why: str
    offset: int | None = None  # in the file

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.file}: {self.kind}{place} ({self.why})"


@dataclass(slots=True)
class RegionAudit:
    """What one region file holds."""

    name: str
    size_bytes: int = 0
    generation: int = 0
    is_sealed: bool = False
    is_ours: bool = True  # neither foreign nor of another version
    records: int = 0  # sound
    erased: int = 0  # deleted on purpose
    payload_bytes: int = 0  # of sound records
    contents: bytearray = field(default_factory=bytearray)  # entries of sound records
    end: int = layout.FIRST_RECORD  # where a table of contents may begin
    faults: list[Fault] = field(default_factory=list)

    def fault(self, kind: Kind, why: str, offset: int | None = None) -> None:
        """Note one thing that is wrong."""
        self.faults.append(Fault(kind, self.name, why, offset))

    def sound(self, header: RecordHeader, offset: int) -> None:
        """Note a record that is what it says."""
        self.records += 1
        self.payload_bytes += header.length
        self.contents += layout.pack_entry(header, offset)


@dataclass(frozen=True, slots=True)
class Audit:
    """What one directory holds."""

    regions: tuple[RegionAudit, ...]
    others: tuple[Fault, ...]  # of the directory and of files that are no regions

    @property
    def faults(self) -> list[Fault]:
        """All that is wrong."""
        return [*self.others, *(fault for region in self.regions for fault in region.faults)]


class Held(NamedTuple):
    """A directory whose lock we hold."""

    descriptor: int
    lock: int | None  # None: no pool was ever here


def hold(disk: Disk, path: str) -> Held:
    """Lock a directory without writing to it; a DirectoryError says why that cannot be had."""
    try:
        descriptor = disk.open_directory(path)
    except OSError as error:
        raise DirectoryError(f"{path} cannot be checked ({error.strerror}).") from None
    try:
        return Held(descriptor, _lock(disk, path, descriptor))
    except DirectoryError:
        disk.close(descriptor)
        raise


def release(disk: Disk, held: Held) -> None:
    """Let pools begin here again."""
    for descriptor in held:
        if descriptor is not None:
            disk.close(descriptor)


def _lock(disk: Disk, path: str, directory: int) -> int | None:
    try:
        lock = disk.open(directory, LOCK_NAME, create=False, direct=False, write=False)
    except FileNotFoundError:
        if not region_names(disk, directory):
            raise DirectoryError(
                f"{path} holds no regions of Forebay; name a directory that a pool has used."
            ) from None
        return None
    except OSError as error:
        raise DirectoryError(
            f"{path} cannot be locked ({error.strerror}); run this as its owner."
        ) from None
    if not disk.try_lock(lock):
        disk.close(lock)
        raise DirectoryError(f"{path} is in use by a pool; stop it first.")
    return lock


def audit(disk: Disk, held: Held, on_bytes: Callable[[int, int], None]) -> Audit:
    """Verify every record; `on_bytes` hears on this thread how many bytes of how many are done."""
    names = [name for _, name in region_names(disk, held.descriptor)]
    others = list(_others(disk, held.descriptor, set(names)))
    done = 0
    regions = []
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="forebay-audit")
    try:
        for number, region in enumerate(
            pool.map(lambda name: _region(disk, held.descriptor, name), names), start=1
        ):
            regions.append(region)
            done += region.size_bytes
            on_bytes(done, done * len(names) // number)
    finally:
        pool.shutdown(cancel_futures=True)
    return Audit(tuple(regions), tuple(others))


def _others(disk: Disk, directory: int, regions: set[str]) -> Iterator[Fault]:
    mode = disk.status(directory).mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Fault(Kind.MODE, ".", f"mode {stat.S_IMODE(mode):o}: others can write here")
    for name in sorted(set(disk.names(directory)) - regions - _NOT_OURS_BUT_FINE):
        yield Fault(Kind.FOREIGN, os.fsencode(name).decode(errors="replace"), "not of Forebay")


def open_region(disk: Disk, directory: int, name: str, *, write: bool) -> int:
    """A region file, with O_DIRECT where the file system has it."""
    try:
        return disk.open(directory, name, create=False, direct=True, write=write)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return disk.open(directory, name, create=False, direct=False, write=write)


def _region(disk: Disk, directory: int, name: str) -> RegionAudit:
    found = RegionAudit(name, generation=generation_in(name))
    try:
        descriptor = open_region(disk, directory, name, write=False)
    except OSError as error:
        found.is_ours = False
        found.fault(Kind.UNREADABLE, error.strerror or "cannot be opened")
        return found
    try:
        _inspect(disk, descriptor, found)
    except OSError as error:
        found.fault(Kind.UNREADABLE, error.strerror or "cannot be read")
    finally:
        disk.close(descriptor)
    return found


def _inspect(disk: Disk, descriptor: int, found: RegionAudit) -> None:
    status = disk.status(descriptor)
    if not stat.S_ISREG(status.mode):
        found.is_ours = False
        found.fault(Kind.FOREIGN, "not a file")
        return
    if status.mode & ~_SAFE_MODE & 0o777:
        found.fault(Kind.MODE, f"mode {stat.S_IMODE(status.mode):o}, where 600 is safe")
    # Of a file that ends within a page, whole pages are looked at.
    found.size_bytes = status.size_bytes - status.size_bytes % PAGE_BYTES
    page = memory.allocate(PAGE_BYTES)
    head = page[: read_whole(disk, descriptor, [page], 0)]
    header = layout.unpack_header(head)
    if header is Damage.NEWER_VERSION:
        found.is_ours = False
        found.fault(Kind.NEWER, "written by another Forebay, left alone")
        return
    if not isinstance(header, Damage):
        found.generation = header.generation
        if header.size_bytes != found.size_bytes:
            found.fault(
                Kind.SIZE, f"{status.size_bytes} bytes long, its header says {header.size_bytes}"
            )
    if found.size_bytes > PAGE_BYTES:
        _records(disk, descriptor, found)
    if isinstance(header, Damage):
        _judge_header(found, header, blank=not any(head))


def _judge_header(found: RegionAudit, damage: Damage, *, blank: bool) -> None:
    """A region's first page says nothing; what else was found tells what the file is."""
    if found.records or damage is not Damage.NOT_A_RECORD:
        found.fault(Kind.HEADER, damage, 0)
    elif not blank:  # a blank one is a region whose life never began: the next start removes it
        found.is_ours = False
        found.faults[:] = [Fault(Kind.FOREIGN, found.name, "not a region of Forebay")]


def _records(disk: Disk, descriptor: int, found: RegionAudit) -> None:
    window = Window(disk, descriptor, found.size_bytes)
    footer = found.size_bytes - PAGE_BYTES
    try:
        table = read_contents(disk, descriptor, found.generation, found.size_bytes)
    except OSError as error:
        found.fault(Kind.UNREADABLE, error.strerror or "cannot be read", footer)
        table = None
    if isinstance(table, Found):
        found.is_sealed = True
        found.end = table.end
        _by_table(window, table, found)
        return
    if table is not None:
        found.fault(Kind.CONTENTS, table, footer)
    _by_walk(window, found)


def _by_table(window: Window, table: Found, found: RegionAudit) -> None:
    for entry in sorted(table.entries, key=lambda entry: entry.offset):
        try:
            verified = _verify(window, entry, found)
        except OSError as error:
            found.fault(Kind.UNREADABLE, error.strerror or "cannot be read", entry.offset)
            continue
        if isinstance(verified, RecordHeader):
            found.sound(verified, entry.offset)
        elif verified is None:
            found.erased += 1
        else:
            found.fault(Kind.RECORD, verified, entry.offset)


def _verify(
    window: Window, entry: layout.ContentsEntry, found: RegionAudit
) -> RecordHeader | Damage | None:
    """The record that a table speaks of; None: it was erased."""
    end = entry.offset + record_bytes(entry.length)
    if entry.offset < layout.FIRST_RECORD or end > found.end:
        return Damage.LENGTH
    page = bytes(window.view(entry.offset, HEADER_BYTES))
    if is_erased(page):
        return None
    header = layout.unpack_record(page, layout.Position(found.generation, entry.offset))
    if isinstance(header, Damage):
        return header
    name = RecordName(entry.namespace, entry.group, entry.key, entry.parent)
    wrong = mismatch(header, name, entry.length)
    if wrong is None and layout.short(header.name.parent) != entry.parent:
        wrong = Damage.KEY
    if wrong is None and window.hash(entry.offset + HEADER_BYTES, entry.length) != (
        header.payload_hash
    ):
        wrong = Damage.PAYLOAD_HASH
    return wrong or header


def _by_walk(window: Window, found: RegionAudit) -> None:
    """Of a region that was never sealed: a damaged record may be a write that was cut off."""
    for at, header in walk(window, found.generation):
        if isinstance(header, RecordHeader):
            found.sound(header, at)
            found.end = at + record_bytes(header.length)
        elif isinstance(header, OSError):
            found.fault(Kind.UNREADABLE, header.strerror or "cannot be read", at)
        elif header is not None:
            found.fault(Kind.RECORD, f"{header}, or its write was cut off", at)
        elif is_erased(window.view(at, PAGE_BYTES)):
            found.erased += 1
