"""What is erased is gone for good: every copy, from the records and from the tables."""

import threading
from itertools import count
from pathlib import Path

import pytest
from tests.disk_harness import open_tier, opened, regions, until

from forebay.sys import memory
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Operation
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, chain, single
from forebay.tiers.contract import Dropped, DropReason, Hit, Miss, MissReason, Stored
from forebay.tiers.disk import Options

OTHER = bytes(range(32))
ORDERLY = Options(region_bytes=1 << 16, read_depth=1, write_depth=1)


def doomed(number: int) -> Sample:
    """Two of these fill a region."""
    return single(f"doomed {number}", 18_000, OTHER)


def spared(number: int) -> Sample:
    return single(f"spared {number}", 18_000)


def records_of(place: Path, sample: Sample) -> int:
    """How many whole headers of a record lie on the medium."""
    return sum(
        content.startswith(b"FOREBAYR", at) and sample.name.key in content[at : at + 4096]
        for content in (path.read_bytes() for path in regions(place))
        for at in range(0, len(content), 4096)
    )


def test_erasing_a_namespace_leaves_no_record_of_it(swift_path: Path) -> None:
    ours, theirs = chain("ours", [5000] * 3, OTHER), single("theirs")
    with opened(swift_path) as tier:
        for sample in (*ours, theirs):
            store(tier, sample)
        assert tier.erase(OTHER) == 3
        assert tier.erase(OTHER) == 0
        assert tier.prefix([sample.name.key for sample in ours]).chunks == 0
        assert load(tier, theirs)[0] == Hit(5000)
    with opened(swift_path) as tier:
        for sample in ours:
            assert records_of(swift_path, sample) == 0
            assert isinstance(load(tier, sample)[0], Miss)
        assert load(tier, theirs)[0] == Hit(5000)


def test_erasing_everything_leaves_nothing(swift_path: Path) -> None:
    samples = [single("one"), single("two", namespace=OTHER)]
    with opened(swift_path) as tier:
        for sample in samples:
            store(tier, sample)
        assert tier.erase(None) == 2
        assert tier.usage().records == 0
        assert sum(records_of(swift_path, sample) for sample in samples) == 0


def test_an_erasure_that_the_medium_refuses_is_an_error_of_the_drive(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk) as tier:
        store(tier, single("stays"))
        disk.arm("write:errno=EIO@1")
        assert tier.erase(None) == 0
        assert tier.volumes()[0].errors == 1
        assert load(tier, single("stays"))[0] == Miss(MissReason.ABSENT)
        assert tier.erase(None) == 1, "it can be tried again"
    assert records_of(swift_path, single("stays")) == 0


def test_a_store_in_flight_while_its_namespace_is_erased_leaves_no_record(
    swift_path: Path,
) -> None:
    disk = FaultDisk()
    sample = single("in flight", namespace=OTHER)
    tier = open_tier(swift_path, disk)
    store(tier, single("first"))
    hanging = disk.arm("write:hang@1")
    outcomes = Outcomes(tier)
    outcomes.store(sample)
    until(lambda: hanging.fired == 1)
    tier.erase(OTHER)
    hanging.disarm()
    outcomes.wait()
    assert not outcomes.stored
    disk.arm("write:errno=EIO")  # it dies before it can seal
    tier.close(60)
    with opened(swift_path) as tier:
        assert load(tier, sample)[0] == Miss(MissReason.ABSENT)
        assert load(tier, single("first"))[0] == Hit(5000)


def test_a_store_in_flight_that_cannot_be_wiped_can_be_erased_again(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk) as tier:
        store(tier, spared(0))
        hanging = disk.arm("write:hang@1")
        outcomes = Outcomes(tier)
        outcomes.store(doomed(0))
        until(lambda: hanging.fired == 1)
        assert tier.erase(OTHER) == 0
        disk.arm("write:errno=EIO@1")
        hanging.disarm()
        outcomes.wait()
        assert tier.volumes()[0].errors == 1
        assert load(tier, doomed(0))[0] == Miss(MissReason.ABSENT)
        assert tier.erase(OTHER) == 1
        assert records_of(swift_path, doomed(0)) == 0


