"""What hosts publish, and the table that others search: any bytes are safe, nothing is invented."""

import itertools
import os
import random
import shutil
from array import array
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote_harness import AGE_S, PATIENT, sweep, write_pack

from forebay.record.header import PAYLOAD_BYTES_MAX, Damage, payload_hash
from forebay.record.region import ContentsEntry
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.samples import NAMESPACE, single
from forebay.tiers.remote.index import published, table
from forebay.tiers.remote.index.others import OtherHosts
from forebay.tiers.remote.index.published import Publication, PublishedPack
from forebay.tiers.remote.index.table import RecordTable
from forebay.tiers.remote.packs import (
    Sequences,
    sequence_of,
)
from forebay.tiers.remote.process import maintenance
from forebay.tiers.remote.process.maintenance import StoreAudit
from forebay.tiers.remote.process.watching import KEPT_SPARE, Refreshed, Watcher
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore


def entry(label: str, page: int = 1, length: int = 5000) -> bytes:
    key = single(label).name.key
    return published.pack_entry(ContentsEntry(key, NAMESPACE, bytes(16), page * 4096, length, 0))


def pack_of(sequence: int, *labels: str) -> PublishedPack:
    entries = b"".join(entry(label, page) for page, label in enumerate(labels, 1))
    return PublishedPack(NAMESPACE, sequence, entries)


def test_a_publication_is_what_was_packed() -> None:
    whole = Publication(7, 5, 99, (pack_of(1, "a", "b"), pack_of(2)), (3, 4))
    assert published.unpack(published.pack(whole)) == whole
    assert published.unpack(published.pack(Publication(1))) == Publication(1)


@given(st.binary(max_size=200))
def test_any_bytes_are_no_publication(data: bytes) -> None:
    assert isinstance(published.unpack(data), Damage)


def test_a_changed_publication_says_nothing() -> None:
    data = published.pack(Publication(7, 0, 0, (pack_of(1, "a"),), (3,)))
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert isinstance(published.unpack(bytes(changed)), Damage), at
        assert isinstance(published.unpack(data[:at]), Damage), at


