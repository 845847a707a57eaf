"""Tenants in a store that hosts share: packs of one tenant each, deleted with it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.disk_harness import until
from tests.remote_harness import opened_remote

from forebay.record.header import DEFAULT_TENANT
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, single
from forebay.tiers.remote.tier import RemoteTier

A, B = b"a" * 16, b"b" * 16


def some(tenant: bytes, count: int = 6) -> list[Sample]:
    plain = [single(f"{number} of {tenant.hex()}", 20_000) for number in range(count)]
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