def test_an_erasure_waits_for_the_next_region(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY) as tier:
        store(tier, doomed(0))
        store(tier, doomed(1))
        hanging = disk.arm("preallocate:hang@1")
        outcomes = Outcomes(tier)
        outcomes.store(spared(0))
        until(lambda: hanging.fired == 1)
        eraser = threading.Thread(target=tier.erase, args=[OTHER])
        eraser.start()
        eraser.join(0.1)
        assert eraser.is_alive()
        hanging.disarm()
        eraser.join(60)
        outcomes.wait()
        assert records_of(swift_path, doomed(0)) == 0
        assert load(tier, spared(0))[0] == Hit(18_000)


def test_erasing_finds_older_copies_too(swift_path: Path) -> None:
    sample = single("twice", namespace=OTHER)
    with opened(swift_path) as tier:
        store(tier, sample)
        tier.remove(sample.name.key)
        store(tier, sample)
        tier.erase(OTHER)
        assert records_of(swift_path, sample) == 0


def test_erasing_goes_through_sealed_regions_and_their_tables(swift_path: Path) -> None:
    """After a restart nothing that was erased is promised, and what was spared is there."""
    everything = [make(number) for number in range(5) for make in (doomed, spared)]
    with opened(swift_path, options=ORDERLY) as tier:
        for sample in everything:
            assert store(tier, sample) == Stored()
        tier.remove(doomed(0).name.key)
        assert tier.erase(OTHER) == 5
        assert tier.erase(OTHER) == 0
    with opened(swift_path, options=ORDERLY) as tier:
        for number in range(5):
            assert records_of(swift_path, doomed(number)) == 0
            assert tier.prefix([doomed(number).name.key]).chunks == 0
            assert load(tier, spared(number)) == (Hit(18_000), spared(number).payload)
        assert tier.usage().records == 5


def test_a_table_that_cannot_be_read_saves_no_record(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY) as tier:
        for number in range(4):
            store(tier, doomed(number))
        disk.arm("read:errno=EIO@1")
        assert tier.erase(OTHER) == 4
        assert sum(records_of(swift_path, doomed(number)) for number in range(4)) == 0
    with opened(swift_path, options=ORDERLY) as tier:
        assert tier.usage().records == 0


def test_a_region_whose_sealing_failed_is_sealed_by_an_erasure(swift_path: Path) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY) as tier:
        store(tier, doomed(0))
        store(tier, spared(0))
        disk.arm("write:errno=EIO@1")  # the table of contents, when the next record needs a region
        store(tier, spared(1))
        assert tier.erase(OTHER) == 1
    writes = FaultDisk("write:errno=EIO")
    tier = open_tier(swift_path, writes, options=ORDERLY)
    assert writes.calls[Operation.WRITE] <= 1, "only the youngest is filled further"
    assert tier.prefix([doomed(0).name.key]).chunks == 0
    assert load(tier, spared(0))[0] == Hit(18_000)
    tier.close(60)


def test_what_is_stored_while_it_is_erased_is_stored_or_erased(swift_path: Path) -> None:
    """Nothing is promised that is not there, however the two meet."""
    with opened(swift_path) as tier:
        erasing = threading.Event()

        def erase() -> None:
            while not erasing.is_set():
                tier.erase(OTHER)

        eraser = threading.Thread(target=erase)
        eraser.start()
        for number in range(60):
            store(tier, single(f"contended {number}", 3000, OTHER))
        erasing.set()
        eraser.join(60)
        outcomes = Outcomes(tier)
        for number in range(60):
            outcomes.load(single(f"contended {number}", 3000, OTHER))
        outcomes.wait()
        assert outcomes.misses.keys() <= {MissReason.ABSENT}
        assert tier.usage().records == len(outcomes.hits)
        tier.erase(OTHER)
        for number in range(60):
            assert records_of(swift_path, single(f"contended {number}", 3000, OTHER)) == 0


