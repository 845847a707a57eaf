"""Tenants on a drive: regions of their own, quotas, turns, and forgetting."""

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import (
    CAP_BYTES,
    REGION_BYTES,
    SMALL,
    UNTIL_S,
    BadSectors,
    flip,
    open_tier,
    opened,
    overwrite,
    regions,
    until,
)

from forebay.record.forgotten import FORGOTTEN_MAX, pack_forgotten
from forebay.record.header import DEFAULT_TENANT
from forebay.record.region import RegionHeader, pack_header, unpack_header
from forebay.sys import memory
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, chain, single
from forebay.tiers.contract import DropReason, Forgotten, Removed, TierListener
from forebay.tiers.disk import Directory, DiskTier
from forebay.tiers.disk.regions import region_log
from forebay.tiers.disk.regions.audit import audit, lock_directory, unlock_directory
from forebay.tiers.disk.regions.repair import repair
from forebay.tiers.quotas import Quota

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
LENGTH = 45_000  # five fill a region
USABLE_REGIONS = (CAP_BYTES - (1 << 16)) // REGION_BYTES


def owned(tenant: bytes, label: str, length: int = LENGTH) -> Sample:
    sample = single(f"{label} of {tenant.hex()}", length)
    return replace(sample, name=replace(sample.name, tenant=tenant))


def store(tier: DiskTier, samples: Sequence[Sample]) -> Counter[str]:
    """Store one after the other; how often each thing came of it."""
    came: Counter[str] = Counter()
    for sample in samples:
        outcomes = Outcomes(tier)
        outcomes.store(sample)
        outcomes.wait()
        came["stored"] += len(outcomes.stored)
        came.update(outcomes.dropped)
    return +came


def hits(tier: DiskTier, samples: Sequence[Sample]) -> int:
    outcomes = Outcomes(tier)
    for sample in samples:
        outcomes.load(sample)
    outcomes.wait()
    return len(outcomes.hits)


def some(tenant: bytes, count: int, label: str = "some") -> list[Sample]:
    return [owned(tenant, f"{label} {number}") for number in range(count)]


def headers(place: Path) -> list[RegionHeader]:
    found = [unpack_header(path.read_bytes()[:4096]) for path in regions(place)]
    return [each for each in found if isinstance(each, RegionHeader)]


