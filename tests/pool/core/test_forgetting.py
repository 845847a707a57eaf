"""A tenant forgotten while in use: complete when it is said, and nobody else is touched (T63)."""

import contextlib
import os
from pathlib import Path

import pytest
from tests.core_harness import LENGTH, NAMESPACE, SECRET, Client, CoreHarness, chain, payload
from tests.line_counter import LineCounter
from tests.pool.core.test_tenants import MIB, client_of, tenant, used
from tests.remote_harness import open_remote

from forebay.identity.tenants import tenant_id
from forebay.pool.core.tenants.operations import RELEASE_S
from forebay.pool.core.tenants.registry import EPOCHS_MAX
from forebay.pool.messages import (
    AdminReply,
    Ask,
    ChunkRun,
    Committed,
    Forget,
    Promise,
    Release,
    Reserved,
)
from forebay.record.header import ROOT
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk
from forebay.tiers.contract import Tier, TierListener

TENANTS = (tenant("a"), tenant("b"))


def is_anywhere(core: CoreHarness, place: Path, keys: list[bytes]) -> bool:
    """Whether a piece of these chunks is in host memory or in any file."""
    slab = core.pool._slab
    memory = [bytes(slab.view(at, slab.arena_bytes)) for at in _arenas(core)]
    files = [path.read_bytes() for path in place.iterdir()]
    pieces = [payload(key)[at : at + 64] for key in keys for at in (0, 30_000)]
    return any(piece in where for piece in pieces for where in [*memory, *files])


def _arenas(core: CoreHarness) -> range:
    slab = core.pool._slab
    return range(0, slab.allocated_bytes, slab.arena_bytes)


def forget(core: CoreHarness, name: str, *, scrub: bool = False) -> AdminReply:
    operator = Client("operator")
    core.pool.handle(operator, Forget(name, scrub))
    return core.receive(operator, AdminReply)


@pytest.mark.parametrize("scrub", [False, True])
def test_t63_a_forgotten_tenant_is_nowhere_and_begins_anew(tmp_path: Path, scrub: bool) -> None:
    core = CoreHarness(4 * MIB, tmp_path, 64 * MIB, tenants=TENANTS)
    a, b = client_of("a"), client_of("b")
    mine, theirs = chain("mine", 40), chain("theirs", 40)
    core.store(a, mine)
    core.store(b, theirs)
    core.settle()
    assert is_anywhere(core, tmp_path, mine)
    done = forget(core, "a", scrub=scrub)
    assert done.ok
    assert "forgot tenant a: removed " in done.sentence
    assert "40 records" in done.sentence
    assert not is_anywhere(core, tmp_path, mine)
    assert (used(core, "a"), used(core, "a", "disk"), used(core, "other")) == (0, 0, 0)
    assert core.lookup(a, mine)[1].known == 0
    assert core.lookup(b, theirs)[1].known == 40
    core.store(a, mine)
    assert core.load(a, mine[:10]) == 10, "the tenant itself goes on"
    assert not core.pool.violations()
    core.pool.close(60.0)
    again = CoreHarness(4 * MIB, tmp_path, 64 * MIB, tenants=TENANTS)
    assert again.lookup(a, mine)[1].known > 0, "under its new id"
    assert again.lookup(b, theirs)[1].known == 40
    again.pool.close(60.0)


def test_t63_what_no_directory_can_remember_is_not_forgotten(tmp_path: Path) -> None:
    """A pool that dies behind a half-done deletion would serve the rest of it again."""
    disk = FaultDisk()
    core = CoreHarness(4 * MIB, tmp_path, 64 * MIB, World(disk, ManualClock()), tenants=TENANTS)
    a, mine = client_of("a"), chain("mine", 8)
    core.store(a, mine)
    core.settle()
    disk.arm("rename:errno=ENOSPC")
    done = forget(core, "a")
    assert not done.ok
    assert done.sentence.startswith("tenant a is not forgotten: ")
    assert core.load(a, mine) == 8, "nothing was deleted"
    disk.disarm()
    assert forget(core, "a").ok
    assert not is_anywhere(core, tmp_path, mine)
    core.pool.close(60.0)


