"""A host finds its packs again: what its index says at once, others by and by."""

import os
import signal
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import pytest
import xxhash
from tests.remote_harness import CLOSE_S, PATIENT, flip, opened_remote, packs_in, write_pack

from forebay.record.header import DEFAULT_TENANT
from forebay.sys import memory
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import load, store
from forebay.testing.conformance.hooks import eventually
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.samples import NAMESPACE, Sample, chain, single
from forebay.tiers.catalog import Catalog
from forebay.tiers.contract import Dropped, DropReason, Hit, Stored
from forebay.tiers.quotas import Quota
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import Publication, PublishedPack
from forebay.tiers.remote.io import recovering
from forebay.tiers.remote.own import OwnPacks
from forebay.tiers.remote.packs import pack_name
from forebay.tiers.remote.process import recovery
from forebay.tiers.remote.process.at_once import CALLS_AT_ONCE
from forebay.tiers.remote.process.recovery import (
    PACK_GETS_MAX,
    FoundPack,
    PacksRead,
    Recovered,
    UnreadPack,
)
from forebay.tiers.remote.process.watching import Watcher
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.tiers.remote.tier import RemoteTier

DAY_S: Final = 86_400.0
A: Final = b"a" * 16


class CountingGets(DirectoryStore):
    """Notes the names that are read, and how many reads were under way at once."""

    def __init__(self, place: Path, together: int = 1) -> None:
        super().__init__(str(place), "reader")
        self.read: list[str] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(together)

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        with self._lock:
            self.read.append(name)
            self._now += 1
            self.most = max(self.most, self._now)
        self._barrier.wait(600)
        with self._lock:
            self._now -= 1
        return super().get(name, at, buffers)


def recovered(store_: DirectoryStore) -> Recovered | StoreFailure:
    found = recovery.recover(store_, "a")
    if isinstance(found, StoreFailure):
        return found
    return msgspec.msgpack.decode(found, type=Recovered)


def listed(store_: DirectoryStore) -> Recovered:
    found = recovered(store_)
    assert isinstance(found, Recovered)
    return found


def read(store_: DirectoryStore) -> PacksRead:
    """All that has to be read."""
    unread = listed(store_).unread
    return msgspec.msgpack.decode(recovery.read(store_, "a", unread), type=PacksRead)


def put(place: Path, name: str, data: bytes) -> int:
    assert DirectoryStore(str(place), "a").put(name, [memoryview(data)]) is None
    return len(data)


def of(tenant: bytes, name: str, length: int = 5000) -> Sample:
    sample = single(name, length)
    return replace(sample, name=replace(sample.name, tenant=tenant))


def test_packs_are_listed_in_the_order_of_the_store(tmp_path: Path) -> None:
    with opened_remote(tmp_path) as tier:
        for link in chain("ordered", [3000] * 3):
            store(tier, link)
    paths = packs_in(tmp_path)
    for at, path in enumerate(reversed(paths)):
        os.utime(path, (at, at))
    (paths[0].parent / "not-ours").touch()
    (tmp_path / "packs" / "no-namespace").mkdir()
    (tmp_path / "packs" / "file").touch()
    place, order = DirectoryStore(str(tmp_path), "a"), [int(path.name, 16) for path in paths[::-1]]
    found = listed(place)
    assert [pack.sequence for pack in found.found] == order
    assert not found.unread
    (tmp_path / "hosts/a/tail").unlink()
    assert [pack.sequence for pack in listed(place).unread] == order
    assert read(place).found == found.found, "a pack says what its host has published of it"
    disk = FaultDisk("open_directory:errno=EIO")
    assert recovered(DirectoryStore(str(tmp_path), "a", disk)) is StoreFailure.FAILED
    (tmp_path / "packs" / ("00" * 32)).mkdir()
    (tmp_path / "packs" / ("00" * 32) / "a").touch()
    assert recovered(place) is StoreFailure.FAILED