def test_t35_a_region_has_one_tenants_records_and_says_whose(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    mine, theirs, nobodys = some(A, 6), some(B, 6), some(DEFAULT_TENANT, 6)
    mixed = [sample for three in zip(mine, theirs, nobodys, strict=True) for sample in three]
    with opened(place) as tier:
        assert store(tier, mixed) == {"stored": 18}
        assert tier.held_by_tenants() == dict.fromkeys((A, B, DEFAULT_TENANT), 2 * REGION_BYTES)
    assert Counter(each.tenant for each in headers(place)) == {A: 2, B: 2, DEFAULT_TENANT: 2}
    for path in regions(place):
        content = path.read_bytes()
        owners = {s.name.tenant for s in mixed if s.payload[:64] in content}
        assert len(owners) == 1
    with opened(place) as tier:
        assert hits(tier, mixed) == 18
        assert tier.held_by_tenants() == dict.fromkeys((A, B, DEFAULT_TENANT), 2 * REGION_BYTES)


def test_a_region_with_a_damaged_header_is_still_its_tenants(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    with opened(place) as tier:
        store(tier, some(A, 5))
    overwrite(regions(place)[0], 100, b"damage")
    with opened(place) as tier:
        assert hits(tier, some(A, 5)) == 5
        assert tier.held_by_tenants() == {A: REGION_BYTES}


def repaired(place: Path) -> list[str]:
    """What is wrong with a directory; it is not, afterwards."""
    disk = Disk()
    locked = lock_directory(disk, str(place))
    try:
        found = audit(disk, locked, lambda _, __: None)
        repair(disk, locked, found)
    finally:
        unlock_directory(disk, locked)
    return [str(each) for each in found.findings]


@pytest.mark.parametrize("at", [100, 4096 + 4096 + 5])
def test_t63_a_repaired_region_is_still_its_tenants_and_forgotten_with_it(
    tmp_path: Path, at: int
) -> None:
    """Whether its header was damaged or a record."""
    place = tmp_path / "disk"
    with opened(place) as tier:
        store(tier, some(A, 5))
    overwrite(regions(place)[0], at, b"damage")
    assert len(repaired(place)) == 1
    assert [each.tenant for each in headers(place)] == [A]
    with opened(place) as tier:
        assert tier.held_by_tenants() == {A: REGION_BYTES}
        assert not tier.remember_forgotten(A)
        assert tier.forget(A, scrub=True).records == 5 - (at > 4096)
        assert not hits(tier, some(A, 5))
    assert not regions(place)


def test_t63_a_region_whose_header_names_another_tenant_is_its_records(tmp_path: Path) -> None:
    """As a repair by an older release left it."""
    place = tmp_path / "disk"
    with opened(place) as tier:
        store(tier, some(A, 5))
    overwrite(regions(place)[0], 0, pack_header(headers(place)[0]._replace(tenant=B)))
    with opened(place, BadSectors(1)) as tier:
        assert tier.held_by_tenants() == {A: REGION_BYTES}
    why = "bad region header at byte 0 (it names another tenant than its records)"
    assert repaired(place) == [f"{regions(place)[0].name}: {why}"]
    assert [each.tenant for each in headers(place)] == [A]
    assert not repaired(place)


def test_t37_caps_are_exact_and_floors_hold_while_another_floods(tmp_path: Path) -> None:
    with opened(tmp_path / "disk") as tier:
        quotas = {
            A: Quota(3 * REGION_BYTES),
            B: Quota(0, 7 * REGION_BYTES),
            DEFAULT_TENANT: Quota(),
        }
        tier.set_quotas(quotas)
        mine = some(A, 15)
        assert store(tier, mine) == {"stored": 15}
        for turn in range(20):
            store(tier, some(B, 5, f"flood {turn}"))
            store(tier, some(DEFAULT_TENANT, 5, f"flood {turn}"))
            held = tier.held_by_tenants()
            assert held[B] <= 7 * REGION_BYTES
            assert held[A] == 3 * REGION_BYTES
            assert sum(held.values()) <= USABLE_REGIONS * REGION_BYTES
        assert hits(tier, mine) == 15


def test_a_cap_below_a_region_stores_nothing_and_a_lowered_one_is_reached(tmp_path: Path) -> None:
    with opened(tmp_path / "disk") as tier:
        tier.set_quotas({A: Quota(0, REGION_BYTES - 1), B: Quota()})
        assert store(tier, some(A, 1)) == {DropReason.QUOTA: 1}
        store(tier, some(B, 20))
        tier.set_quotas({A: Quota(), B: Quota(0, REGION_BYTES)})
        while tier.held_by_tenants()[B] > REGION_BYTES:
            threading.Event().wait(0.01)  # its own thread trims it


class Gate(Disk):
    """A drive whose reads go on one by one, as a test lets them."""

    def __init__(self) -> None:
        self.is_shut = False
        self._turn = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self.is_shut:
            self.waiting.release()
            self._turn.acquire()
        return super().read(descriptor, buffers, offset)

    def let_one_go(self) -> None:
        self._turn.release()


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 4)])
def test_three_tenants_with_unequal_demand_get_equal_shares_of_reads(
    tmp_path: Path, weights: tuple[int, int, int]
) -> None:
    """Bytes served to each are within 10 % of fair, at every sample after the first few."""
    gate = Gate()
    options = replace(SMALL, read_depth=1, region_bytes=8 << 20, read_queue_max=4096)
    tier = open_tier(tmp_path / "disk", gate, options=options, cap_bytes=128 << 20)
    length = 200_000
    quotas = {t: Quota(0, None, w) for t, w in zip((A, B, C), weights, strict=True)}
    tier.set_quotas(quotas)
    samples = {tenant: owned(tenant, "the one", length) for tenant in quotas}
    store(tier, list(samples.values()))
    served: Counter[bytes] = Counter()
    lock = threading.Lock()
    gate.is_shut = True
    demand = {A: 100, B: 200, C: 400}
    ended = threading.Semaphore(0)

    def read(tenant: bytes) -> None:
        def done(_: object) -> None:
            with lock:
                served[tenant] += length
            ended.release()

        target = memory.allocate(memory.padded(length))
        tier.submit_load(samples[tenant].name, target, done, 1e12)

    for tenant, times in demand.items():
        for _ in range(times):
            read(tenant)
    total, checks = sum(demand.values()), 0
    for number in range(1, total + 1):
        gate.let_one_go()
        assert ended.acquire(timeout=60)
        backlogged = [each for each in demand if served[each] < demand[each] * length]
        if len(backlogged) == 3 and number >= 70 * sum(weights) // 3:
            fair = {each: quotas[each].weight / sum(weights) for each in demand}
            for tenant in demand:
                share = served[tenant] / served.total()
                assert abs(share - fair[tenant]) <= 0.1 * fair[tenant], (number, served)
            checks += 1
    assert checks > 50
    assert served == {tenant: times * length for tenant, times in demand.items()}
    tier.close(60)