def test_t63_what_is_in_flight_is_forgotten_too(tmp_path: Path) -> None:
    """Slots being filled, promises being copied, asks that wait, streams half served."""
    core = CoreHarness(4 * MIB, tmp_path, 64 * MIB, tenants=TENANTS)
    filling, copying, looking, streaming = (
        Client(str(n), client_of("a").salt_hash) for n in range(4)
    )
    mine = chain("mine", 60)
    core.store(copying, mine)
    core.settle()
    slots = core.reserve(filling, chain("half", 4))
    number, _ = core.lookup(copying, mine[:8])
    promise = core.ask(copying, number, mine[:8])
    later, _ = core.lookup(looking, mine)
    stream, _ = core.lookup(streaming, mine)
    core.pool.handle(streaming, Ask(stream, 0, 60, 10_000, stream=True))
    operator = Client("operator")
    core.pool.handle(operator, Forget("a"))
    core.until(lambda: core.pool._tenancy.is_waiting)
    core.pool.handle(looking, Ask(later, 0, 60, 10_000, stream=False))
    assert core.receive(looking, Promise).total == 0, "nothing more is promised"
    assert not operator.inbox, "engines still use what they were promised"
    for offset in slots:
        core.fill(offset, payload(mine[0]))
    core.pool.handle(filling, core.commit_of(slots))
    assert core.receive(filling, Committed).count == 0, "nor stored"
    assert [core.pool.view(o, 64) for o in promise.offsets] == [payload(k)[:64] for k in mine[:8]]
    core.pool.handle(copying, Release(number, []))
    core.pool.handle(streaming, Release(stream, []))
    assert core.receive(operator, AdminReply).ok
    assert not is_anywhere(core, tmp_path, mine)
    assert not core.pool.violations()
    core.pool.close(60.0)


def test_who_never_releases_is_told_of_and_cannot_keep_it_for_good() -> None:
    core = CoreHarness(4 * MIB, tenants=TENANTS)
    a = client_of("a")
    old = core.pool._tenants.id_of("a")
    assert old is not None
    mine = chain("mine", 8)
    core.store(a, mine)
    number, _ = core.lookup(a, mine)
    core.ask(a, number, mine)
    operator = Client("operator")
    core.pool.handle(operator, Forget("a"))
    core.until(lambda: core.pool._tenancy.is_waiting)
    core.pass_time(RELEASE_S)
    done = core.receive(operator, AdminReply)
    assert not done.ok
    assert "8 chunks in DRAM go when engines release them" in done.sentence
    assert core.lookup(client_of("a"), mine)[1].known == 0
    core.pool.handle(a, Release(number, []))
    core.until(lambda: used(core, "other") == 0)
    core.until(lambda: old not in core.pool._dram.policies._by_tenant)


def test_a_lookup_told_late_leaves_no_policy_of_a_forgotten_tenant() -> None:
    core = CoreHarness(4 * MIB, tenants=TENANTS)
    policies = core.pool._dram.policies
    for name in ("a", "b"):
        core.store(client_of(name), chain("mine", 4))
    old = core.pool._tenants.id_of("a")
    assert old is not None
    assert forget(core, "a").ok
    assert old not in policies._by_tenant
    policies.of(old).requested(chain("mine", 4), 0, 0.0)  # as what was not reported yet does
    core.until(lambda: old not in policies._by_tenant)
    assert len(policies._by_tenant) == 2, "the others' stay"


def test_a_tenant_without_another_id_is_not_forgotten() -> None:
    core = CoreHarness(4 * MIB, tenants=TENANTS)
    tenants, a = core.pool._tenants, client_of("a")
    tenants._forgotten |= {tenant_id(SECRET, "a", epoch) for epoch in range(EPOCHS_MAX - 1)}
    tenants.replace(TENANTS)
    core.store(a, chain("mine", 4))
    done = forget(core, "a")
    assert (done.ok, done.sentence) == (False, "tenant a was forgotten too often; rename it.")
    assert core.load(a, chain("mine", 4)) == 4, "it is as before"
    assert forget(core, "b").ok


