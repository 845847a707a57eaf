"""What a tenant may have of a store: caps at every instant, floors, and whose pack goes first."""

import os
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import until
from tests.remote_harness import PATIENT, opened_remote, packs_in
from tests.tiers.remote.test_tenants import A, B, hits, some, store

from forebay.errors import DirectoryError
from forebay.record import region as layout
from forebay.record.header import DEFAULT_TENANT
from forebay.record.region import RegionHeader
from forebay.sys import memory
from forebay.sys.memory import PAGE_BYTES
from forebay.testing.outcomes import FOREVER, Outcomes
from forebay.testing.samples import Sample
from forebay.tiers.contract import DropReason, LoadOutcome
from forebay.tiers.quotas import Quota
from forebay.tiers.remote.tier import RemoteTier

SIZE = 60_000  # of a payload
CAP = 700_000  # of a tenant: eleven such records, each a pack of its own
ONE_EACH = replace(PATIENT, pack_records_max=1)


def in_store(place: Path, tenant: bytes) -> int:
    """Bytes of packs of a tenant, by what lies there: neither the tier nor its index is asked."""
    size_bytes = 0
    for path in packs_in(place):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # deleted meanwhile
        header = layout.unpack_header(content[:PAGE_BYTES])
        assert isinstance(header, RegionHeader)
        size_bytes += len(content) * (header.tenant == tenant)
    return size_bytes


def stored_one_by_one(
    tier: RemoteTier, place: Path, samples: Sequence[Sample]
) -> tuple[int, Counter[str]]:
    """Store; the most that the store ever had of their tenant, and why some were dropped."""
    most, outcomes = 0, Outcomes(tier)
    for sample in samples:
        outcomes.store(sample)
        outcomes.wait()
        most = max(most, in_store(place, sample.name.tenant))
    return most, outcomes.dropped


def test_a_cap_holds_and_the_oldest_of_the_tenant_itself_go(tmp_path: Path) -> None:
    mine, theirs = some(A, 20, SIZE), some(B, 12, SIZE)
    with opened_remote(tmp_path, options=ONE_EACH) as tier:
        tier.set_quotas({A: Quota(cap_bytes=CAP), B: Quota(), DEFAULT_TENANT: Quota()})
        store(tier, theirs)
        most, dropped = stored_one_by_one(tier, tmp_path, mine)
        assert not dropped
        assert CAP - 2 * SIZE < most <= CAP
        assert tier.held_by_tenants()[A] <= CAP
        kept = hits(tier, mine)
        assert kept == hits(tier, mine[-kept:]) > 6, "the newest"
        assert hits(tier, theirs) == 12, "nobody else loses anything"


def test_what_is_within_a_floor_is_not_evicted_for_others(tmp_path: Path) -> None:
    theirs, flood = some(B, 28, SIZE), some(A, 20, SIZE)
    with opened_remote(tmp_path, options=ONE_EACH) as tier:
        store(tier, theirs)
        floor_bytes = tier.held_by_tenants()[B]
        tier.set_quotas({A: Quota(), B: Quota(floor_bytes=floor_bytes)})
        store(tier, flood)
        assert hits(tier, theirs) == 28
        assert hits(tier, flood[-8:]) == 8
        assert tier.usage().used_bytes <= tier.usage().cap_bytes
        tier.set_quotas({A: Quota(), B: Quota()})
        store(tier, some(A, 30, SIZE)[20:])
        assert hits(tier, theirs) < 28, "without it, it is"


def test_who_finds_floors_all_over_stores_nothing_and_is_told(tmp_path: Path) -> None:
    theirs, mine = some(B, 40, SIZE), some(A, 4, SIZE)
    with opened_remote(tmp_path, options=ONE_EACH) as tier:
        tier.set_quotas({A: Quota(), B: Quota(floor_bytes=3 << 20)})
        store(tier, theirs)
        for sample in some(B, 44, SIZE)[40:]:
            store(tier, [sample])
        held = hits(tier, theirs)
        outcomes = Outcomes(tier)
        for sample in mine:
            outcomes.store(sample)
        outcomes.wait()
        assert outcomes.dropped == {DropReason.QUOTA: 4}
        assert hits(tier, theirs) == held


def test_a_tenant_whose_cap_is_too_small_stores_nothing(tmp_path: Path) -> None:
    with opened_remote(tmp_path) as tier:
        tier.set_quotas({A: Quota(cap_bytes=0), B: Quota(cap_bytes=SIZE)})
        for tenant in (A, B):
            _, dropped = stored_one_by_one(tier, tmp_path, some(tenant, 2, SIZE))
            assert dropped == {DropReason.QUOTA: 2}
        assert not packs_in(tmp_path)
        store(tier, some(DEFAULT_TENANT))


