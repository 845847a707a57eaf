"""Data keys of the disk tier: a random key per tenant, wrapped, in every directory.

Destroying a tenant's key (`forget`) destroys all records encrypted under it. The keys lie in the
file `keys` of every directory, which is rewritten as a whole with each change; at a start the table
with the highest sequence counts, so that a directory that was away does not bring a destroyed key
back. A key is on a medium before the first record is written under it.
"""

import contextlib
import logging
import secrets
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import xxhash

from forebay.errors import DirectoryError
from forebay.record.cipher import Wrapped, unwrap, wrap
from forebay.record.header import DEFAULT_TENANT, HASH_BYTES, KEY_ID_BYTES, Damage
from forebay.record.keyring import SECRET_BYTES, DataKey, Keyring, RecordKeys
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.memory import PAGE_BYTES, padded
from forebay.sys.transfer import read_whole, write_whole
from forebay.tiers.disk.regions.directory import OpenDirectory, region_names

KEYS_NAME: Final = "keys"
NEW_KEYS_NAME: Final = "keys.new"  # the new file until it is complete
KEYS_MAX: Final = (
    256  # data keys: 32 KiB; the oldest that no new record gets is dropped for another
)
_MAGIC: Final = b"FOREBAYK"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHHIQ16s16s")  # magic, version, 0, keys, sequence, check, hash
_ENTRY: Final = struct.Struct(
    "<16s16sI12s16s32s32s16s"
)  # tenant, id, is current, 0, master, wrapped
_HASH_AT: Final = PAGE_BYTES - HASH_BYTES
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One data key, as it lies on the medium."""

    tenant: bytes
    id: bytes
    is_current: bool  # new records of the tenant are encrypted under it
    master_id: bytes
    wrapped: Wrapped

    @property
    def associated(self) -> bytes:
        return self.tenant + self.id + self.master_id


class KeyTable(NamedTuple):
    """The contents of a keys file."""

    sequence: int  # rises with every change
    check: bytes  # of the names key, see `MasterKeys.check`
    entries: tuple[_Entry, ...] = ()


def pack_table(table: KeyTable) -> bytes:
    """A file of keys."""
    entries = b"".join(
        _ENTRY.pack(each.tenant, each.id, each.is_current, b"", each.master_id, *each.wrapped)
        for each in table.entries
    )
    digest = xxhash.xxh3_128_digest(entries)
    numbers = (len(table.entries), table.sequence, table.check, digest)
    page = _HEADER.pack(_MAGIC, _VERSION, 0, *numbers).ljust(_HASH_AT, b"\0")
    page += xxhash.xxh3_128_digest(page)
    return page + entries.ljust(padded(len(entries)), b"\0")


def unpack_table(data: memoryview | bytes) -> KeyTable | Damage:
    """The contents of a keys file, or why it cannot be used. Any bytes are safe input."""
    if len(data) < PAGE_BYTES:
        return Damage.CUT
    magic, version, _, count, sequence, check, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return Damage.NOT_A_RECORD
    if version != _VERSION:
        return Damage.NEWER_VERSION
    if xxhash.xxh3_128_digest(data[:_HASH_AT]) != data[_HASH_AT:PAGE_BYTES]:  # verify: key table
        return Damage.HEADER_HASH
    packed = data[PAGE_BYTES : PAGE_BYTES + count * _ENTRY.size]
    if count > KEYS_MAX or xxhash.xxh3_128_digest(packed) != digest:  # verify: listed keys
        return Damage.PAYLOAD_HASH
    entries = tuple(
        _Entry(tenant, key_id, bool(is_current), master, Wrapped(*wrapped))
        for tenant, key_id, is_current, _, master, *wrapped in _ENTRY.iter_unpack(packed)
    )
    return KeyTable(sequence, check, entries)


def checked_table(disk: Disk, directory: OpenDirectory, keyring: Keyring | None) -> KeyTable | None:
    """The keys in a directory; a DirectoryError if its records were written with other ones.

    Also if only one side uses encryption: no record could be found, and all would be evicted.
    OSError if the file cannot be read.
    """
    found = _read_table(disk, directory)
    path = directory.path
    if keyring is None and found is Damage.NOT_A_RECORD:
        return None  # somebody else's file with this name
    if isinstance(found, Damage):
        raise DirectoryError(
            f"{path}/{KEYS_NAME} is damaged ({found}); put back a copy, or remove it and every"
            " region beside it."
        )
    if keyring is None and found is not None:
        raise DirectoryError(
            f"{path} holds encrypted records; set encryption, or name another directory."
        )
    if keyring is None:
        return None
    if found is not None and found.check != keyring.keys.check:  # verify: names key
        raise DirectoryError(
            f"{path} was written with another names key; set encryption to the keys that it was"
            " written with, or name another directory."
        )
    if found is None and region_names(disk, directory.descriptor):  # verify: nothing plain stays
        raise DirectoryError(
            f"{path} holds records that are not encrypted; remove its regions, or name another"
            " directory."
        )
    return found


def _read_table(disk: Disk, directory: OpenDirectory) -> KeyTable | Damage | None:
    """The keys in a directory; None if there are none. OSError."""
    try:
        descriptor = disk.open(
            directory.descriptor, KEYS_NAME, create=False, direct=directory.direct, write=False
        )
    except FileNotFoundError:
        return None
    try:
        buffer = memory.allocate(PAGE_BYTES + KEYS_MAX * _ENTRY.size)
        return unpack_table(buffer[: read_whole(disk, descriptor, [buffer], 0)])
    finally:
        disk.close(descriptor)


def _write_table(disk: Disk, directory: OpenDirectory, table: KeyTable) -> None:
    place = directory.descriptor
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(place, NEW_KEYS_NAME)  # left by a crash
    content = pack_table(table)
    buffer = memory.allocate(len(content))
    buffer[: len(content)] = content
    descriptor = disk.open(place, NEW_KEYS_NAME, create=True, direct=directory.direct, write=True)
    try:
        write_whole(disk, descriptor, [buffer], 0)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(place, NEW_KEYS_NAME, KEYS_NAME)
    disk.sync(place)


class DataKeys(RecordKeys):
    """The data keys of one disk tier. Any thread may call; changes wait for the media."""

    def __init__(
        self, disk: Disk, found: Mapping[OpenDirectory, KeyTable | None], keyring: Keyring
    ) -> None:
        """Take over the tables found in the directories."""
        self._disk, self._directories, self._keyring = disk, list(found), keyring
        self._lock = threading.Lock()  # guards all below, and writing; reading a dict needs none
        tables = [table for table in found.values() if table is not None]
        newest = max(tables, key=lambda table: table.sequence, default=None)
        self._table = newest or KeyTable(0, keyring.keys.check)
        self._keys: dict[bytes, DataKey] = {}  # by id
        self._current: dict[bytes, DataKey] = {}  # by tenant
        self._forgotten: set[bytes] = set()  # tenants that get no key any more
        self._take_over()
        missing = sum(each.id not in self._keys for each in self._table.entries)
        if missing:
            _log.warning(
                "%d data keys cannot be opened, since their master key is not given; what is under"
                " them is missed until it is",
                missing,
            )
        self._agree({*found.values()})

    def find(self, key_id: bytes) -> DataKey | None:
        """See RecordKeys."""
        return self._keys.get(key_id)

    def current(self, tenant: bytes) -> DataKey | None:
        """See RecordKeys. A tenant's first record waits until its key is on a medium."""
        key = self._current.get(tenant)
        if key is not None:
            return key
        with self._lock:
            if tenant in self._current:  # verify: threads make one key together
                return self._current[tenant]
            self._add(tenant)
            return self._current.get(tenant)

    def rotate(self) -> None:
        """Give new records new keys, and wrap all keys with the current master key. OSError."""
        with self._lock:
            entries = tuple(self._rewrapped(each) for each in self._table.entries)
            self._write(self._changed(entries))

    def forget(self, tenant: bytes) -> bool:
        """Destroy a tenant's keys, so that its records can never be read; False if it had none.

        It gets no new key, which a waiting store would create for nothing. OSError if a medium
        keeps the old file: then nothing is encrypted under these keys any more, and this is to be
        called again.
        """
        with self._lock:
            self._forgotten.add(tenant)
            kept = tuple(each for each in self._table.entries if each.tenant != tenant)
            if len(kept) == len(self._table.entries):
                return False
            self._write(self._changed(kept), everywhere=True)
            return True

    def _agree(self, tables: set[KeyTable | None]) -> None:
        """Make all directories have the same keys, without those of writes that were cut off."""
        for directory in self._directories:
            with contextlib.suppress(OSError):
                self._disk.unlink(directory.descriptor, NEW_KEYS_NAME)
        if tables == {self._table}:
            return
        try:
            self._write(self._changed(self._table.entries))
        except OSError as error:
            _log.warning("keys cannot be written yet (%s)", error.strerror)

    def _add(self, tenant: bytes) -> None:
        """Create a tenant's key, unless it was forgotten or no medium takes the key."""
        if tenant in self._forgotten:  # verify: no key for a forgotten tenant
            return
        secret, key_id = secrets.token_bytes(SECRET_BYTES), secrets.token_bytes(KEY_ID_BYTES)
        entry = self._wrapped(_Entry(tenant, key_id, True, b"", Wrapped(b"", b"", b"")), secret)
        entries = [*self._table.entries, entry]
        if len(entries) > KEYS_MAX:
            retired = next((each for each in entries if not each.is_current), None)
            if retired is None:
                _log.warning("there are %d tenants with keys; one more has none", KEYS_MAX)
                return
            entries.remove(retired)
        try:
            self._write(self._changed(tuple(entries)))
        except OSError as error:
            _log.warning("a new key cannot be written (%s)", error.strerror)

    def _rewrapped(self, entry: _Entry) -> _Entry:
        key = self._keys.get(entry.id)
        retired = replace(entry, is_current=False)
        return retired if key is None else self._wrapped(retired, key.secret)

    def _wrapped(self, entry: _Entry, secret: bytes) -> _Entry:
        master = self._keyring.keys.masters[0]
        entry = replace(entry, master_id=master.id)
        return replace(entry, wrapped=wrap(secret, master, entry.associated))

    def _changed(self, entries: tuple[_Entry, ...]) -> KeyTable:
        return KeyTable(self._table.sequence + 1, self._table.check, entries)

    def _write(self, table: KeyTable, *, everywhere: bool = False) -> None:
        """Write to every directory; OSError if none takes it, or `everywhere` and one does not."""
        failed: list[OSError] = []
        for directory in self._directories:
            try:
                _write_table(self._disk, directory, table)
            except OSError as error:
                failed.append(error)
        if len(failed) < len(self._directories):
            self._table = table
            self._take_over()
        if failed and (everywhere or len(failed) == len(self._directories)):
            raise failed[0]

    def _unwrapped(self, entry: _Entry) -> DataKey | None:
        master = self._keyring.keys.find(entry.master_id)
        secret = master and unwrap(entry.wrapped, master, entry.associated)
        return DataKey(entry.id, secret) if secret else None

    def _take_over(self) -> None:
        keys: dict[bytes, DataKey] = {}
        for entry in self._table.entries:
            key = self._keys.get(entry.id) or self._unwrapped(entry)
            if key is not None:
                keys[entry.id] = key
        self._keys = keys
        self._current = {
            each.tenant: keys[each.id]
            for each in self._table.entries
            if each.is_current and each.id in keys
        }


assert len(DEFAULT_TENANT) == KEY_ID_BYTES