@pytest.mark.parametrize("tail_entries_max", [8192, 4])
def test_what_is_published_is_not_read(tmp_path: Path, tail_entries_max: int) -> None:
    """By a tail alone, or by a snapshot and a tail."""
    options = replace(PATIENT, tail_entries_max=tail_entries_max, pack_records_max=1)
    samples = [of(tenant, f"{n}") for n, tenant in enumerate([DEFAULT_TENANT, A] * 4)]
    with opened_remote(tmp_path, options=options) as tier:
        for sample in samples:
            assert store(tier, sample) == Stored()
    counting = CountingGets(tmp_path)
    found = listed(counting)
    assert not found.unread
    assert [pack.tenant for pack in found.found].count(A) == 4
    assert set(counting.read) <= {"hosts/a/tail", "hosts/a/snapshot"}
    assert len(counting.read) == 1 + (tail_entries_max == 4)
    with opened_remote(tmp_path) as tier:
        assert tier.held_by_tenants().keys() == {DEFAULT_TENANT, A}
        assert tier.usage().used_bytes == sum(path.stat().st_size for path in packs_in(tmp_path))
        for sample in samples:
            assert load(tier, sample) == (Hit(5000), sample.payload)


def older_release(publication: Publication) -> bytes:
    """As releases before tenants were published have put it."""
    packs = publication.packs
    entries = b"".join(pack.entries for pack in packs)
    numbers = (len(packs), len(entries) // published.ENTRY_BYTES, 0, 1, 0, 0)
    head = struct.pack("<8sHHIIIQQQ", b"FOREBAYI", 1, 0, *numbers)
    rows = (
        struct.pack("<32sQI", each.namespace, each.sequence, len(each.entries) // 24)
        for each in packs
    )
    body = head + b"".join(rows) + entries
    return body + xxhash.xxh3_128_digest(body)


def test_an_older_releases_index_is_read_and_does_not_say_whose_a_pack_is(tmp_path: Path) -> None:
    with opened_remote(tmp_path) as tier:
        store(tier, of(A, "old"))
    tail = published.unpack((tmp_path / "hosts/a/tail").read_bytes())
    assert isinstance(tail, Publication)
    data = older_release(tail)
    nameless = tuple(pack._replace(tenant=b"") for pack in tail.packs)
    assert published.unpack(data) == Publication(1, packs=nameless)
    put(tmp_path, "hosts/a/tail", data)
    assert [pack.tenant for pack in read(DirectoryStore(str(tmp_path), "a")).found] == [A]


def test_an_index_is_believed_of_packs_of_its_size_alone_and_only_if_it_is_whole(
    tmp_path: Path,
) -> None:
    place, path = write_pack(tmp_path, 3)
    (found,) = read(place).found
    pack = PublishedPack(NAMESPACE, 1, found.entries)
    size = put(tmp_path, "hosts/a/snapshot", published.pack(Publication(8, packs=(pack,))))
    others = [
        Publication(1, packs=(pack._replace(entries=found.entries[:24]),)),
        Publication(1, packs=(pack._replace(sequence=2),)),
        Publication(1, 9, size),
        Publication(1, 8, size - 1),
        Publication(1, 8, published.SNAPSHOT_BYTES_MAX + 1),
    ]
    put(tmp_path, "hosts/a/tail", published.pack(Publication(1, 8, size)))
    assert listed(place).found == [found]
    for other in others:
        put(tmp_path, "hosts/a/tail", published.pack(other))
        assert [each.sequence for each in listed(place).unread] == [1]
    put(tmp_path, "hosts/a/tail", published.pack(Publication(1, 8, size)))
    for at in (1, 2):
        failing = DirectoryStore(str(tmp_path), "a", FaultDisk(f"read:errno=EIO@{at}"))
        assert recovered(failing) is StoreFailure.FAILED, "it may be there"
    with path.open("ab") as file:
        file.write(bytes(4096))
    assert [each.sequence for each in listed(place).unread] == [1]


@pytest.mark.parametrize("records", [1, 900])
def test_a_table_of_contents_is_believed_whole_or_not_at_all(tmp_path: Path, records: int) -> None:
    """Nine hundred entries are more than the first read at a pack's end has."""
    place, path = write_pack(tmp_path, records)
    (found,) = read(place).found
    assert len(found.entries) == records * published.ENTRY_BYTES
    whole = path.read_bytes()
    footer_at, contents_at = len(whole) - 4096, len(whole) - 4096 - memory.padded(records * 96)
    for at in (footer_at, footer_at + 30, contents_at):
        changed = bytearray(whole)
        changed[at] ^= 1
        path.write_bytes(changed)
        assert read(place).found[0].entries == b""
    for size in (0, 100, footer_at, footer_at + 4000):
        path.write_bytes(whole[:size])
        told = read(place)
        assert told.found[0].entries == b"" if size > 4096 else told.nobodys == [1]
    path.write_bytes(whole)
    path.rename(path.with_name("000000000002"))
    assert read(place).found[0].entries == b"", "it is another pack's"


def test_what_fails_is_told_from_what_is_damaged_and_from_what_is_gone(tmp_path: Path) -> None:
    place, path = write_pack(tmp_path, 900)
    for at in (1, 2, 3):
        failing = DirectoryStore(str(tmp_path), "a", FaultDisk(f"read:errno=EIO@{at}"))
        unread = listed(place).unread
        told = recovery.read(failing, "a", unread)
        assert msgspec.msgpack.decode(told, type=PacksRead) == PacksRead([], [], [])
    cut = [listed(place).unread[0]._replace(size_bytes=path.stat().st_size + 4096)]
    told = recovery.read(place, "a", cut)
    assert msgspec.msgpack.decode(told, type=PacksRead).found[0].entries == b""
    data = bytearray(path.read_bytes())
    data[19] ^= 1
    path.write_bytes(data)
    assert read(place) == PacksRead([], [], [1])
    data[9] ^= 1
    path.write_bytes(data)
    assert read(place) == PacksRead([], [], [], [1]), "a later release's, perhaps"
    path.unlink()
    told = recovery.read(place, "a", unread)
    assert msgspec.msgpack.decode(told, type=PacksRead) == PacksRead([], [1], [])


def test_several_packs_are_read_at_once_and_no_more_than_that(tmp_path: Path) -> None:
    with opened_remote(tmp_path, options=replace(PATIENT, pack_records_max=1)) as tier:
        for n in range(2 * CALLS_AT_ONCE):
            store(tier, single(f"many {n}"))
    (tmp_path / "hosts/a/tail").unlink()
    unread = listed(DirectoryStore(str(tmp_path), "a")).unread
    counting = CountingGets(tmp_path, together=CALLS_AT_ONCE)
    told = msgspec.msgpack.decode(recovery.read(counting, "a", unread), type=PacksRead)
    assert len(told.found) == 2 * CALLS_AT_ONCE
    assert counting.most == CALLS_AT_ONCE


# A tier that reads its packs.

BUDGET: Final = 16_000  # a call, and then a while nothing
# Hours pass at once here: no call is late for that.
TIMELESS: Final = replace(PATIENT, call_s=1e9, put_s=1e9, maintenance_s=1e9)
PACKS_MAX: Final = 4
PACKS: Final = 2 * PACKS_MAX + 2


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "PACKS_MAX", PACKS_MAX)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "store"
    found.mkdir(mode=0o700)
    return found


@pytest.fixture
def samples() -> list[Sample]:
    return [of(A if n % 2 else DEFAULT_TENANT, f"pack {n}") for n in range(PACKS)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@contextmanager
def paced(place: Path, clock: ManualClock, cap: str = "64MiB") -> Iterator[RemoteTier]:
    """A tier that reads its packs as time passes."""
    url = f"file://{place}?cap={cap}&requests={BUDGET}"
    tier = RemoteTier.open(url, "a", TIMELESS, World(clock=clock))
    try:
        yield tier
    finally:
        tier.close(CLOSE_S)


@pytest.fixture
def _unpublished(place: Path, samples: list[Sample]) -> None:
    """A host has died that had published nothing."""
    with opened_remote(
        place, options=replace(PATIENT, pack_records_max=1), cap_bytes=64 << 20
    ) as tier:
        for sample in samples:
            assert store(tier, sample) == Stored()
    (place / "hosts/a/tail").unlink()


def left(tier: RemoteTier) -> int:
    return len(tier.parts.own.unread)


def next_call(tier: RemoteTier, clock: ManualClock) -> None:
    """The next packs are read."""
    before = left(tier)
    eventually(lambda: not tier.upkeep._is_busy)
    clock.advance(DAY_S / 8)
    eventually(lambda: left(tier) < before)


def pack_reads(tier: RemoteTier) -> int:
    return tier.parts.ledger.counts["get"]


def stored_bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in packs_in(place))


@pytest.mark.usefixtures("_unpublished")
def test_a_store_is_used_while_its_packs_are_read_and_a_killed_child_loses_none(
    place: Path, samples: list[Sample], clock: ManualClock
) -> None:
    with paced(place, clock) as tier:
        assert tier.volumes()[0].is_on
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        assert tier.usage().used_bytes == stored_bytes(place), "what is unread takes room"
        assert tier.usage().records == PACKS_MAX
        eventually(lambda: not tier.upkeep._is_busy)
        known = [sample for sample in samples if tier.has(sample.name.key)]
        assert load(tier, known[0]) == (Hit(5000), known[0].payload)
        assert store(tier, single("new")) == Stored()
        eventually(lambda: not tier.upkeep._is_busy)
        pid = tier.parts.link.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not tier.volumes()[0].is_on and not tier.parts.link.is_running)
        assert left(tier) == PACKS - PACKS_MAX
        clock.advance(PATIENT.probe_interval_s)
        eventually(lambda: tier.volumes()[0].is_on)
        next_call(tier, clock)
        assert left(tier) == PACKS - 2 * PACKS_MAX
        next_call(tier, clock)
        assert left(tier) == 0
        assert tier.usage().used_bytes == stored_bytes(place)
        for sample in samples:
            assert load(tier, sample) == (Hit(5000), sample.payload)
        assert pack_reads(tier) < PACKS * PACK_GETS_MAX + 2 * PACKS, "none was read twice"
    with paced(place, clock) as tier:
        assert left(tier) == 0, "all are published now"