def is_on(place: Path, samples: Sequence[Sample]) -> bool:
    files = [path.read_bytes() for path in place.iterdir()]
    return any(sample.payload[:64] in content for sample in samples for content in files)


@pytest.mark.parametrize("scrub", [False, True])
def test_a_forgotten_tenant_is_gone_and_nothing_more_is_stored_of_it(
    tmp_path: Path, scrub: bool
) -> None:
    place = tmp_path / "disk"
    mine, theirs = some(A, 12), some(B, 12)
    disk = FaultDisk()
    with opened(place, disk) as tier:
        store(tier, [*mine, *theirs])
        assert is_on(place, mine)
        assert not tier.remember_forgotten(A)
        files = [path.open("rb") for path in regions(place)]  # as a drive has them: by no name
        syncs = disk.calls["sync"]  # type: ignore[index]
        found = tier.forget(A, scrub=scrub)
        assert (found.records, found.failure) == (12, "")
        assert found.size_bytes == 3 * REGION_BYTES
        assert (disk.calls["sync"] > syncs) == scrub, "a scrub is flushed"  # type: ignore[index]
        assert not is_on(place, mine)
        for file in files:
            with file:
                content = file.read()
            assert not any(sample.payload[:64] in content for sample in mine), "wiped, too"
        assert hits(tier, mine) == 0
        assert hits(tier, theirs) == 12
        assert store(tier, some(A, 1, "late")) == {DropReason.FORGOTTEN: 1}
        assert A not in tier.held_by_tenants()
        assert tier.forget(A, scrub=scrub) == Forgotten()
    with opened(place) as tier:
        assert tier.forgotten() == {A}
        assert hits(tier, theirs) == 12


def test_t35_bytes_that_another_tenants_region_had_before_are_not_left_in_its_file(
    tmp_path: Path,
) -> None:
    """A file is wiped before another tenant has its room, so forgetting misses nothing."""
    place = tmp_path / "disk"
    mine = some(A, 5 * USABLE_REGIONS)
    with opened(place) as tier:
        tier.set_quotas({A: Quota(), B: Quota(4 * REGION_BYTES)})
        store(tier, mine)
        store(tier, some(B, 20))
        tier.remember_forgotten(A)
        tier.forget(A, scrub=False)
        assert not is_on(place, mine)
        assert hits(tier, some(B, 20)) == 20


def test_what_cannot_be_remembered_is_not_forgotten(tmp_path: Path) -> None:
    disk = FaultDisk()
    with opened(tmp_path / "disk", disk) as tier:
        store(tier, some(A, 3))
        disk.arm("rename:errno=EIO")
        assert "cannot remember it" in tier.remember_forgotten(A)
        disk.disarm()
        assert hits(tier, some(A, 3)) == 3
        assert not tier.forgotten()


