"""Audits a directory that no pool is using: reads and verifies every record, changes nothing.

Unlike a warm start, it does not believe tables of contents. It holds the directory's lock, so that
no pool can start in it. `repair.py` drops what is found damaged here.
"""

import errno
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from forebay.errors import DirectoryError
from forebay.record import region as layout
from forebay.record.header import DEFAULT_TENANT, Damage, RecordHeader, record_bytes
from forebay.sys.disk import Disk, printable
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.disk.regions.data_keys import KEYS_NAME, NEW_KEYS_NAME
from forebay.tiers.disk.regions.directory import (
    LOCK_NAME,
    generation_in,
    has_foreign_lock,
    region_names,
)
from forebay.tiers.disk.regions.forgotten import FORGOTTEN_NAMES
from forebay.tiers.disk.regions.reader import RegionReader

_AT_ONCE: Final = 4  # regions
_NOT_OURS_BUT_FINE: Final = {LOCK_NAME, KEYS_NAME, NEW_KEYS_NAME, "lost+found", *FORGOTTEN_NAMES}
_SAFE_MODE: Final = 0o700


class FindingKind(StrEnum):
    """What can be wrong."""

    RECORD = "damaged record"
    CONTENTS = "bad table of contents"
    HEADER = "bad region header"
    SIZE = "wrong size"
    UNREADABLE = "unreadable"
    MODE = "unsafe mode"
    FOREIGN = "foreign file"
    NEWER = "another format version"


class Finding(NamedTuple):
    """One thing that is wrong."""

    kind: FindingKind
    file: str  # file name; "." is the directory itself
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
    tenant: bytes = DEFAULT_TENANT  # the tenant of its sound records, or of its header
    is_ours: bool = True  # it is neither foreign nor of another version
    records: int = 0  # sound
    erased: int = 0  # deleted on purpose
    payload_bytes: int = 0  # of sound records
    contents: bytearray = field(default_factory=bytearray)  # entries of sound records
    end: int = layout.FIRST_RECORD  # where a table of contents may begin
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: FindingKind, why: str, offset: int | None = None) -> None:
        """Note one thing that is wrong."""
        self.findings.append(Finding(kind, self.name, why, offset))

    def add_record(self, header: RecordHeader, offset: int) -> None:
        """Note a sound record."""
        if not self.records:
            self.tenant = header.name.tenant
        self.records += 1
        self.payload_bytes += header.length
        self.contents += layout.pack_entry(header, offset)
        self.end = offset + record_bytes(header.length)


@dataclass(frozen=True, slots=True)
class Audit:
    """What one directory holds."""

    regions: tuple[RegionAudit, ...]
    others: tuple[Finding, ...]  # of the directory and of files that are no regions

    @property
    def findings(self) -> list[Finding]:
        """All that is wrong."""
        return [*self.others, *(finding for region in self.regions for finding in region.findings)]


class LockedDirectory(NamedTuple):
    """A directory whose lock this process holds."""

    descriptor: int  # locked
    lock: int | None  # the lock file, locked too; None: there is none


def lock_directory(disk: Disk, path: str) -> LockedDirectory:
    """Lock a directory without writing to it; a DirectoryError says why that failed."""
    try:
        descriptor = disk.open_directory(path)
    except OSError as error:
        raise DirectoryError(f"{path} cannot be checked ({error.strerror}).") from None
    try:
        _take(disk, path, descriptor)  # verify: audited directory's lock
        return LockedDirectory(descriptor, _lock(disk, path, descriptor))
    except DirectoryError:
        disk.close(descriptor)
        raise


def unlock_directory(disk: Disk, locked: LockedDirectory) -> None:
    """Let pools use the directory again."""
    for descriptor in locked:
        if descriptor is not None:
            disk.close(descriptor)


def _lock(disk: Disk, path: str, directory: int) -> int | None:
    lock = None
    try:
        if not has_foreign_lock(disk, directory):
            lock = disk.open(directory, LOCK_NAME, create=False, direct=False, write=False)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DirectoryError(
            f"{path} cannot be locked ({error.strerror}); run this as its owner."
        ) from None
    if lock is None:
        if not region_names(disk, directory):
            raise DirectoryError(
                f"{path} holds no regions of Forebay; name a directory that a pool has used."
            )
        return None
    try:
        _take(disk, path, lock)
    except DirectoryError:
        disk.close(lock)
        raise
    return lock


def _take(disk: Disk, path: str, descriptor: int) -> None:
    if not disk.try_lock(descriptor):
        raise DirectoryError(f"{path} is in use by a pool; stop it first.")


