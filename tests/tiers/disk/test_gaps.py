"""A record whose chunk another tier has may be overwritten without what continues it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from tests.disk_harness import CAP_BYTES, CLOSE_S, SMALL, until

from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.conformance import load, store
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import RecordingListener
from forebay.testing.samples import NAMESPACE, Sample, chain, single
from forebay.tiers.contract import Dropped, DropReason, Hit, Miss, MissReason, Stored
from forebay.tiers.disk import Directory, DiskTier

FILLERS = (single(f"filler {n}", 60_000) for n in count())


@dataclass
class Bench:
    """A tier, and the set of chunks that a tier above it has."""

    place: Path
    disk: FaultDisk = field(default_factory=FaultDisk)
    listener: RecordingListener = field(default_factory=RecordingListener)

    def __post_init__(self) -> None:
        self.told = self.listener.gone
        self.tier = self.open()

    def open(self) -> DiskTier:
        return DiskTier.open(
            [Directory(str(self.place), CAP_BYTES)],
            SMALL,
            World(self.disk),
            self.listener,
        )

    def hold(self, *samples: Sample) -> None:
        self.listener.hold(*samples)

    def lose(self, sample: Sample) -> None:
        self.listener.held.discard(short(sample.name.key))
        self.tier.lost(sample.name.key)

    def has(self, *samples: Sample) -> list[bool]:
        return [self.tier.has(sample.name.key) for sample in samples]

    def fill(self, regions: int) -> None:
        for _ in range(4 * regions):
            assert store(self.tier, next(FILLERS)) == Stored()

    def overwrite(self, sample: Sample) -> None:
        while self.tier.has(sample.name.key):
            self.fill(1)


@pytest.fixture
def bench(swift_path: Path) -> Iterator[Bench]:
    swift_path.chmod(0o700)
    bench = Bench(swift_path)
    yield bench
    bench.tier.close(CLOSE_S)


def spread(bench: Bench, label: str, links: int) -> list[Sample]:
    """A chain with a link in every third region; its first ones are overwritten first."""
    samples = chain(label, [1000 + n for n in range(links)])
    for sample in samples:
        assert store(bench.tier, sample) == Stored()
        bench.fill(3)
    return samples


def test_what_continues_an_overwritten_record_stays_while_its_chunk_is_held(bench: Bench) -> None:
    head, tail = spread(bench, "held", 2)
    bench.hold(head)
    bench.overwrite(head)
    assert bench.has(head, tail) == [False, True]
    assert load(bench.tier, head)[0] == Miss(MissReason.ABSENT)
    assert load(bench.tier, tail) == (Hit(1001), tail.payload)
    assert [gone.length for gone in bench.told].count(1000) == 1, "the record itself has left"
    assert bench.tier.prefix([head.name.key, tail.name.key]).chunks == 0
    assert bench.tier.prefix([tail.name.key]).chunks == 1


def test_it_goes_when_the_chunk_is_lost(bench: Bench) -> None:
    head, tail = spread(bench, "lost", 2)
    bench.hold(head)
    bench.overwrite(head)
    bench.told.clear()
    bench.lose(head)
    assert bench.has(head, tail) == [False, False]
    assert [gone.length for gone in bench.told] == [1001]
    bench.lose(head)
    bench.lose(single("never seen"))


def test_it_goes_at_once_where_nobody_holds_the_chunk(bench: Bench) -> None:
    head, tail = spread(bench, "nobody", 2)
    bench.overwrite(head)
    assert bench.has(head, tail) == [False, False]


def test_losing_a_chunk_whose_record_is_here_changes_nothing(bench: Bench) -> None:
    head, tail = spread(bench, "both", 2)
    bench.hold(head)
    bench.lose(head)
    assert bench.has(head, tail) == [True, True]


def test_a_gap_is_filled_by_storing_the_record_again(bench: Bench) -> None:
    head, tail = spread(bench, "again", 2)
    bench.hold(head)
    bench.overwrite(head)
    assert store(bench.tier, head) == Stored()
    assert store(bench.tier, head) == Dropped(DropReason.DUPLICATE)
    bench.lose(head)
    assert bench.tier.prefix([head.name.key, tail.name.key]).chunks == 2
    assert load(bench.tier, head) == (Hit(1000), head.payload)


def test_a_gap_that_could_not_be_filled_is_a_gap_again(bench: Bench) -> None:
    head, tail = spread(bench, "refused", 2)
    bench.hold(head)
    bench.overwrite(head)
    fault = bench.disk.arm("write:errno=EIO")
    assert store(bench.tier, head) == Dropped(DropReason.IO_ERROR)
    fault.disarm()
    assert bench.has(head, tail) == [False, True]
    assert load(bench.tier, tail) == (Hit(1001), tail.payload)
    bench.lose(head)
    assert bench.has(head, tail) == [False, False]


def test_gaps_above_gaps_go_with_the_last_that_continues_them(bench: Bench) -> None:
    bench.hold(*chain("deep", [1000, 1001]))
    first, second, third = spread(bench, "deep", 3)
    bench.overwrite(second)
    assert bench.has(first, second, third) == [False, False, True]
    bench.tier.remove(third.name.key)
    again = Sample(second.name, 500)
    assert store(bench.tier, again) == Dropped(DropReason.ORPHAN), "no row is left above it"


def test_a_gap_stays_for_a_sibling(bench: Bench) -> None:
    head, tail = spread(bench, "twigs", 2)
    twig = Sample(type(tail.name)(NAMESPACE, 0, single("twig").name.key, head.name.key), 700)
    assert store(bench.tier, twig) == Stored()
    bench.hold(head)
    bench.overwrite(head)
    bench.tier.remove(tail.name.key)
    assert load(bench.tier, twig) == (Hit(700), twig.payload)
    bench.lose(head)
    assert bench.has(twig) == [False]


def test_an_erased_namespace_leaves_no_gap(bench: Bench) -> None:
    head, tail = spread(bench, "erased", 2)
    bench.hold(head)
    bench.overwrite(head)
    bench.tier.erase(NAMESPACE)
    assert bench.has(head, tail) == [False, False]
    assert bench.tier.usage().records == 0
    assert store(bench.tier, head) == Stored()


def test_nothing_is_held_at_a_start(bench: Bench) -> None:
    head, tail = spread(bench, "restarted", 2)
    bench.hold(head)
    bench.overwrite(head)
    bench.tier.close(CLOSE_S)
    bench.tier = bench.open()
    assert bench.has(head, tail) == [False, False]
    assert store(bench.tier, head) == Stored()
    until(lambda: store(bench.tier, tail) == Stored())
    assert load(bench.tier, tail) == (Hit(1001), tail.payload)