@pytest.mark.parametrize("length", [0, PAYLOAD_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_record_that_cannot_be_says_nothing(length: int) -> None:
    """Of a host that lies, behind a hash that is right."""
    packed = pack_of(1, "a").entries + entry("b", 2)[:-4] + length.to_bytes(4, "little")
    lie = Publication(7, packs=(PublishedPack(NAMESPACE, 1, packed),))
    assert published.unpack(published.pack(lie)) is Damage.LENGTH


@pytest.mark.parametrize("at", [12, 16, 20, 48 + 40])
def test_lengths_that_contradict_each_other_say_nothing(at: int) -> None:
    """Behind a hash that is right: of packs, entries, deleted ones, and of one pack's entries."""
    data = bytearray(published.pack(Publication(7, 0, 0, (pack_of(1, "a", "b"),), (3,)))[:-16])
    data[at] ^= 1
    whole = bytes(data) + payload_hash(bytes(data))
    assert published.unpack(whole) is Damage.LENGTH


def test_a_table_finds_every_record_and_no_other() -> None:
    packs = [pack_of(n, *(f"{n}/{each}" for each in range(20))) for n in range(1, 30)]
    found = RecordTable(memoryview(table.build([("a", packs[:9]), ("b", packs[9:])], [5])))
    assert (found.rows, found.names.deleted) == (580, [5])
    for n in range(1, 30):
        for each in range(20):
            (at,) = found.rows_of(single(f"{n}/{each}").name.key)
            row = found.record(at)
            assert row.host == ("a" if n < 10 else "b")
            assert row.place.offset == (each + 1) * 4096
            assert row.place.name == f"packs/{NAMESPACE.hex()}/{row.host}/{n:012x}"
    assert not found.rows_of(single("nothing").name.key)
    assert found.size_bytes < 580 * 22 + 29 * 16 + 200, "22 bytes a record, 16 a pack"


def test_few_rows_are_sorted_at_a_time() -> None:
    """A child serves loads while it builds a table: one call that sorts all would hold them up."""
    luck = random.Random(1)
    keys = array("Q", (luck.getrandbits(64) for _ in range(40_000)))
    parts = table.parts_to_sort(keys)
    assert sorted(row for part in parts for row in part) == [*range(40_000)]
    assert max(map(len, parts)) < 4096
    assert all(
        max(keys[row] for row in before) < min(keys[row] for row in after)
        for before, after in itertools.pairwise(parts)
    )


def test_what_proved_wrong_is_not_believed_for_a_while() -> None:
    others = OtherHosts(PATIENT)
    twice = [("a", [pack_of(1, "one", "two")]), ("b", [pack_of(2, "one")])]
    both = RecordTable(memoryview(table.build(twice, [])))
    others.learn(both, None, 0.0)
    assert others.entries == 3
    assert others.size_bytes > 0
    one, two = single("one").name.key, single("two").name.key
    others.forget_pack(1, 0.0)
    assert others.find(two) is None
    found = others.find(one)
    assert found is not None
    assert found.host == "b", "the other copy"
    others.forget(one[:16], 0.0)
    assert others.find(one) is None
    others.learn(both, both, PATIENT.forgotten_s)
    assert others.find(one) is not None
    others.learn(RecordTable(memoryview(table.build([], [1, 2]))), None, 100.0)
    assert others.find(one) is None, "it was deleted since the snapshot"
    for n in range(70_000):
        others.forget_pack(n, 100.0)
        others.forget(n.to_bytes(16, "big"), 100.0)
    assert len(others._forgotten_packs) == len(others._forgotten) == 1 << 16


@pytest.mark.parametrize("state", ["new", "deleted", "lost pack", "lost key", "bad host", "later"])
def test_a_prefix_is_as_long_as_one_by_one_says(state: str) -> None:
    """Of chains in snapshots, in tails, in both, with copies; ending anywhere, with any gap."""
    draw = random.Random(state)
    labels = [f"of {n}" for n in range(60)]
    packs = [pack_of(n, *draw.sample(labels, 20)) for n in range(1, 12)]
    tails = table.build([("a", packs[:2]), ("b", packs[2:3])], [5, 6] if state == "deleted" else [])
    snapshots = RecordTable(memoryview(table.build([("a", packs[3:7]), ("b", packs[7:])], [])))
    others = OtherHosts(replace(PATIENT, bad_records_max=1))
    others.learn(RecordTable(memoryview(tails)), snapshots, 0.0)
    keys = [single(label).name.key[:16] for label in labels]
    if state in ("lost pack", "later"):
        for n in (1, 4, 8):
            others.forget_pack(n, 0.0)
    if state in ("lost key", "later"):
        for key in draw.sample(keys, 5):
            others.forget(key, 0.0)
    if state == "bad host":
        row = next(row for row in map(others.find, keys) if row and row.host == "b")
        assert others.damaged(row, keys[0], 0.0)
    if state == "later":
        others.learn(RecordTable(memoryview(tails)), None, PATIENT.forgotten_s)
    usable = {key for key in keys if others.has(key)}
    assert 10 < len(usable) < 60
    for _ in range(200):
        chain = draw.sample(sorted(usable), draw.randrange(40) % len(usable))
        chain += draw.sample(keys, draw.randrange(5))
        at = draw.randrange(len(chain) + 1)
        rest = (n for n in range(at, len(chain)) if not others.has(chain[n]))
        assert others.prefix(chain, at) == next(rest, len(chain))


def test_keys_that_begin_alike_are_found_and_kept_apart() -> None:
    """Whoever chooses keys so that they lie together is found like all others."""
    near = [number.to_bytes(8, "little") + bytes(8) for number in range(1000)]
    entry = bytes(4) + (7).to_bytes(4, "little")
    pack = PublishedPack(NAMESPACE, 1, b"".join(key + entry for key in near[::2]))
    found = RecordTable(memoryview(table.build([("a", [pack])], [])))
    assert [bool(found.rows_of(key)) for key in near] == [True, False] * 500
    assert found.end_of_run(table.heads_of(near[::2]), 0, set()) == 500
    assert found.end_of_run(table.heads_of([*near[:400:2], near[1]]), 0, set()) == 200


def test_a_sequence_is_drawn_anew_after_so_many_packs() -> None:
    sequences = Sequences()
    drawn = [sequences.next() for _ in range(70_000)]
    assert len(set(drawn)) == 70_000
    assert drawn[1] == drawn[0] + 1
    assert sequence_of(f"{drawn[0]:012x}") == drawn[0]
    for other in ("canary", "1", "0x0000000001", "1000000000000", "00000000000A"):
        assert sequence_of(other) is None


def hosts_store(place: Path) -> DirectoryStore:
    return DirectoryStore(str(place), "reader")


def publish(store: DirectoryStore, host: str, publication: Publication, name: str = "tail") -> int:
    data = published.pack(publication)
    assert store.put(f"hosts/{host}/{name}", [memoryview(data)]) is None
    return len(data)


def found_by(refreshed: Refreshed | StoreFailure | None) -> set[str]:
    """Which of some labels are in the tables."""
    assert isinstance(refreshed, Refreshed)
    tables = [RecordTable(memoryview(each)) for each in refreshed[1:] if each is not None]
    labels = {"one", "two", "three", "four", "five"}
    return {
        label for label in labels if any(each.rows_of(single(label).name.key) for each in tables)
    }


def test_hosts_come_change_and_go(tmp_path: Path) -> None:
    store_ = hosts_store(tmp_path)
    watcher = Watcher(store_, "reader", entries_max=100)
    first = watcher.refresh(-1)
    assert found_by(first) == set()
    publish(store_, "reader", Publication(1, packs=(pack_of(9, "three"),)))
    publish(store_, "a", Publication(1, packs=(pack_of(1, "one"),)))
    assert found_by(watcher.refresh(-1)) == {"one"}, "our own is not another's"
    size = publish(store_, "a", Publication(8, packs=(pack_of(1, "one"),)), "snapshot")
    assert found_by(watcher.refresh(-1)) == {"one"}, "a snapshot that no tail names yet"
    publish(store_, "a", Publication(2, 8, size, (pack_of(2, "two"),)))
    second = watcher.refresh(-1)
    assert found_by(second) == {"one", "two"}
    assert isinstance(second, Refreshed)
    third = watcher.refresh(second.version)
    assert isinstance(third, Refreshed)
    assert third.snapshots is None, "who has it is not sent it again"
    publish(store_, "a", Publication(3, 9, size))
    assert found_by(watcher.refresh(-1)) == {"one", "two"}, "a tail before its snapshot is seen"
    for wrong in (size + 1, published.SNAPSHOT_BYTES_MAX + 1):
        publish(store_, "a", Publication(3, 9, wrong))
        assert found_by(watcher.refresh(-1)) == {"one", "two"}, "a length that cannot be"
    publish(store_, "a", Publication(4, packs=(pack_of(2, "two"),)))
    assert found_by(watcher.refresh(-1)) == {"two"}, "a host that has begun anew"
    (tmp_path / "hosts/a/tail").unlink()
    assert found_by(watcher.refresh(-1)) == set()
    publish(store_, "a", Publication(4, packs=(pack_of(2, "two"),)))
    assert found_by(watcher.refresh(-1)) == {"two"}
    shutil.rmtree(tmp_path / "hosts/a")
    assert found_by(watcher.refresh(-1)) == set()


def test_what_cannot_be_read_leaves_what_was_known(tmp_path: Path) -> None:
    disk = FaultDisk()
    watcher = Watcher(DirectoryStore(str(tmp_path), "reader", disk), "reader", 100)
    publish(hosts_store(tmp_path), "a", Publication(1, packs=(pack_of(1, "one"),)))
    assert found_by(watcher.refresh(-1)) == {"one"}
    armed = disk.arm("read:errno=EIO")
    assert found_by(watcher.refresh(-1)) == {"one"}
    armed.disarm()
    (tmp_path / "hosts/a/tail").write_bytes(b"other bytes")
    assert found_by(watcher.refresh(-1)) == {"one"}
    disk.arm("open_directory:errno=EIO")
    assert watcher.refresh(-1) is StoreFailure.FAILED


def test_no_more_is_known_than_may_be(tmp_path: Path) -> None:
    store_ = hosts_store(tmp_path)
    size = publish(store_, "a", Publication(8, packs=(pack_of(1, "one", "x"),)), "snapshot")
    publish(store_, "a", Publication(1, 8, size, (pack_of(2, "two"),)))
    assert found_by(Watcher(store_, "reader", 3).refresh(-1)) == {"one", "two"}
    assert found_by(Watcher(store_, "reader", 2).refresh(-1)) == {"two"}
    assert found_by(Watcher(store_, "reader", 0).refresh(-1)) == set()


def test_hosts_that_publish_too_much_take_neither_memory_nor_the_place_of_others(
    tmp_path: Path,
) -> None:
    store_ = hosts_store(tmp_path)
    size = publish(store_, "a", Publication(8, packs=(pack_of(1, "one"),)), "snapshot")
    publish(store_, "a", Publication(1, 8, size, (pack_of(2, "two"),)))
    huge = (PublishedPack(NAMESPACE, 100, bytes(published.ENTRY_BYTES * 2 * KEPT_SPARE)),)
    size = publish(store_, "b", Publication(9, packs=huge), "snapshot")
    publish(store_, "b", Publication(1, 9, size, (pack_of(3, "three"),)))
    publish(store_, "c", Publication(1, packs=huge))
    publish(store_, "ca", Publication(1, deleted=tuple(range(2 * KEPT_SPARE))))
    publish(store_, "d", Publication(1, packs=(pack_of(4, "four"),)))
    watcher = Watcher(store_, "reader", 20)
    for _ in range(3):
        assert found_by(watcher.refresh(-1)) == {"one", "two", "four"}
        kept = (*watcher._tails.values(), *watcher._snapshots.values())
        assert sum(len(pack.entries) for each in kept for pack in each.packs) < 1000
    size = publish(store_, "b", Publication(10, packs=(pack_of(5, "five"),)), "snapshot")
    publish(store_, "b", Publication(1, 10, size, (pack_of(3, "three"),)))
    found = found_by(watcher.refresh(-1))
    assert found == {"one", "two", "three", "four", "five"}, "what fits is taken"


def test_a_probe_believes_only_what_comes_back(tmp_path: Path) -> None:
    disk = FaultDisk()
    store_ = DirectoryStore(str(tmp_path), "a", disk)
    assert maintenance.probe(store_, "a") is None
    for fault, failure in (
        ("write:errno=ENOSPC", StoreFailure.FULL),
        ("read:errno=EIO", StoreFailure.FAILED),
        ("read:flip=1", StoreFailure.FAILED),
    ):
        armed = disk.arm(fault)
        assert maintenance.probe(store_, "a") is failure
        armed.disarm()


def test_an_audit_says_what_is_there_or_nothing(tmp_path: Path) -> None:
    write_pack(tmp_path, 1)
    disk = FaultDisk()
    store_ = DirectoryStore(str(tmp_path), "a", disk)
    publish(store_, "a", Publication(1))

    def audited() -> StoreAudit | StoreFailure:
        found = maintenance.audit(store_, "a")
        if isinstance(found, StoreFailure):
            return found
        return msgspec.msgpack.decode(found, type=StoreAudit)

    found = audited()
    assert isinstance(found, StoreAudit)
    assert [pack.sequence for pack in found.packs] == [1]
    assert (found.has_tail, found.has_snapshot, found.has_forgotten) == (True, False, False)
    armed = disk.arm("read:errno=EIO")
    assert audited() is StoreFailure.FAILED, "what cannot be read may be there"
    armed.disarm()
    (tmp_path / "packs").rename(tmp_path / "moved")
    assert audited() == StoreAudit(True, False, [], has_forgotten=False)
    tmp_path.chmod(0o777)
    assert audited() is StoreFailure.DENIED


def age(path: Path, seconds: float) -> None:
    for each in path.rglob("*"):
        if each.is_file():
            modified = each.stat().st_mtime - seconds
            os.utime(each, (modified, modified))


def test_t62_what_dead_hosts_left_is_deleted_by_the_stores_clock_alone(tmp_path: Path) -> None:
    store_ = hosts_store(tmp_path)
    luck = random.Random(1)
    for host in ("reader", "alive", "dead", "unpublished"):
        for name in ("packs/00/{}/01", "packs/11/{}/02"):
            store_.put(name.format(host), [memoryview(luck.randbytes(10))])
        if host != "unpublished":
            publish(store_, host, Publication(1))
    assert sweep(store_, "nobody") == 0, "who has no tail knows no time"
    assert sweep(store_, "reader") == 0
    for where in ("hosts/dead", "packs/00/dead", "packs/00/unpublished", "packs/00/alive"):
        age(tmp_path / where, 2 * AGE_S)
    age(tmp_path / "packs/11", 2 * AGE_S)
    disk = FaultDisk("open_directory:errno=EIO@5")
    failing = DirectoryStore(str(tmp_path), "reader", disk)
    assert sweep(failing, "reader") is StoreFailure.FAILED
    assert (tmp_path / "hosts/dead/tail").exists(), "who is not seen may be alive"
    assert sweep(store_, "reader") == 5
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*/*/*")}
    assert left == {
        "packs/00/alive/01",
        "packs/00/reader/01",
        "packs/11/alive/02",
        "packs/11/reader/02",
    }
    assert not (tmp_path / "hosts/dead").exists()


def test_t62_a_host_whose_own_date_is_wrong_sweeps_nobody_who_gives_a_sign(tmp_path: Path) -> None:
    """On a file system that notes a client's time, by which everybody else seems long dead."""
    store_, clock = hosts_store(tmp_path), ManualClock(1.0)
    watch = maintenance.HostWatch(clock)
    for host in ("alive", "dead"):
        store_.put(f"packs/00/{host}/01", [memoryview(b"pack")])
        publish(store_, host, Publication(1))
    age(tmp_path / "hosts", 3 * AGE_S)
    age(tmp_path / "packs", 3 * AGE_S)
    publish(store_, "reader", Publication(1))  # three days ahead
    for number in range(4):
        assert sweep(store_, "reader", watch) == 0, "nobody was watched for long enough"
        clock.advance(AGE_S / 8)
        publish(store_, "alive", Publication(number))
        age(tmp_path / "hosts/alive", 4 * AGE_S)  # its date is wrong, too, and goes back
        if number == 1:
            assert sweep(store_, "reader", watch) == 2, "the one that gave no sign"
    assert (tmp_path / "packs/00/alive/01").exists()
    assert not (tmp_path / "packs/00/dead").exists()