def test_of_two_tenants_forgotten_at_once_both_are_remembered(tmp_path: Path) -> None:
    """One list lacked the other tenant, which the next start served again."""
    place, disk = tmp_path / "disk", FaultDisk()
    with opened(place, disk) as tier:
        store(tier, [*some(A, 5), *some(B, 5)])
        hanging = disk.arm("sync:hang@2")  # of the directory, when A's list is there
        threads = [threading.Thread(target=tier.remember_forgotten, args=[t]) for t in (A, B)]
        threads[0].start()
        until(lambda: hanging.fired == 1)
        threads[1].start()
        threads[1].join(0.1)
        hanging.disarm()
        for thread in threads:
            thread.join(60)
        assert tier.forgotten() == {A, B}
        assert store(tier, [*some(A, 1, "late"), *some(B, 1, "late")]) == {DropReason.FORGOTTEN: 2}
    with opened(place) as tier:
        assert tier.forgotten() == {A, B}
        assert not hits(tier, [*some(A, 5), *some(B, 5)])


def test_a_tenant_forgotten_twice_at_once_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waited for the other to let the regions go, and removed none."""
    monkeypatch.setattr(region_log, "_WRITES_S", 0.5)
    place, disk = tmp_path / "disk", FaultDisk()
    with opened(place, disk) as tier:
        store(tier, some(A, 12))
        tier.remember_forgotten(A)
        hanging = disk.arm("zero:hang@1")
        found: list[Forgotten] = []

        def forget() -> None:
            found.append(tier.forget(A, scrub=False))

        threads = [threading.Thread(target=forget) for _ in range(2)]
        threads[0].start()
        until(lambda: hanging.fired == 1)
        threads[1].start()
        threads[1].join(0.1)
        hanging.disarm()
        for thread in threads:
            thread.join(60)
        assert set(found) == {Forgotten(12, 3 * REGION_BYTES), Forgotten()}
        assert not regions(place)


def test_a_tenant_that_one_could_not_forget_is_forgotten_by_whoever_waits(tmp_path: Path) -> None:
    place, disk = tmp_path / "disk", FaultDisk()
    with opened(place, disk) as tier:
        store(tier, some(A, 5))
        tier.remember_forgotten(A)
        hanging = disk.arm("zero:hang@1")
        disk.arm("unlink:errno=EIO@1")
        found: list[Forgotten] = []

        def forget() -> None:
            found.append(tier.forget(A, scrub=False))

        threads = [threading.Thread(target=forget) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: hanging.fired == 1)
        hanging.disarm()
        for thread in threads:
            thread.join(60)
        assert sorted(bool(each.failure) for each in found) == [False, True]
        assert not regions(place)


def test_what_one_directory_cannot_remember_no_other_does(tmp_path: Path) -> None:
    """Else its tenant could store nothing there, and would be forgotten by the next start."""
    disk, places = FaultDisk(), [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir(mode=0o700)
    directories = [Directory(str(place), CAP_BYTES) for place in places]
    for was_stored in (0, 4):
        tier = DiskTier.open(directories, SMALL, World(disk))
        assert not tier.forgotten()
        assert hits(tier, some(A, 4)) == was_stored
        if not was_stored:
            disk.arm("rename:errno=EIO@2")
            assert "second cannot remember it" in tier.remember_forgotten(A)
            disk.disarm()
            assert store(tier, some(A, 4)) == {"stored": 4}
        tier.close(60.0)


def test_what_cannot_be_removed_is_said_and_gone_with_the_next_start(tmp_path: Path) -> None:
    place, disk = tmp_path / "disk", FaultDisk()
    mine = some(A, 12)
    with opened(place, disk) as tier:
        store(tier, mine)
        assert not tier.remember_forgotten(A)
        disk.arm("unlink:errno=EIO")
        found = tier.forget(A, scrub=False)
        assert "Input/output error" in found.failure
        assert hits(tier, mine) == 0
        disk.disarm()
    with opened(place) as tier:
        assert not is_on(place, mine)
        assert not tier.held_by_tenants()


def test_a_damaged_list_of_forgotten_tenants_is_told_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "disk"
    with opened(place) as tier:
        store(tier, some(B, 3))
        tier.remember_forgotten(A)
    flip(place / "forgotten", 8 * 20)  # a bit of the id
    with opened(place) as tier:
        assert hits(tier, some(B, 3)) == 3
        assert not tier.forgotten()
    assert "is damaged" in caplog.text


def test_a_chain_is_one_tenants(tmp_path: Path) -> None:
    samples = [
        replace(each, name=replace(each.name, tenant=A)) for each in chain("links", [LENGTH] * 8)
    ]
    with opened(tmp_path / "disk") as tier:
        assert store(tier, samples) == {"stored": 8}
        assert tier.prefix([each.name.key for each in samples]).chunks == 8


def test_at_the_next_start_nothing_is_known_of_what_could_not_be_removed(tmp_path: Path) -> None:
    place, disk = tmp_path / "disk", FaultDisk()
    mine, theirs = some(A, 12), some(B, 12)
    with opened(place) as tier:
        store(tier, [*mine, *theirs])
        assert not tier.remember_forgotten(A)
    disk.arm("unlink+zero+write:errno=EIO")
    with opened(place, disk) as tier:
        assert not any(tier.has(sample.name.key) for sample in mine)
        assert tier.usage().records == len(theirs)
        assert hits(tier, theirs) == len(theirs)


def test_a_list_that_is_full_forgets_nobody_more(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir(mode=0o700)
    names = [number.to_bytes(16, "little") for number in range(1, FORGOTTEN_MAX + 1)]
    (place / "forgotten").write_bytes(pack_forgotten(names))
    with opened(place) as tier:
        assert f"more than {FORGOTTEN_MAX} tenants" in tier.remember_forgotten(A)
        assert tier.forgotten() == frozenset(names)
        assert store(tier, some(A, 1)) == {"stored": 1}


class Leaving(TierListener):
    """Notes whose records left."""

    def __init__(self) -> None:
        self.tenants: list[bytes] = []

    def removed(self, records: list[Removed]) -> None:
        self.tenants += [each.tenant for each in records]


def test_of_what_leaves_it_is_told_whose_it_was(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    listener = Leaving()
    tier = DiskTier.open([Directory(str(tmp_path), CAP_BYTES)], SMALL, None, listener)
    for tenant in (A, DEFAULT_TENANT):
        store(tier, some(tenant, 1))
        tier.remove(some(tenant, 1)[0].name.key)
    tier.close(60.0)
    assert listener.tenants == [A, DEFAULT_TENANT]


class GatedReads(Disk):
    """A drive that reads nothing until it may."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.begun.set()
        assert self.goes_on.wait(UNTIL_S)
        return super().read(descriptor, buffers, offset)