def test_the_default_tenant_can_be_forgotten_and_unknown_ones_not() -> None:
    core = CoreHarness(4 * MIB, tenants=TENANTS)
    nobody, a = Client("e"), client_of("a")
    core.store(nobody, chain("plain", 4))
    core.store(a, chain("mine", 4))
    assert not forget(core, "search").ok
    assert forget(core, "default").ok
    assert core.lookup(nobody, chain("plain", 4))[1].known == 0
    assert core.lookup(a, chain("mine", 4))[1].known == 4
    core.store(nobody, chain("plain", 4))
    assert core.load(nobody, chain("plain", 4)) == 4


@pytest.mark.parametrize("group", [0, 1])
def test_a_store_that_takes_several_turns_stores_nothing_once_its_tenant_is_forgotten(
    group: int,
) -> None:
    """A chain ends where its parent is gone; records of a local group have no parent."""
    core = CoreHarness(4 * MIB, tenants=TENANTS)
    a, operator = client_of("a"), Client("operator")
    keys = b"".join(chain("long", 40))
    run = ChunkRun(NAMESPACE, group, ROOT, keys, LENGTH, salt_hash=a.salt_hash)
    work = core.reserving_run(a, run)
    next(work)
    before = core.number("leased_slots")
    core.pool.handle(operator, Forget("a"))
    core.until(lambda: bool(operator.inbox) or core.pool._tenancy.is_waiting)
    for _ in work:
        pass
    answers = core.receive(a, Reserved).answers
    assert 0 < sum(answer >= 0 for answer in answers) == before < 40
    core.pool.exited(a.engine)
    assert core.receive(operator, AdminReply).ok
    assert used(core, "other") == 0


def store_alone(place: Path) -> CoreHarness:
    """A pool whose only lower tier is a store."""

    def opened(listener: TierListener, world: World) -> Tier:
        return open_remote(place, listener=listener, world=world)

    return CoreHarness(4 * MIB, store=opened, tenants=TENANTS)


def stored_in(place: Path, keys: list[bytes]) -> bool:
    """Whether a piece of these chunks is in a store."""
    files = []
    for path in place.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # deleted meanwhile
            files.append(path.read_bytes())
    return any(payload(key)[:64] in each for key in keys for each in files)


def test_t63_a_store_remembers_whom_a_pool_without_drives_has_forgotten(tmp_path: Path) -> None:
    core = store_alone(tmp_path)
    a, b, mine, theirs = client_of("a"), client_of("b"), chain("mine", 8), chain("theirs", 8)
    core.store(a, mine)
    core.store(b, theirs)
    core.settle()
    assert stored_in(tmp_path, mine)
    done = forget(core, "a")
    assert done.ok, done.sentence
    assert "8 records" in done.sentence
    assert not stored_in(tmp_path, mine)
    core.store(a, mine[:4])
    core.settle()
    core.pool.close(60.0)
    again = store_alone(tmp_path)
    assert again.lookup(a, mine)[1].known == 4, "under its new id, after a restart, too"
    assert again.load(b, theirs) == 8
    assert forget(again, "a").ok
    again.pool.close(60.0)
    third = store_alone(tmp_path)
    assert third.lookup(a, mine)[1].known == 0
    assert len(third.pool._stack.forgotten()) == 2
    third.pool.close(60.0)