@pytest.mark.usefixtures("_unpublished")
def test_a_call_that_dies_is_followed_by_smaller_ones(place: Path, clock: ManualClock) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        eventually(lambda: not tier.upkeep._is_busy)
        calls, sizes, now = recovering.Recovering(tier.parts), [], clock.monotonic()
        for _ in range(3):
            request = calls.request(now)
            assert request is not None
            sizes.append(len(request.packs))
            calls.not_read(StoreFailure.FAILED)
        assert sizes == [4, 2, 1]
        assert calls.request(now) is None, "one that is as small as can be waits"
        request = calls.request(now + TIMELESS.error_window_s)
        assert request is not None
        assert len(request.packs) == 1


def published_packs(place: Path) -> int:
    tail = published.unpack((place / "hosts/a/tail").read_bytes())
    assert isinstance(tail, Publication)
    return len(tail.packs)


@pytest.mark.usefixtures("_unpublished")
def test_what_is_read_is_published_once_a_minute_and_at_once_when_little_is_left(
    place: Path, clock: ManualClock
) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        eventually(lambda: not tier.upkeep._is_busy)
        assert published_packs(place) == 0, "a sign of life"
        clock.advance(60.0)
        eventually(lambda: published_packs(place) == PACKS_MAX)
        next_call(tier, clock)
        eventually(lambda: published_packs(place) == 2 * PACKS_MAX)