def test_small_caps_make_small_packs(tmp_path: Path) -> None:
    """A pack leaves whole: one as large as the cap would take everything with it."""
    with opened_remote(tmp_path, options=replace(PATIENT, pack_age_s=3600.0)) as tier:
        tier.set_quotas({A: Quota(cap_bytes=240_000)})
        store(tier, some(A, 8, 10_000))
        sizes = [path.stat().st_size for path in packs_in(tmp_path)]
        assert len(sizes) > 2
        assert max(sizes) <= 240_000 // 4


def test_a_cap_that_is_lowered_is_kept_without_a_store(tmp_path: Path) -> None:
    mine, theirs = some(A, 12, SIZE), some(B, 12, SIZE)
    with opened_remote(tmp_path, options=ONE_EACH) as tier:
        store(tier, [*mine, *theirs])
        tier.set_quotas({A: Quota(cap_bytes=CAP // 2), B: Quota()})
        until(lambda: in_store(tmp_path, A) <= CAP // 2)
        assert hits(tier, mine[-4:]) == 4
    with opened_remote(tmp_path, options=ONE_EACH) as tier:
        tier.set_quotas({A: Quota(), B: Quota(cap_bytes=CAP // 2)})
        until(lambda: in_store(tmp_path, B) <= CAP // 2)
        assert hits(tier, theirs[-4:]) == 4
        assert hits(tier, mine[-4:]) == 4


def test_a_store_that_begins_above_its_cap_is_trimmed(tmp_path: Path) -> None:
    with opened_remote(tmp_path, options=ONE_EACH) as tier:
        store(tier, some(A, 30, SIZE))
    with opened_remote(tmp_path, options=ONE_EACH, cap_bytes=1 << 20) as tier:
        until(lambda: in_store(tmp_path, A) <= 1 << 20)
        assert hits(tier, some(A, 30, SIZE)[-8:]) == 8


def test_a_store_is_not_made_smaller_than_its_floors(tmp_path: Path) -> None:
    with opened_remote(tmp_path) as tier:
        tier.set_quotas({A: Quota(floor_bytes=1 << 20), B: Quota(floor_bytes=1 << 20)})
        with pytest.raises(DirectoryError, match="cannot be so small: the floors of all tenants"):
            tier.resize(tier.parts.path, (2 << 20) - 1)
        assert tier.usage().cap_bytes == 3 << 20
        assert tier.resize(tier.parts.path, 2 << 20)


def test_a_smaller_cap_is_kept_when_it_is_said_whoever_evicted_the_packs(tmp_path: Path) -> None:
    with opened_remote(tmp_path, options=ONE_EACH) as tier, ThreadPoolExecutor(1) as threads:
        store(tier, some(A, 20, SIZE))
        pid = tier.parts.link.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        tier.set_quotas({A: Quota(cap_bytes=CAP // 2)})
        until(lambda: len(tier.parts.own.doomed) > 10)
        resizing = threads.submit(tier.resize, tier.parts.path, 1 << 20)
        until(lambda: bool(tier._writing._orders))
        os.kill(pid, signal.SIGCONT)
        assert resizing.result(60.0)
        assert in_store(tmp_path, A) <= 1 << 20


def test_loads_of_tenants_take_turns_by_weight(tmp_path: Path) -> None:
    many, few = some(A, 24, SIZE), some(B, 8, SIZE)
    ended: list[bytes] = []
    with opened_remote(tmp_path, options=replace(ONE_EACH, read_depth=1)) as tier:
        tier.set_quotas({A: Quota(), B: Quota(weight=3)})
        store(tier, [*many, *few])
        pid = tier.parts.link.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for sample in [*many, *few]:
            _load(tier, sample, ended)
        until(lambda: len(tier._reading._waiting) >= 31)
        os.kill(pid, signal.SIGCONT)
        until(lambda: len(ended) == 32)
        last = max(at for at, tenant in enumerate(ended) if tenant == B)
        assert last < 20, "eight of B take the time of few of A, though they came behind them"
        assert ended[:4].count(A) >= 1


def _load(tier: RemoteTier, sample: Sample, ended: list[bytes]) -> None:
    target = memory.allocate(sample.length)

    def done(_outcome: LoadOutcome) -> None:
        ended.append(sample.name.tenant)

    tier.submit_load(sample.name, target, done, FOREVER)
