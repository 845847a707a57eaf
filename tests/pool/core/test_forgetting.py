"""A tenant forgotten while in use: complete when it is said, and nobody else is touched (T63)."""

from pathlib import Path

import pytest
from tests.core_harness import Client, CoreHarness, chain, payload
from tests.pool.core.test_tenants import MIB, client_of, tenant, used
from tests.remote_harness import open_remote

from forebay.pool.core.tenants.operations import RELEASE_S
from forebay.pool.messages import AdminReply, Ask, Committed, Forget, Promise, Release, Reserved

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


def test_a_store_that_takes_several_turns_stores_nothing_once_its_tenant_is_forgotten() -> None:
    core = CoreHarness(4 * MIB, tenants=TENANTS)
    a, operator = client_of("a"), Client("operator")
    work = core.reserving(a, chain("long", 40))
    next(work)
    core.pool.handle(operator, Forget("a"))
    core.until(lambda: bool(operator.inbox) or core.pool._tenancy.is_waiting)
    for _ in work:
        pass
    answers = core.receive(a, Reserved).answers
    assert sum(answer >= 0 for answer in answers) <= 16, "what was given before, and no more"
    core.pool.exited(a.engine)
    assert core.receive(operator, AdminReply).ok
    assert used(core, "other") == 0


def test_a_pool_of_stores_alone_says_that_what_is_left_comes_back(tmp_path: Path) -> None:
    """Directories remember who was forgotten; where there are none, the next start does not."""
    core = CoreHarness(4 * MIB, store=lambda *_: open_remote(tmp_path), tenants=TENANTS)
    a, mine = client_of("a"), chain("mine", 8)
    core.store(a, mine)
    core.settle()
    packs = tmp_path / "packs"
    packs.rename(tmp_path / "away")
    packs.touch()  # so that nothing can be deleted
    done = forget(core, "a")
    assert not done.ok
    assert "0 records (0 B) from remote" in done.sentence
    assert "can be loaded until the pool starts again, but remote keeps records" in done.sentence
    assert core.lookup(a, mine)[1].known == 0
    core.pool.close(60.0)
