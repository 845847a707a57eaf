"""A store's requests: all are counted, and a day sees no more of them than it may."""

import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.counting_child import held_by, noted_in
from tests.remote_harness import CLOSE_S, PATIENT

from forebay.sys import memory
from forebay.sys.world import World
from forebay.terms import S3_STANDARD, StorePrices
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import load, store
from forebay.testing.conformance.hooks import HANG_S, eventually
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    Hit,
    LoadOutcome,
    Miss,
    MissReason,
    Stored,
    VolumeProbe,
)
from forebay.tiers.remote.accounting.ledger import (
    COUNTS_BYTES,
    SPENT_BYTES,
    Ledger,
    RequestCounts,
    counts_of,
)
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.process.counting import CountedStore
from forebay.tiers.remote.process.link import Link
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.tiers.remote.tier import RemoteTier

ROOT: Final = Path(__file__).parent.parent.parent.parent
BUDGET: Final = 1000
CAP_BYTES: Final = 1 << 20
DAY_S: Final = 86_400.0
START: Final = 3  # requests of a start on a day that is over: a probe's two, and what was spent
OPTIONS: Final = replace(PATIENT, pack_records_max=1)


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    counting = partial(Link, module="tests.counting_child")
    monkeypatch.setattr("forebay.tiers.remote.tier.Link", counting)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "store"
    found.mkdir(mode=0o700)
    return found


@contextmanager
def budgeted(
    place: Path,
    clock: ManualClock,
    more: str = f"&requests={BUDGET}",
    options: RemoteOptions = OPTIONS,
) -> Iterator[RemoteTier]:
    url = f"file://{place}?cap={CAP_BYTES}{more}"
    tier = RemoteTier.open(url, "a", options, World(clock=clock))
    try:
        yield tier
    finally:
        tier.close(CLOSE_S)


def made(place: Path) -> Counter[str]:
    """The requests that were really made."""
    path = noted_in(place)
    return Counter(path.read_text() if path.exists() else "")


def taken_bytes(place: Path) -> int:
    sizes = []
    for path in place.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:
            continue  # renamed or deleted meanwhile
    return sum(sizes)


def known_to_store(place: Path) -> int:
    data = (place / "hosts/a/spent").read_bytes()
    assert len(data) == SPENT_BYTES
    return int.from_bytes(data[-8:], "little")


def flood(tier: RemoteTier, place: Path) -> Sample:
    """Store until the tier takes no more; the last that it took."""
    last = None
    for number in range(2 * BUDGET):
        sample = single(f"flood {number}", 60_000)
        outcome = store(tier, sample)
        if outcome == Dropped(DropReason.TIER_OFF):
            break
        assert outcome == Stored()
        last = sample
        if not number % 20:
            total = made(place).total()  # before the store is looked at: it only rises
            assert total <= known_to_store(place) <= BUDGET
            assert taken_bytes(place) <= CAP_BYTES
    assert last is not None
    return last


def test_a_flood_stays_under_the_cap_and_under_the_budget_stores_first(place: Path) -> None:
    clock = ManualClock(1000.0)
    with budgeted(place, clock) as tier:
        eventually(tier.takes_stores)
        last = flood(tier, place)
        assert not tier.takes_stores()
        assert BUDGET // 2 < made(place).total() <= 3 * BUDGET // 4
        outcomes: list[LoadOutcome] = []
        while not outcomes or isinstance(outcomes[-1], Hit):
            outcomes.append(load(tier, last)[0])
            assert made(place).total() <= BUDGET
        assert outcomes[-1] in (Miss(MissReason.BUDGET), Miss(MissReason.ABSENT))
        assert len(outcomes) > BUDGET // 5, "loads have the rest of the day to themselves"
        assert tier.prefix([last.name.key]).chunks == 0
        assert tier.has(last.name.key)
        assert tier.length_of(last.name.key) is None
        assert tier.off_reason() is MissReason.BUDGET
        tail = (place / "hosts/a/tail").stat().st_mtime_ns
        eventually(lambda: tier.upkeep.is_idle)  # what is in flight would be late
        clock.advance(OPTIONS.host_age_s / 8)
        eventually(lambda: (place / "hosts/a/tail").stat().st_mtime_ns > tail)
        eventually(lambda: tier.upkeep.is_idle)
        (volume,) = tier.volumes()
        assert volume.is_on
        assert volume.use is not None
        assert volume.use.budget == BUDGET
        assert dict(volume.use.requests) == {
            kind: made(place)[kind[0]] for kind in ("put", "get", "list", "delete")
        }
    with budgeted(place, clock) as again:
        eventually(again.upkeep.begun.is_set)
        assert not again.volumes()[0].is_on, "the same day goes on"
        assert made(place).total() <= BUDGET + START
        clock.advance(DAY_S)
        eventually(again.takes_stores)
        assert again.prefix([last.name.key]).chunks == 1
        assert store(again, single("next day")) == Stored()
    assert made(place).total() <= 2 * BUDGET