def test_a_region_is_neither_evicted_nor_closed_under_an_erasure(swift_path: Path) -> None:
    disk = FaultDisk()
    tier = open_tier(swift_path, disk, options=ORDERLY, cap_bytes=11 << 16)
    for number in range(18):  # nine regions, which is all there may be
        store(tier, doomed(number))
    hanging = disk.arm("write:hang@1")
    eraser = threading.Thread(target=tier.erase, args=[OTHER])
    eraser.start()
    until(lambda: hanging.fired == 1)
    assert store(tier, spared(0)) == Dropped(DropReason.BUSY)
    closing = threading.Thread(target=tier.close, args=[60])
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    hanging.disarm()
    eraser.join(60)
    closing.join(60)
    assert not closing.is_alive()
    assert tier.erase(OTHER) == 0, "closed"
    assert records_of(swift_path, doomed(0)) == 0
    with opened(swift_path, options=ORDERLY, cap_bytes=11 << 16) as tier:
        outcomes = Outcomes(tier)
        for number in range(18):
            outcomes.load(doomed(number))
        outcomes.wait()
        assert outcomes.misses.keys() <= {MissReason.ABSENT}


def test_an_erasure_that_hangs_does_not_keep_the_tier_from_closing(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultDisk()
    tier = open_tier(swift_path, disk)
    store(tier, doomed(0))
    hanging = disk.arm("write:hang@1")
    eraser = threading.Thread(target=tier.erase, args=[OTHER])
    eraser.start()
    until(lambda: hanging.fired == 1)
    tier.close(0.1)
    assert "did not end in time" in caplog.text
    hanging.disarm()
    eraser.join(60)


@pytest.mark.parametrize("when", ["kill", "tear=700", "tear=1536"])
def test_a_crash_at_any_point_of_an_erasure(swift_path: Path, when: str) -> None:
    """Nothing wrong comes back, and erasing again finishes it; counted up until none is hit."""
    for n in count(1):
        place = swift_path / str(n)
        disk = FaultDisk()
        tier = open_tier(place, disk, options=ORDERLY)
        for number in range(3):
            store(tier, doomed(number))
            store(tier, spared(number))
        if when != "kill":
            disk.arm(f"write:{when}@{n}")
        # From here on nothing reaches the medium: what a killed process leaves behind.
        dying = disk.arm(f"write:errno=EIO@{n + (when != 'kill')}+")
        tier.erase(OTHER)
        tier.close(60)
        with opened(place, options=ORDERLY) as tier:
            outcomes = Outcomes(tier)
            for number in range(3):
                outcomes.load(doomed(number))
                outcomes.load(spared(number))
            outcomes.wait()
            assert {spared(number) for number in range(3)} <= set(outcomes.hits)
            tier.erase(OTHER)
            assert sum(records_of(place, doomed(number)) for number in range(3)) == 0
        with opened(place, options=ORDERLY) as tier:
            assert tier.usage().records == 3
        if not dying.fired:
            break
    assert n > 6


def bytes_of(place: Path, sample: Sample) -> int:
    """How many of a payload's pages lie in some file, be it as a record or not."""
    content = b"".join(path.read_bytes() for path in regions(place))
    pages = [sample.payload[at : at + 64] for at in range(0, sample.length - 64, 4096)]
    return sum(page in content for page in pages)


def test_what_is_erased_leaves_no_byte_of_its_payload(swift_path: Path) -> None:
    """F9: "erased", it was said, and every payload was still in the files."""
    with opened(swift_path, options=ORDERLY, cap_bytes=11 << 16) as tier:
        for number in range(7):
            store(tier, doomed(number))
            store(tier, spared(number))
        assert sum(bytes_of(swift_path, doomed(number)) for number in range(7)) > 0
        tier.erase(OTHER)
        assert sum(bytes_of(swift_path, doomed(number)) for number in range(7)) == 0
        for number in range(7):
            assert load(tier, spared(number)) == (Hit(18_000), spared(number).payload)
    with opened(swift_path, options=ORDERLY, cap_bytes=11 << 16) as tier:
        assert tier.usage().records == 7
        tier.erase(None)
        assert sum(bytes_of(swift_path, spared(number)) for number in range(7)) == 0


@pytest.mark.parametrize("count", [18, 19, 20, 23])
def test_what_was_evicted_before_is_erased_too(swift_path: Path, count: int) -> None:
    """F9: a file that is used again has the payloads of its earlier records behind the new ones."""
    with opened(swift_path, options=ORDERLY, cap_bytes=11 << 16) as tier:  # nine regions
        for number in range(18):
            store(tier, doomed(number))
        for number in range(count - 18):
            store(tier, single(f"small {number}", 3000))
        tier.erase(OTHER)
        assert sum(bytes_of(swift_path, doomed(number)) for number in range(18)) == 0
        for number in range(count - 18):
            assert load(tier, single(f"small {number}", 3000))[0] == Hit(3000)
            assert store(tier, spared(number)) == Stored()
            assert load(tier, spared(number)) == (Hit(18_000), spared(number).payload)


def test_a_record_that_is_being_written_is_not_erased_with_what_lies_around_it(
    swift_path: Path,
) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY) as tier:
        store(tier, doomed(0))
        hanging = disk.arm("write:hang@1")
        outcomes = Outcomes(tier)
        outcomes.store(spared(0))
        until(lambda: hanging.fired == 1)
        assert tier.erase(OTHER) == 1
        hanging.disarm()
        outcomes.wait()
        assert load(tier, spared(0)) == (Hit(18_000), spared(0).payload)
        assert bytes_of(swift_path, doomed(0)) == 0


