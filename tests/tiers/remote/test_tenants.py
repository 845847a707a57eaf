"""Tenants in a store that hosts share: packs of one tenant each, deleted with it."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import until
from tests.remote_harness import PATIENT, SHARING, flip, opened_remote, packs_in

from forebay.record.forgotten import unpack_forgotten
from forebay.record.header import DEFAULT_TENANT
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import DropReason
from forebay.tiers.remote.io import upkeep
from forebay.tiers.remote.jobs import DeleteOrder
from forebay.tiers.remote.tier import RemoteTier

A, B = b"a" * 16, b"b" * 16


def some(tenant: bytes, count: int = 6, length: int = 20_000) -> list[Sample]:
    plain = [single(f"{number} of {tenant.hex()}", length) for number in range(count)]
    return [replace(each, name=replace(each.name, tenant=tenant)) for each in plain]


def store(tier: RemoteTier, samples: Sequence[Sample]) -> None:
    outcomes = Outcomes(tier)
    for sample in samples:
        outcomes.store(sample)
    outcomes.wait()
    assert len(outcomes.stored) == len(samples)


def hits(tier: RemoteTier, samples: Sequence[Sample]) -> int:
    outcomes = Outcomes(tier)
    for sample in samples:
        outcomes.load(sample)
    outcomes.wait()
    return len(outcomes.hits)


def owners(place: Path, samples: Sequence[Sample]) -> list[set[bytes]]:
    """Whose records lie in each pack."""
    contents = [path.read_bytes() for path in (place / "packs").rglob("*") if path.is_file()]
    return [{s.name.tenant for s in samples if s.payload[:64] in each} for each in contents]


def test_t63_a_forgotten_tenants_packs_are_deleted_and_nobody_elses(tmp_path: Path) -> None:
    everybodys = [*some(A), *some(B), *some(DEFAULT_TENANT)]
    mixed = [each for at in range(6) for each in everybodys[at::6]]
    with opened_remote(tmp_path) as tier:
        store(tier, mixed)
        found = owners(tmp_path, everybodys)
        assert all(len(each) == 1 for each in found)
        assert {A} in found
        assert tier.held_by_tenants().keys() == {A, B, DEFAULT_TENANT}
    with opened_remote(tmp_path) as tier:
        assert hits(tier, everybodys) == 18
        assert tier.held_by_tenants().keys() == {A, B, DEFAULT_TENANT}, "known after a restart"
        forgotten = tier.forget(A, scrub=False)
        assert (forgotten.records, forgotten.failure) == (6, "")
        assert forgotten.size_bytes > 0
        assert {A} not in owners(tmp_path, everybodys)
        assert hits(tier, some(A)) == 0
        assert hits(tier, [*some(B), *some(DEFAULT_TENANT)]) == 12


def test_what_a_pool_that_died_had_not_deleted_is_deleted_by_the_next(tmp_path: Path) -> None:
    with opened_remote(tmp_path) as tier:
        store(tier, [*some(A), *some(B)])
    with opened_remote(tmp_path) as tier:
        tier.delete_forgotten(frozenset({A}))
        until(lambda: {A} not in owners(tmp_path, some(A)))
        assert hits(tier, some(B)) == 6


def test_forgetting_waits_for_packs_that_were_to_be_deleted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eviction, or a put that failed, leaves packs to delete that are in no index any more."""
    mine, theirs = some(A, 20, 60_000), some(B, 20, 60_000)
    left: dict[bytes | None, int] = {}  # packs to delete when an order ended, by its tenant
    with (
        opened_remote(tmp_path, options=replace(PATIENT, pack_records_max=1)) as tier,
        ThreadPoolExecutor(2) as threads,
    ):

        def end(order: DeleteOrder) -> None:
            left[order.tenant] = len(tier.parts.own.doomed)
            ended(order)

        ended = DeleteOrder.end
        monkeypatch.setattr(DeleteOrder, "end", end)
        store(tier, [*mine, *theirs])
        pid = tier.parts.link.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        lowering = threads.submit(tier.resize, tier.parts.path, 1 << 20)
        until(lambda: len(tier.parts.own.doomed) > 20)
        forgetting = threads.submit(tier.forget, A, scrub=False)
        until(lambda: any(order.tenant == A for order in tier._writing._orders))
        os.kill(pid, signal.SIGCONT)
        assert not forgetting.result(60.0).failure
        assert left[A] == 0
        assert {A} not in owners(tmp_path, mine)
        assert lowering.result(60.0)
        assert hits(tier, theirs[-5:]) == 5