def test_what_is_cleared_is_deleted_though_nothing_is_stored_any_more(place: Path) -> None:
    with budgeted(place, ManualClock(1000.0)) as tier:
        eventually(tier.takes_stores)
        flood(tier, place)
        kept = tier.usage().records
        assert kept
        assert tier.erase(None) == kept
        assert not list(place.glob("packs/*/*/*"))


def test_where_the_count_cannot_be_read_the_store_is_tried_later(place: Path) -> None:
    clock, in_the_way = ManualClock(1000.0), place / "hosts/a/spent"
    in_the_way.mkdir(parents=True)
    with budgeted(place, clock) as tier:
        eventually(tier.upkeep.begun.is_set)
        assert not tier.volumes()[0].is_on
        in_the_way.rmdir()
        clock.advance(OPTIONS.probe_interval_s)
        eventually(tier.takes_stores)
        assert store(tier, single("counted after all")) == Stored()


def test_t47_audits_and_sweeps_of_many_packs_have_a_small_share_of_the_budget(
    place: Path,
) -> None:
    for host in range(20):
        (place / "packs" / f"{host:02}" / "other").mkdir(parents=True)
    clock, options = ManualClock(1000.0), replace(OPTIONS, audit_s=1.0, sweep_s=1.0)
    with budgeted(place, clock, options=options) as tier:
        eventually(tier.takes_stores)
        for _ in range(40):
            clock.advance(60.0)
            time.sleep(0.03)
            eventually(lambda: tier.upkeep.is_idle)
        assert tier.parts.ledger.counts["list"] > 20, "each was done"
        assert tier.parts.ledger.spent_on(1) < BUDGET / 4


def test_a_probe_of_health_says_that_requests_are_used_up(place: Path) -> None:
    told: queue.SimpleQueue[VolumeProbe] = queue.SimpleQueue()
    with budgeted(place, ManualClock(1000.0)) as tier:
        eventually(tier.takes_stores)
        tier.probe(told.put)
        assert told.get(timeout=HANG_S).failure == ""
        tier.parts.ledger.add(RequestCounts(gets=BUDGET), 1000.0, 1)
        tier.probe(told.put)
        assert told.get(timeout=HANG_S).failure == MissReason.BUDGET


def test_what_maintenance_may_ask_for_is_held_back_until_it_has_ended(place: Path) -> None:
    clock = ManualClock(1000.0)
    with budgeted(place, clock) as tier:
        parts, ledger = tier.parts, tier.parts.ledger
        eventually(lambda: parts.last_maintenance.lists > 1)  # a sweep: the last of a start
        eventually(lambda: tier.upkeep.is_idle and ledger.to_persist(clock.day()) is None)
        before = parts.room()
        assert before == ledger.room(clock.day()) > 2
        held_by(place).touch()
        clock.advance(OPTIONS.refresh_s)
        eventually(lambda: not tier.upkeep.is_idle)
        meanwhile, fits, uncounted = parts.room(), parts.allows(2), ledger.room(clock.day())
        held_by(place).unlink()
        hosts = (before - 1) // 2
        assert meanwhile == before - 1 - 2 * hosts
        assert not fits
        assert uncounted == before
        eventually(lambda: parts.room() == ledger.room(clock.day()) != before)


def test_without_a_budget_all_is_counted_and_nothing_is_kept(place: Path) -> None:
    prices = "&prices=1:0.5:0.023:2"
    with budgeted(place, ManualClock(1000.0), prices) as tier:
        sample = single("counted")
        assert store(tier, sample) == Stored()
        assert load(tier, sample)[0] == Hit(5000)
        eventually(lambda: tier.upkeep.is_idle)
        use = tier.volumes()[0].use
        assert use is not None
        assert dict(use.requests) == {
            kind: made(place)[kind[0]] for kind in ("put", "get", "list", "delete")
        }
        assert (use.today, use.budget) == (made(place).total(), 0)
        assert use.sent_bytes > 8192
        assert use.received_bytes > 8192
        assert use.dollars_a_day > 0
    assert not (place / "hosts/a/spent").exists()


def test_several_calls_of_a_store_are_counted_once_each(place: Path) -> None:
    noted = memory.allocate(COUNTS_BYTES)
    counted = CountedStore(DirectoryStore(str(place), "a"))
    counted.begin(noted)
    buffer = memory.allocate(100)[:100]
    assert counted.put("packs/00/a/01", [memoryview(b"ab"), memoryview(b"c")]) is None
    assert counted.get("packs/00/a/01", 0, [buffer]) == 3
    assert counted.get("packs/00/a/02", 0, [buffer]) is StoreFailure.ABSENT
    assert counts_of(noted) == RequestCounts(puts=1, gets=2, sent_bytes=3, received_bytes=3)
    memory.zero(noted)
    assert counted.delete("packs/00/a/01") is None
    assert counted.listing("packs/00/a") == []
    place.chmod(0o777)
    assert counted.listing("packs/00/a") is StoreFailure.DENIED
    assert counts_of(noted) == RequestCounts(lists=2, deletes=1)