def test_t63_a_store_outlasts_the_drive_that_remembers(tmp_path: Path) -> None:
    drive, place = tmp_path / "drive", tmp_path / "store"
    for each in (drive, place):
        each.mkdir(mode=0o700)

    def opened(listener: TierListener, world: World) -> Tier:
        return open_remote(place, listener=listener, world=world)

    core = CoreHarness(4 * MIB, drive, 64 * MIB, store=opened, tenants=TENANTS)
    old = core.pool._tenants.id_of("a")
    assert forget(core, "a").ok
    core.pool.close(60.0)
    again = store_alone(place)
    assert old in again.pool._stack.forgotten()
    assert again.pool._tenants.id_of("a") != old
    again.pool.close(60.0)


def test_t63_what_a_store_keeps_of_a_forgotten_tenant_is_deleted_at_the_next_start(
    tmp_path: Path,
) -> None:
    core = store_alone(tmp_path)
    a, mine = client_of("a"), chain("mine", 8)
    core.store(a, mine)
    core.settle()
    packs = tmp_path / "packs"
    packs.rename(tmp_path / "away")
    packs.touch()  # so that nothing can be deleted
    done = forget(core, "a")
    assert not done.ok
    assert "0 records (0 B) from remote" in done.sentence
    assert "can be loaded any more, but remote keeps records" in done.sentence
    assert core.lookup(a, mine)[1].known == 0
    core.pool.close(60.0)
    packs.unlink()
    (tmp_path / "away").rename(packs)
    assert stored_in(tmp_path, mine)
    again = store_alone(tmp_path)
    assert again.lookup(a, mine)[1].known == 0
    again.until(lambda: not stored_in(tmp_path, mine))
    again.pool.close(60.0)


def test_t63_what_no_store_can_remember_is_not_forgotten(tmp_path: Path) -> None:
    core = store_alone(tmp_path)
    a, mine = client_of("a"), chain("mine", 8)
    core.store(a, mine)
    core.settle()
    blocked = tmp_path / "hosts" / "a" / "forgotten"
    blocked.mkdir(parents=True)  # so that no list can be put there
    done = forget(core, "a")
    assert not done.ok
    assert done.sentence.startswith("tenant a is not forgotten: ")
    assert core.load(a, mine) == 8, "nothing was deleted"
    blocked.rmdir()
    assert forget(core, "a").ok
    assert not stored_in(tmp_path, mine)
    core.pool.close(60.0)


def test_what_thousands_of_forgotten_tenants_cost_does_not_grow_with_dram() -> None:
    """A store says all of them when it is back, on the thread that answers engines."""
    lines = []
    for chunks in (8, 64):
        core = CoreHarness(8 * MIB, tenants=TENANTS)
        core.store(client_of("b"), chain("theirs", chunks))
        with LineCounter() as counter:
            core.pool._tenancy.learn_forgotten(frozenset(os.urandom(16) for _ in range(500)))
        lines.append(counter.lines)
        assert core.load(client_of("b"), chain("theirs", chunks)) == chunks
        core.pool.close(60.0)
    assert lines[1] - lines[0] < 500


def test_t63_a_store_that_was_away_at_the_start_says_later_who_was_forgotten(
    tmp_path: Path,
) -> None:
    place, away = tmp_path / "store", tmp_path / "away"
    place.mkdir(mode=0o700)
    a, b, mine, theirs = client_of("a"), client_of("b"), chain("mine", 8), chain("theirs", 4)
    core = store_alone(place)
    core.store(a, mine[:4])
    assert forget(core, "a").ok
    core.pool.close(60.0)
    place.rename(away)
    again = store_alone(place)
    again.store(a, mine)  # in DRAM, under the id that was forgotten: nobody can know
    again.store(b, theirs)
    assert again.lookup(a, mine)[1].known == 8
    away.rename(place)
    again.pass_time_until(lambda: again.lookup(a, mine)[1].known == 0)
    assert again.load(b, theirs) == 4
    again.store(a, mine)
    again.pass_time_until(lambda: stored_in(place, mine))
    assert again.load(a, mine) == 8
    assert not again.pool.violations()
    again.pool.close(60.0)
    third = store_alone(place)
    assert third.lookup(a, mine)[1].known > 0, "it was stored under the new id"
    third.pool.close(60.0)