def test_a_file_is_not_used_again_while_something_is_erased(swift_path: Path) -> None:
    """It may hold what has to go, and would be out of the erasure's sight."""
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY, cap_bytes=11 << 16) as tier:
        for number in range(18):
            store(tier, (doomed if number < 16 else spared)(number))
        sealed = disk.arm("read:hang@3")  # the second region's footer; the first is not pinned now
        eraser = threading.Thread(target=tier.erase, args=[OTHER])
        eraser.start()
        until(lambda: sealed.fired == 1)
        renames = disk.calls[Operation.RENAME]
        assert store(tier, spared(0)) == Stored()
        assert disk.calls[Operation.RENAME] == renames
        sealed.disarm()
        eraser.join(60)
        assert sum(bytes_of(swift_path, doomed(number)) for number in range(16)) == 0
        assert load(tier, spared(0))[0] == Hit(18_000)


def test_bytes_that_cannot_be_erased_are_an_error_and_erased_the_next_time(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultDisk()
    with opened(swift_path, disk, options=ORDERLY) as tier:
        store(tier, doomed(0))
        disk.arm("zero:errno=EIO@1")
        assert tier.erase(OTHER) == 1
        assert tier.volumes()[0].errors == 1
        assert "keeps erased bytes" in caplog.text
        assert bytes_of(swift_path, doomed(0)) > 0
        tier.erase(OTHER)
        assert bytes_of(swift_path, doomed(0)) == 0


class ZeroesItself(FaultDisk):
    """A file system with a call that zeroes a range, as drives' have; memory's has none."""

    def zero(self, descriptor: int, offset: int, size_bytes: int) -> None:
        self.zeroed = getattr(self, "zeroed", 0) + size_bytes
        path = f"/proc/self/fd/{descriptor}"
        with Path(path).open("r+b") as file:
            file.seek(offset)
            file.write(bytes(size_bytes))


def test_a_file_system_that_can_zero_a_range_is_asked_to(swift_path: Path) -> None:
    disk = ZeroesItself()
    with opened(swift_path, disk, options=ORDERLY) as tier:
        store(tier, doomed(0))
        writes = disk.calls[Operation.WRITE]
        tier.erase(OTHER)
        assert disk.calls[Operation.WRITE] == writes + 1, "the header alone"
        assert disk.zeroed > 18_000
        assert bytes_of(swift_path, doomed(0)) == 0


def test_a_sparse_region_is_given_no_blocks_by_an_erasure(swift_path: Path) -> None:
    with opened(swift_path, options=ORDERLY) as tier:
        store(tier, doomed(0))
        store(tier, spared(0))
    (region,) = regions(swift_path)
    content = region.read_bytes()
    region.unlink()
    with region.open("wb") as file:
        for at in range(0, len(content), 4096):
            if any(content[at : at + 4096]):
                file.seek(at)
                file.write(content[at : at + 4096])
        file.truncate(len(content))
    before = region.stat().st_blocks
    assert before * 512 < len(content)
    with opened(swift_path, options=ORDERLY) as tier:
        assert tier.usage().used_bytes == before * 512
        assert tier.erase(OTHER) == 1
        assert bytes_of(swift_path, doomed(0)) == 0
        assert load(tier, spared(0))[0] == Hit(18_000)
        assert region.stat().st_blocks == before
        assert store(tier, spared(1)) == Stored()
        assert len(regions(swift_path)) == 2, "nothing is added to it"


def test_an_erasure_waits_for_a_roll_and_for_another_erasure(swift_path: Path) -> None:
    """Both would put or take bytes where it looks."""
    disk = FaultDisk()
    third = bytes(range(32, 64))
    with opened(swift_path, disk, options=ORDERLY) as tier:
        for number in range(3):
            store(tier, doomed(number))
        store(tier, single("small", 3000, third))
        wiping = disk.arm("write:hang@1")
        erasers = [threading.Thread(target=tier.erase, args=[OTHER])]
        erasers[0].start()
        until(lambda: wiping.fired == 1)
        rolling = disk.arm("preallocate:hang@1")
        outcomes = Outcomes(tier)
        outcomes.store(spared(0))  # the open region is too full for it
        until(lambda: rolling.fired == 1)
        wiping.disarm()  # the first region is done; the second must wait
        erasers[0].join(0.1)
        assert erasers[0].is_alive()
        rolling.disarm()
        erasers[0].join(60)
        outcomes.wait()
        store(tier, single("more", 3000, third))
        zeroing = disk.arm("zero:hang@1")
        wiping = disk.arm("write:hang@1")
        erasers = [threading.Thread(target=tier.erase, args=[third]) for _ in range(2)]
        erasers[0].start()
        until(lambda: wiping.fired == 1 or zeroing.fired == 1)
        erasers[1].start()
        wiping.disarm()
        erasers[1].join(0.1)
        zeroing.disarm()
        for eraser in erasers:
            eraser.join(60)
            assert not eraser.is_alive()
        assert load(tier, spared(0))[0] == Hit(18_000)
        for number in range(3):
            assert bytes_of(swift_path, doomed(number)) == 0


def test_what_pads_a_record_is_nobodys(swift_path: Path) -> None:
    """F9: a slot's last page went to the drive with what another chunk had left there."""
    sample = single("padded", 5000)
    with opened(swift_path) as tier:
        source = memory.allocate(8192)
        source[:] = b"S" * 8192
        source[:5000] = sample.payload
        done: list[object] = []
        tier.submit_store(sample.name, source, 5000, done.append)
        until(lambda: done == [Stored()])
        assert regions(swift_path)[0].read_bytes().count(b"SSSS") == 0