def removed_files(place: Path) -> int:
    """Files of this directory that are removed and still have their blocks: they are open."""
    targets = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            targets.append(str(each.readlink()))
    return sum(target.startswith(str(place)) and "(deleted)" in target for target in targets)


def test_removed_files_are_closed_once_nobody_reads_them(tmp_path: Path) -> None:
    """Else they would take blocks beyond the cap for as long as the pool runs."""
    disk = GatedReads()
    with opened(tmp_path, disk) as tier:
        tier.set_quotas({A: Quota(), B: Quota()})
        first = [owned(A, f"first {number}") for number in range(5)]
        store(tier, first)
        disk.begun.clear()
        disk.goes_on.clear()
        outcomes = Outcomes(tier)
        outcomes.load(first[0])
        assert disk.begun.wait(UNTIL_S)
        tier.set_quotas({A: Quota(cap_bytes=0), B: Quota()})
        until(lambda: removed_files(tmp_path) == 1)
        for turn in range(4):  # a tenant's file is never another's
            store(tier, [owned((B, DEFAULT_TENANT)[turn % 2], f"{turn} {at}") for at in range(60)])
        until(lambda: removed_files(tmp_path) == 1)
        assert not tier.has(first[0].name.key), "the control: what is read was removed"
        disk.goes_on.set()
        outcomes.wait()
        until(lambda: removed_files(tmp_path) == 0)