def test_t63_nothing_of_a_forgotten_tenant_is_sent_nor_served_from_other_hosts(
    tmp_path: Path,
) -> None:
    theirs, kept = some(A), some(B)
    with opened_remote(tmp_path, "b") as other:
        store(other, [*theirs, *kept])
        until(lambda: other.upkeep.is_idle)
    with opened_remote(tmp_path, "a", options=SHARING) as tier:
        until(lambda: tier.has(theirs[0].name.key) and tier.has(kept[-1].name.key))
        assert hits(tier, theirs) == 6
        tier.delete_forgotten(frozenset({A}))
        assert hits(tier, theirs) == 0, "what another host has is not served here either"
        assert hits(tier, kept) == 6
        outcomes = Outcomes(tier)
        for sample in some(A, 8, 5000):
            outcomes.store(sample)
        outcomes.wait()
        assert outcomes.dropped == {DropReason.FORGOTTEN: 8}
        assert not packs_in(tmp_path, "a")


def test_t63_a_list_of_the_forgotten_that_a_store_has_lost_is_put_again(tmp_path: Path) -> None:
    options = replace(PATIENT, audit_s=0.05)
    listed = tmp_path / "hosts" / "a" / "forgotten"
    with opened_remote(tmp_path, options=options) as tier:
        store(tier, some(A))
        assert tier.remember_forgotten(A) == ""
        assert unpack_forgotten(listed.read_bytes()) == frozenset({A})
        listed.unlink()
        until(listed.exists)
        assert tier.remember_forgotten(B) == ""
        assert unpack_forgotten(listed.read_bytes()) == frozenset({A, B})
    with opened_remote(tmp_path) as tier:
        assert tier.forgotten() == {A, B}
        until(lambda: not packs_in(tmp_path))


def test_t63_a_store_that_was_away_is_told_later_who_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drives may have remembered it, but these are replaced. As many as a list has room for."""
    place, options = tmp_path / "s", replace(PATIENT, probe_interval_s=0.05, audit_s=0.05)
    listed = place / "hosts" / "a" / "forgotten"
    monkeypatch.setattr(upkeep, "FORGOTTEN_MAX", 2)
    with opened_remote(place, options=options) as tier:
        assert tier.forget(A, scrub=False).failure
        place.mkdir(mode=0o700)
        until(listed.exists)
        assert unpack_forgotten(listed.read_bytes()) == frozenset({A})
        tier.delete_forgotten(frozenset({B, b"c" * 16}))
        until(lambda: unpack_forgotten(listed.read_bytes()) == frozenset({A, B}))


def test_t63_a_damaged_list_of_the_forgotten_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened_remote(tmp_path) as tier:
        assert tier.remember_forgotten(A) == ""
    flip(tmp_path / "hosts" / "a" / "forgotten", 20)
    with opened_remote(tmp_path) as tier:
        assert tier.forgotten() == frozenset()
        assert hits(tier, some(B)) == 0
    assert "damaged list of forgotten tenants" in caplog.text


def test_who_asks_a_store_that_is_away_to_remember_is_told(tmp_path: Path) -> None:
    with opened_remote(tmp_path / "missing") as tier:
        assert tier.remember_forgotten(A).endswith("cannot be told to remember it")
    assert tier.remember_forgotten(A).endswith("cannot be told to remember it"), "nor a closed one"
