"""A directory as a store: objects whole or not at all, whatever the file system says."""

import errno
import threading
from pathlib import Path

import pytest

from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.testing.faultdisk import FaultDisk
from forebay.tiers.remote.store import StoreFailure, is_name
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.tiers.remote.stores.opening import open_store
from forebay.tiers.remote.stores.valkey.store import ValkeyStore

NAME = "packs/00/host/01"


def store_in(place: Path, disk: Disk | None = None) -> DirectoryStore:
    return DirectoryStore(str(place), "host", disk)


def put(store: DirectoryStore, name: str, data: bytes) -> StoreFailure | None:
    return store.put(name, [memoryview(data)])


def read(store: DirectoryStore, name: str, size: int, at: int = 0) -> bytes | StoreFailure:
    buffer = memory.allocate(size)[:size]
    count = store.get(name, at, [buffer])
    return count if isinstance(count, StoreFailure) else bytes(buffer[:count])


def test_an_object_is_what_was_put_and_may_be_replaced(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.put(NAME, [memoryview(b"%04d" % n) for n in range(2000)]) is None
    assert read(store, NAME, 9000) == b"".join(b"%04d" % n for n in range(2000))
    assert read(store, NAME, 4, at=8) == b"0002"
    assert put(store, NAME, b"other") is None
    assert read(store, NAME, 100) == b"other"
    assert list((tmp_path / ".new").iterdir()) == []


def test_a_listing_has_one_level_and_nothing_hidden(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.listing("packs") == []
    put(store, NAME, b"12345")
    (tmp_path / "packs" / "00" / "no name!").touch()
    assert [(each.name, each.size_bytes) for each in store.listing("")] == [("packs/", 0)]  # type: ignore[union-attr]
    (found,) = store.listing("packs/00/host")
    assert found == ("01", 5, (tmp_path / NAME).stat().st_mtime)
    assert [each.name for each in store.listing("packs/00/")] == ["host/"]  # type: ignore[union-attr]


def test_what_is_deleted_leaves_no_empty_directory(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    put(store, NAME, b"1")
    put(store, "packs/00/host/02", b"2")
    assert store.delete(NAME) is None
    assert (tmp_path / "packs/00/host").exists()
    assert store.delete("packs/00/host/02") is None
    assert not (tmp_path / "packs/00/host").exists()
    assert store.delete(NAME) is None, "it is gone already"
    assert read(store, NAME, 1) is StoreFailure.ABSENT


def test_what_is_no_directory_of_ours_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    store = store_in(place)
    assert put(store, NAME, b"1") is StoreFailure.ABSENT, "a missing mount is not filled"
    assert store.listing("packs") is StoreFailure.ABSENT
    assert store.delete(NAME) is StoreFailure.ABSENT
    assert read(store, NAME, 1) is StoreFailure.FAILED, "what is on it is not gone"
    assert not place.exists()
    place.mkdir()
    place.chmod(0o777)
    assert put(store, NAME, b"1") is StoreFailure.DENIED, "everybody may write there"
    place.chmod(0o700)
    (tmp_path / "outside").mkdir()
    (place / "packs").symlink_to(tmp_path / "outside")
    assert put(store, NAME, b"1") is StoreFailure.FAILED, "a link leads elsewhere"
    assert list((tmp_path / "outside").iterdir()) == []
    (tmp_path / "link").symlink_to(place)
    assert store_in(tmp_path / "link").listing("") is not None
    assert isinstance(store_in(tmp_path / "link").listing(""), StoreFailure)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("write:errno=ENOSPC", StoreFailure.FULL),
        ("write:errno=EDQUOT", StoreFailure.FULL),
        ("write:errno=EIO", StoreFailure.FAILED),
        ("open:errno=EACCES", StoreFailure.DENIED),
    ],
)
def test_a_put_that_fails_leaves_nothing(tmp_path: Path, fault: str, failure: StoreFailure) -> None:
    disk = FaultDisk()
    store = store_in(tmp_path, disk)
    put(store, "packs/00/host/00", b"before")
    armed = disk.arm(fault)
    assert put(store, NAME, b"1") is failure
    armed.disarm()
    assert list((tmp_path / ".new").iterdir()) == []
    assert not (tmp_path / NAME).exists()
    assert put(store, NAME, b"1") is None


def test_what_an_earlier_process_left_unfinished_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".new").mkdir()
    for name in ("host.7", "host.8", "hosts.7", "other.7"):
        (tmp_path / ".new" / name).write_bytes(b"unfinished")
    put(store_in(tmp_path), NAME, b"1")
    assert {path.name for path in (tmp_path / ".new").iterdir()} == {"hosts.7", "other.7"}


class Vanishing(Disk):
    """Another host removes the directory between two calls, so many times; or a listed file."""

    def __init__(self, times: int) -> None:
        self.times = times

    def move(self, source: tuple[int, str], target: tuple[int, str]) -> None:
        if self.times:
            self.times -= 1
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile")
        super().move(source, target)

    def names(self, directory: int) -> list[str]:
        return [*super().names(directory), "removed"]


def test_a_directory_that_another_host_removes_is_made_again(tmp_path: Path) -> None:
    assert put(store_in(tmp_path, Vanishing(2)), NAME, b"1") is None
    store = store_in(tmp_path, Vanishing(3))
    assert put(store, NAME, b"2") is StoreFailure.ABSENT
    assert [each.name for each in store.listing("packs/00/host")] == ["01"]  # type: ignore[union-attr]


def test_hosts_that_put_at_once_all_succeed(tmp_path: Path) -> None:
    failures: list[StoreFailure | None] = []

    def put_many(number: int) -> None:
        store = DirectoryStore(str(tmp_path), f"host{number}")
        failures.extend(put(store, f"packs/00/host{number}/{n}", b"%d" % n) for n in range(50))

    threads = [threading.Thread(target=put_many, args=[n]) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [None] * 150


@pytest.mark.parametrize("name", ["a", "packs/0f/host-1.x/000000000001"])
def test_plain_names_are_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "..", "a/../b", ".new/x", "a b", "a\0", "é"])
def test_other_names_are_none(name: str) -> None:
    assert not is_name(name)
    assert not is_name("/".join(["a"] * 9))


def test_the_store_of_a_url(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}?cap=1MiB", "host")
    assert store.put(NAME, [memoryview(b"1")]) is None
    assert isinstance(open_store("redis://cache?cap=1MiB", "host"), ValkeyStore)