@pytest.mark.usefixtures("_unpublished")
def test_packs_that_cannot_be_read_wait_behind_all_others_and_are_tried_again(
    place: Path, samples: list[Sample], clock: ManualClock
) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        eventually(lambda: not tier.upkeep._is_busy)
        first, *others = tier.parts.own.unread
        (path,) = place.glob(f"packs/*/a/{first:012x}")
        elsewhere = path.rename(place / "elsewhere")
        path.symlink_to(elsewhere)  # listed, and not to be read
        next_call(tier, clock)
        assert [*tier.parts.own.unread] == [*others[PACKS_MAX - 1 :], first]
        next_call(tier, clock)
        assert [*tier.parts.own.unread] == [first]
        errors = tier.volumes()[0].errors
        clock.advance(DAY_S / 8)
        eventually(lambda: tier.volumes()[0].errors > errors)
        assert [*tier.parts.own.unread] == [first], "what fails is not taken for damaged"
        eventually(lambda: not tier.upkeep._is_busy)
        elsewhere.rename(path)
        next_call(tier, clock)
        assert all(load(tier, sample) == (Hit(5000), sample.payload) for sample in samples)


@pytest.mark.usefixtures("_unpublished")
def test_t63_a_tenants_packs_that_are_still_unread_are_deleted_as_they_are_read(
    place: Path, samples: list[Sample], clock: ManualClock
) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        assert "still being read" in tier.forget(A, scrub=False).failure
        while left(tier):
            next_call(tier, clock)
        eventually(lambda: len(packs_in(place)) == PACKS // 2)
        assert not tier.forget(A, scrub=False).failure
        assert all(tier.has(s.name.key) == (s.name.tenant != A) for s in samples)


@pytest.mark.usefixtures("_unpublished")
def test_a_tenant_with_a_cap_stores_nothing_before_it_is_known_what_it_has(
    place: Path, clock: ManualClock
) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        tier.set_quotas({A: Quota(cap_bytes=32 << 20)})
        assert store(tier, of(A, "capped")) == Dropped(DropReason.QUOTA)
        assert store(tier, single("of nobody in particular")) == Stored()
        while left(tier):
            next_call(tier, clock)
        assert store(tier, of(A, "capped")) == Stored()


@pytest.mark.usefixtures("_unpublished")
def test_what_is_cleared_goes_read_or_unread(place: Path, clock: ManualClock) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        tier.erase(bytes(32))
        assert left(tier) == PACKS - PACKS_MAX, "that was another namespace"
        late = [FoundPack(*pack, b"") for pack in tier.parts.own.unread.values()]
        tier.erase(None)
        assert left(tier) == 0
        tier.parts.own.read(PacksRead(late, [], [late[0].sequence]))
        assert not packs_in(place)
        assert tier.usage().used_bytes == 0, "what is read after that is not taken over"


def test_what_is_gone_takes_room_until_its_deletion_is_confirmed() -> None:
    """A mount that was away is back: what it did not have a moment ago it has again."""
    own = OwnPacks("a", Catalog())
    own.expect([UnreadPack(NAMESPACE, 1, 5000)])
    own.read(PacksRead([], [1], []))
    assert (own.used_bytes, own.unread) == (5000, {})
    own.deleted(pack_name(NAMESPACE, "a", 1))
    assert own.used_bytes == 0


@pytest.mark.usefixtures("_unpublished")
def test_what_is_gone_or_nobodys_takes_no_room(place: Path, clock: ManualClock) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        eventually(lambda: not tier.upkeep._is_busy)
        gone, nobodys, *_ = tier.parts.own.unread
        (path,) = place.glob(f"packs/*/a/{gone:012x}")
        path.unlink()
        (path,) = place.glob(f"packs/*/a/{nobodys:012x}")
        data = bytearray(path.read_bytes())
        data[19] ^= 1
        path.write_bytes(data)
        while left(tier):
            next_call(tier, clock)
        eventually(lambda: not path.exists())
        eventually(lambda: tier.usage().used_bytes == stored_bytes(place))
        assert tier.usage().records == PACKS - 2


@pytest.mark.usefixtures("_unpublished")
def test_t12_packs_of_another_version_are_kept_and_take_room(
    place: Path, clock: ManualClock
) -> None:
    with paced(place, clock) as tier:
        eventually(lambda: left(tier) == PACKS - PACKS_MAX)
        eventually(lambda: not tier.upkeep._is_busy)
        other, *_ = tier.parts.own.unread
        (path,) = place.glob(f"packs/*/a/{other:012x}")
        flip(path, 9)
        while left(tier):
            next_call(tier, clock)
        assert tier.parts.own.other_versions == {other}
        assert "another format version" in tier.forget(A, scrub=False).failure
        tier.erase(None)
        assert packs_in(place) == [path]
        assert tier.usage().used_bytes == stored_bytes(place)


def test_other_hosts_are_asked_some_at_a_time_and_several_at_once(tmp_path: Path) -> None:
    hosts = 2 * CALLS_AT_ONCE
    entry = bytes(20) + (1).to_bytes(4, "little")
    for n in range(hosts):
        pack = PublishedPack(NAMESPACE, n, entry)
        put(tmp_path, f"hosts/h{n:02}/tail", published.pack(Publication(1, packs=(pack,))))
    counting = CountingGets(tmp_path, together=CALLS_AT_ONCE)
    watcher = Watcher(counting, "reader", 1000)
    assert watcher.refresh(-1, CALLS_AT_ONCE) is None, "half a round says nothing"
    assert len(counting.read) == CALLS_AT_ONCE
    found = watcher.refresh(-1, CALLS_AT_ONCE)
    assert found is not None
    assert not isinstance(found, StoreFailure)
    assert len(counting.read) == len(set(counting.read)) == hosts
    assert counting.most == CALLS_AT_ONCE