def audit(disk: Disk, locked: LockedDirectory, on_bytes: Callable[[int, int], None]) -> Audit:
    """Verify every record; `on_bytes` is called here with the bytes done and the bytes in all."""
    names = [name for _, name in region_names(disk, locked.descriptor)]
    others = list(_others(disk, locked.descriptor, set(names)))
    done = 0
    regions = []
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="forebay-audit")
    try:
        for number, region in enumerate(
            pool.map(lambda name: _region(disk, locked.descriptor, name), names), start=1
        ):
            regions.append(region)
            done += region.size_bytes
            on_bytes(done, done * len(names) // number)
    finally:
        pool.shutdown(cancel_futures=True)
    return Audit(tuple(regions), tuple(others))


def _others(disk: Disk, directory: int, regions: set[str]) -> Iterator[Finding]:
    mode = disk.status(directory).mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Finding(FindingKind.MODE, ".", f"mode {stat.S_IMODE(mode):o}: others can write here")
    if has_foreign_lock(disk, directory):
        yield Finding(FindingKind.FOREIGN, LOCK_NAME, "not a file")
    for name in sorted(set(disk.names(directory)) - regions - _NOT_OURS_BUT_FINE):
        yield Finding(FindingKind.FOREIGN, printable(name), "not of Forebay")


def open_region(disk: Disk, directory: int, name: str, *, write: bool) -> int:
    """Open a region file, with O_DIRECT if the file system has it."""
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
        found.add(FindingKind.UNREADABLE, error.strerror or "cannot be opened")
        return found
    try:
        _inspect(disk, descriptor, found)
    except OSError as error:
        found.add(FindingKind.UNREADABLE, error.strerror or "cannot be read")
    finally:
        disk.close(descriptor)
    return found


def _inspect(disk: Disk, descriptor: int, found: RegionAudit) -> None:
    status = disk.status(descriptor)
    if not stat.S_ISREG(status.mode):
        found.is_ours = False
        found.add(FindingKind.FOREIGN, "not a file")
        return
    if status.mode & ~_SAFE_MODE & 0o777:
        found.add(FindingKind.MODE, f"mode {stat.S_IMODE(status.mode):o}, where 600 is safe")
    # Only whole pages are looked at, even if the file ends within one.
    size_bytes = status.size_bytes - status.size_bytes % PAGE_BYTES
    if size_bytes > layout.REGION_BYTES_MAX:  # verify: audited size
        found.is_ours = False
        found.add(FindingKind.FOREIGN, f"{size_bytes} bytes, larger than a region can be")
        return
    found.size_bytes = size_bytes
    reader = RegionReader(disk, descriptor, found.size_bytes)
    head = reader.first_page()
    header = layout.unpack_header(head)
    if header is Damage.NEWER_VERSION:
        found.is_ours = False
        found.add(FindingKind.NEWER, "written by another Forebay, left alone")
        return
    if not isinstance(header, Damage):
        found.generation, found.tenant = header.generation, header.tenant
        if header.size_bytes != found.size_bytes:
            found.add(
                FindingKind.SIZE,
                f"{status.size_bytes} bytes long, its header says {header.size_bytes}",
            )
    is_possible = found.generation <= layout.GENERATION_MAX and header is not Damage.GENERATION
    if is_possible and found.size_bytes > PAGE_BYTES:
        _records(reader, found)
    if isinstance(header, Damage):
        _judge_header(found, header, head)
    elif header.tenant != found.tenant:
        found.add(FindingKind.HEADER, "it names another tenant than its records", 0)


def _judge_header(found: RegionAudit, damage: Damage, head: memoryview) -> None:
    """The region's first page is unusable: what else was found tells what the file is."""
    is_cut = damage is Damage.CUT and layout.begins_region(head)
    if found.records or is_cut or damage in {Damage.HEADER_HASH, Damage.GENERATION}:
        found.add(FindingKind.HEADER, damage, 0)
    elif any(head):  # a blank one was never used: the next start removes it
        found.is_ours = False
        found.findings[:] = [Finding(FindingKind.FOREIGN, found.name, "not a region of Forebay")]


def _records(reader: RegionReader, found: RegionAudit) -> None:
    footer = reader.size_bytes - PAGE_BYTES
    try:
        table = reader.table(found.generation)
    except OSError as error:
        found.add(FindingKind.UNREADABLE, error.strerror or "cannot be read", footer)
        table = None
    if isinstance(table, Damage):
        found.add(FindingKind.CONTENTS, table, footer)
        table = None
    for at, record in reader.records(found.generation, table):
        match record:
            case RecordHeader():
                found.add_record(record, at)
            case OSError():
                found.add(FindingKind.UNREADABLE, record.strerror or "cannot be read", at)
            case None:
                found.erased += 1
            case _ if table is not None:
                found.add(FindingKind.RECORD, record, at)
            case _:
                found.add(FindingKind.RECORD, f"{record}, or its write was cut off", at)
    if table is not None:
        found.end = table.end