# The ledger by itself.


def test_dollars_a_day_are_of_requests_reads_and_what_is_kept() -> None:
    ledger = Ledger(S3_STANDARD, 0, now=0.0)
    ledger.add(RequestCounts(puts=500, lists=500, gets=10_000, deletes=99), 1800.0, 1)
    assert ledger.dollars_a_day(0, 3600.0) == pytest.approx(24 * 0.009), "at the rate of an hour"
    assert ledger.dollars_a_day(0, DAY_S - 1) == pytest.approx(0.009, rel=1e-4), "of a day"
    assert ledger.dollars_a_day(0, 2 * DAY_S) == 0, "of the last 24 hours"
    assert ledger.dollars_a_day(30 * 10**12, 2 * DAY_S) == pytest.approx(23.0)
    reads = Ledger(StorePrices(read_gb=0.09), 0, now=0.0)
    reads.add(RequestCounts(gets=1, received_bytes=10**10), DAY_S, 2)
    assert reads.dollars_a_day(0, DAY_S) == pytest.approx(0.9)


def test_nothing_is_asked_for_before_the_store_knows() -> None:
    ledger = Ledger(S3_STANDARD, 6400, now=0.0)
    ledger.restore(b"", 7)
    assert not ledger.allows(1, 7)
    kept = ledger.to_persist(7)
    assert kept is not None
    ledger.persisted(kept)
    assert ledger.allows(100, 7)
    assert not ledger.allows(101, 7)
    assert ledger.to_persist(7) is None
    assert not ledger.allows(1, 8), "that was said of another day"
    later = Ledger(S3_STANDARD, 6400, now=0.0)
    later.restore(kept, 7)
    assert later.spent_on(7) == 100, "whoever was killed may have made them all"
    yesterday = Ledger(S3_STANDARD, 6400, now=0.0)
    yesterday.restore(kept, 8)
    assert yesterday.spent_on(8) == 0
    later.restore(kept, 7)
    assert later.spent_on(7) == 100, "once"
    for data in (kept[:-1], b"x" * SPENT_BYTES):
        forged = Ledger(S3_STANDARD, 6400, now=0.0)
        forged.restore(data, 7)
        assert forged.spent_on(7) == 0
    ahead = Ledger(S3_STANDARD, 6400, now=0.0)
    ahead.restore(kept, 6)
    assert ahead.spent_on(6) == 100, "a clock that was put back brings no new budget"


def test_t47_a_clock_that_was_a_year_ahead_ends_one_day() -> None:
    ledger = Ledger(S3_STANDARD, 6400, now=0.0)
    ledger.persisted(ledger.to_persist(371) or b"")
    ledger.add(RequestCounts(gets=6400), 0.0, 371)
    assert ledger.to_persist(6) is None
    assert ledger.is_over(6), "no new budget for a clock that is put back"
    kept = ledger.to_persist(7)
    assert kept is not None
    ledger.persisted(kept)
    assert ledger.room(7) == 100


def test_t47_a_clock_that_is_put_back_brings_no_new_day() -> None:
    ledger = Ledger(S3_STANDARD, 6400, now=0.0)
    ledger.restore(b"", 7)
    kept = ledger.to_persist(7)
    assert kept is not None
    ledger.persisted(kept)
    assert (ledger.allows(100, 6), ledger.allows(101, 6)) == (True, False)
    ledger.add(RequestCounts(gets=90), 0.0, 6)
    assert ledger.spent_on(6) == ledger.spent_on(7) == 90
    more = ledger.to_persist(6)
    assert more is not None
    ledger.persisted(more)
    assert ledger.allows(100, 6), "and can be used"
    ledger.persisted(kept[:8] + (3).to_bytes(8, "little") + (1).to_bytes(8, "little"))
    assert ledger.allows(100, 6), "what is said of a day before changes nothing"


def test_the_last_step_ends_with_the_budget() -> None:
    ledger = Ledger(S3_STANDARD, 1000, now=0.0)
    ledger.restore(b"", 1)
    while not ledger.is_over(1):
        kept = ledger.to_persist(1)
        if kept is not None:
            ledger.persisted(kept)
        assert ledger.allows(1, 1)
        ledger.add(RequestCounts(gets=1), 0.0, 1)
    assert 980 < ledger.spent_on(1) < 990, "some are left for signs of life"
    ledger.add(RequestCounts(gets=999 - ledger.spent_on(1)), 0.0, 1)
    last = ledger.to_persist(1)
    if last is not None:
        ledger.persisted(last)
    assert ledger.allows(1, 1)
    assert ledger.to_persist(1) is None, "the store knows of all that there are"
    ledger.add(RequestCounts(puts=20), 0.0, 1)
    assert ledger.to_persist(1) is None
    assert ledger.is_over_for_stores(1)
    ledger.add(RequestCounts(), 0.0, 2)
    assert not ledger.is_over(2)
