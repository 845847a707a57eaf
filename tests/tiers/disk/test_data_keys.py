"""Data keys in directories: they agree, survive failures, and are gone once destroyed."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import until
from tests.encryption_harness import KEYS, ROTATED_KEYS, opened_disk

from forebay.errors import DirectoryError
from forebay.record.header import DEFAULT_TENANT, Damage
from forebay.record.keyring import DataKey, Keyring
from forebay.sys.disk import Disk
from forebay.testing.conformance.hooks import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import parse_fault
from forebay.testing.samples import single
from forebay.tiers.contract import Dropped, DropReason, Hit, Stored
from forebay.tiers.disk.regions.data_keys import (
    KEYS_MAX,
    KEYS_NAME,
    NEW_KEYS_NAME,
    DataKeys,
    KeyTable,
    checked_table,
    pack_table,
    unpack_table,
)
from forebay.tiers.disk.regions.directory import open_directory

ONE, OTHER = b"1" * 16, b"2" * 16
SAMPLE = single("keyed", 6000)


class Places:
    """Directories, and the data keys in them."""

    def __init__(self, paths: Sequence[Path], disk: Disk) -> None:
        for path in paths:
            path.mkdir(mode=0o700, exist_ok=True)
        self.disk = disk
        self.directories = [open_directory(disk, str(path)) for path in paths]

    def keys(self, ring: Keyring | None = None) -> DataKeys:
        ring = ring or Keyring(KEYS)
        found = {each: checked_table(self.disk, each, ring) for each in self.directories}
        return DataKeys(self.disk, found, ring)

    def close(self) -> None:
        for directory in self.directories:
            self.disk.close(directory.lock)
            self.disk.close(directory.descriptor)


@pytest.fixture
def disk() -> FaultDisk:
    return FaultDisk()


@pytest.fixture
def two(tmp_path: Path, disk: FaultDisk) -> Iterator[Places]:
    places = Places([tmp_path / "one", tmp_path / "two"], disk)
    yield places
    places.close()


def key_of(keys: DataKeys, tenant: bytes) -> DataKey:
    found = keys.current(tenant)
    assert found is not None
    return found


def table_in(place: Path) -> KeyTable:
    table = unpack_table((place / KEYS_NAME).read_bytes())
    assert isinstance(table, KeyTable)
    return table


def test_a_key_is_found_again_in_every_directory(two: Places, tmp_path: Path) -> None:
    keys = two.keys()
    key = key_of(keys, ONE)
    assert key_of(keys, ONE) is key
    assert key_of(keys, OTHER) != key
    assert table_in(tmp_path / "one") == table_in(tmp_path / "two")
    again = two.keys()
    assert again.find(key.id) == key
    assert again.current(ONE) == key
    assert key.secret not in (tmp_path / "one" / KEYS_NAME).read_bytes()


def test_a_directory_that_was_away_does_not_bring_a_destroyed_key_back(
    two: Places, tmp_path: Path
) -> None:
    keys = two.keys()
    key = key_of(keys, ONE)
    old = (tmp_path / "two" / KEYS_NAME).read_bytes()
    assert keys.forget(ONE)
    (tmp_path / "two" / KEYS_NAME).write_bytes(old)
    assert two.keys().find(key.id) is None
    assert table_in(tmp_path / "one") == table_in(tmp_path / "two"), "and it is not there any more"


def test_a_forgotten_tenant_gets_no_key_for_a_store_that_waited(
    two: Places, tmp_path: Path
) -> None:
    keys = two.keys()
    key_of(keys, ONE)
    kept = key_of(keys, OTHER)
    for tenant in (ONE, b"3" * 16):  # the other one had none
        keys.forget(tenant)
        assert keys.current(tenant) is None
    assert [each.tenant for each in table_in(tmp_path / "one").entries] == [OTHER]
    assert keys.current(OTHER) == kept


def test_a_directory_that_fails_keeps_no_key_from_being_used(two: Places, disk: FaultDisk) -> None:
    keys = two.keys()
    failing = disk.arm(replace(parse_fault("rename:errno=EIO"), within="two"))
    key = key_of(keys, ONE)
    with pytest.raises(OSError, match="injected"):
        keys.forget(ONE)
    assert keys.find(key.id) is None, "nobody reads under it any more"
    failing.disarm()
    assert two.keys().find(key.id) is None


def test_without_a_medium_for_keys_nothing_is_written(tmp_path: Path) -> None:
    disk = FaultDisk("rename:errno=EIO")
    with opened_disk(tmp_path / "pool", disk=disk) as tier:
        assert store(tier, SAMPLE) == Dropped(DropReason.IO_ERROR)
        disk.disarm()
        assert store(tier, SAMPLE) == Stored()
        assert isinstance(load(tier, SAMPLE)[0], Hit)


def test_t45_a_rotation_that_cannot_be_kept_leaves_all_as_it_is(
    two: Places, disk: FaultDisk
) -> None:
    keys = two.keys()
    key = key_of(keys, ONE)
    disk.arm("rename:errno=ENOSPC")
    with pytest.raises(OSError, match="injected"):
        keys.rotate()
    assert keys.current(ONE) == key
    disk.disarm()
    keys.rotate()
    assert keys.current(ONE) != key
    assert keys.find(key.id) == key


def test_a_key_whose_master_is_missing_outlives_a_rotation(two: Places) -> None:
    key = key_of(two.keys(), ONE)
    stranger = Keyring(KEYS._replace(masters=ROTATED_KEYS.masters[:1]))
    keys = two.keys(stranger)
    assert keys.find(key.id) is None
    keys.rotate()
    assert two.keys().find(key.id) == key


def test_the_oldest_retired_key_makes_room_and_a_current_one_does_not(swift_path: Path) -> None:
    places = Places([swift_path / "pool"], Disk())
    keys = places.keys()
    retired = key_of(keys, ONE)
    keys.rotate()
    for number in range(1, KEYS_MAX):
        key_of(keys, number.to_bytes(16, "big"))
    assert keys.find(retired.id) == retired
    key_of(keys, OTHER)
    assert keys.find(retired.id) is None, "room was made for another"
    assert keys.current(b"more" * 4) is None, "all others are in use"
    assert key_of(keys, OTHER)
    places.close()


def test_what_a_crash_left_is_removed(two: Places, tmp_path: Path) -> None:
    key = key_of(two.keys(), ONE)
    (tmp_path / "one" / NEW_KEYS_NAME).write_bytes(b"torn")
    assert two.keys().find(key.id) == key
    assert not (tmp_path / "one" / NEW_KEYS_NAME).exists()


def test_a_file_of_anothers_under_our_name_is_no_matter_without_encryption(tmp_path: Path) -> None:
    place = tmp_path / "pool"
    place.mkdir(mode=0o700)
    (place / KEYS_NAME).write_bytes(b"of somebody else" * 256)
    with opened_disk(place, None) as tier:
        assert store(tier, SAMPLE) == Stored()
    with pytest.raises(DirectoryError, match="is damaged"), opened_disk(place):
        pass


def test_any_bytes_are_a_table_or_damage(two: Places, tmp_path: Path) -> None:
    key_of(two.keys(), DEFAULT_TENANT)
    content = (tmp_path / "one" / KEYS_NAME).read_bytes()
    table = unpack_table(content)
    assert isinstance(table, KeyTable)
    assert pack_table(table) == content
    newer = content[:8] + b"\x09" + content[9:]
    assert unpack_table(newer) is Damage.NEWER_VERSION
    assert unpack_table(content[:-4096]) is Damage.PAYLOAD_HASH
    too_many = KeyTable(1, KEYS.check, table.entries * (KEYS_MAX + 1))
    assert unpack_table(pack_table(too_many)) is Damage.PAYLOAD_HASH


class CountedLock:
    """A lock that knows how many have wanted it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.wanted = 0

    def __enter__(self) -> None:
        self.wanted += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_threads_that_want_a_tenants_first_key_at_once_have_one_together(
    two: Places, disk: FaultDisk, tmp_path: Path
) -> None:
    keys, found, lock = two.keys(), list[DataKey](), CountedLock()
    vars(keys)["_lock"] = lock
    disk.arm("write:hang")
    threads = [threading.Thread(target=lambda: found.append(key_of(keys, ONE))) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: lock.wanted == 2)
    disk.disarm()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]
    assert len(table_in(tmp_path / "one").entries) == 1
