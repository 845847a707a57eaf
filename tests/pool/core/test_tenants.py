"""Tenants in a pool's core: apart, within their quotas, and fair to one another (T37, T38)."""

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced
from tests.core_harness import LENGTH, NAMESPACE, SECRET, Client, CoreHarness, chain
from tests.gated_tier import GatedTier
from tests.remote_harness import open_remote
from tests.tiers.slow_memory import StoreDone

from forebay.identity.tenants import mask_of, masked, salt_hash, salt_key
from forebay.pool.messages import (
    AdminReply,
    AnswerEnd,
    AnswersEnded,
    Lookup,
    Release,
    ReserveAnswer,
    Resize,
    SetTenants,
    row_of,
)
from forebay.record.header import DEFAULT_TENANT, Digest, RecordName
from forebay.record.region import short
from forebay.sys.world import World
from forebay.tenants import TenantSetting
from forebay.tiers.contract import Tier, TierListener

MIB = 1 << 20
KEY = salt_key(SECRET)
SLOT = LENGTH  # what a chunk takes of DRAM


def tenant(name: str, **quotas: int) -> TenantSetting:
    """A tenant whose salt is its name."""
    return TenantSetting(name, (salt_hash(name, KEY),))._replace(**quotas)  # type: ignore[arg-type]


def client_of(name: str) -> Client:
    return Client(f"engine of {name}", salt_hash(name, KEY) if name else b"")


def used(core: CoreHarness, name: str, tier: str = "dram") -> int:
    rows = {row["tenant"]: row for row in core.pool.stats()["tenants"]}
    return int(rows.get(name, {}).get(tier, {}).get("used_bytes", 0))


def test_t38_what_one_tenant_stores_no_other_finds_nor_can_tell_of(tmp_path: Path) -> None:
    """No lookup, no answer to a store, in DRAM or from a drive after a restart."""
    tenants = (tenant("a"), tenant("b"))
    for round_number in range(2):
        core = CoreHarness(4 * MIB, tmp_path, 64 * MIB, tenants=tenants)
        a, b, nobody, unknown = map(client_of, ("a", "b", "", "not listed"))
        keys = chain("dialog", 8)
        if not round_number:
            core.store(a, keys)
        for other in (b, nobody, unknown):
            _, found = core.lookup(other, keys)
            assert (found.known, found.ready) == (0, 0)
            local = b"".join(map(short, keys))
            core.pool.handle(other, Lookup(99, NAMESPACE, 0, b"", local, salt_hash=other.salt_hash))
            assert not any(core.receive(other, type(found)).has)
            answers = core.reserve(other, keys)
            assert ReserveAnswer.HAVE not in answers, "a store must not tell either"
            core.pool.handle(other, core.commit_of([]))
            core.pool.exited(other.engine)
        assert core.load(a, keys) == len(keys)
        core.settle()
        assert not core.pool.violations()
        core.pool.close(60.0)


def test_t35_an_engine_cannot_name_a_tenant_by_anything_but_a_salt_that_is_listed() -> None:
    core = CoreHarness(4 * MIB, tenants=(tenant("a"),))
    keys = chain("dialog", 4)
    id_of_a = core.pool._tenants.of_salt(salt_hash("a", KEY)).id
    core.store(Client("e", id_of_a), keys)
    core.store(Client("f", b"a"), chain("other", 4))
    assert used(core, "default") == 8 * SLOT
    assert used(core, "a") == 0


def test_t35_a_tenants_keys_have_a_mask_that_no_engine_knows() -> None:
    core = CoreHarness(4 * MIB, tenants=(tenant("a"),))
    keys = chain("dialog", 4)
    core.store(client_of("a"), keys)
    held = {chunk.name.key for chunk in core.pool._dram.chunks}
    assert not held & set(keys)
    id_of_a = core.pool._tenants.of_salt(salt_hash("a", KEY)).id
    assert held == {masked(key, mask_of(SECRET, id_of_a)) for key in keys}
    welcome, _ = core.pool.welcome()
    assert welcome.salt_key == KEY
    assert held != {masked(key, mask_of(welcome.salt_key, id_of_a)) for key in keys}


def test_a_pool_without_tenants_names_records_as_before() -> None:
    core = CoreHarness(4 * MIB)
    keys = chain("dialog", 4)
    core.store(Client("e"), keys)
    chunks = list(core.pool._dram.chunks)
    assert {chunk.name.key for chunk in chunks} == set(keys)
    assert {chunk.name.tenant for chunk in chunks} == {DEFAULT_TENANT}


def test_t37_hostile_hints_of_one_tenant_move_no_chunk_of_another() -> None:
    """What the other has after each of its requests is the same as without a hint."""
    kept = [held_of_a(hint) for hint in (None, *HOSTILE)]
    assert any(before - now for before, now in itertools.pairwise(kept[0])), "room is short"
    assert kept == [kept[0]] * len(kept)


HOSTILE = (
    AnswerEnd(b"", 1, 1, 1 << 40, 0, keep_s=1e300, priority=1 << 40, returns_in_s=1e-9),
    AnswerEnd(b"", 63, 63, -1, -1, -(1 << 40), keep_s=86_400.0, priority=2),
    AnswerEnd(b"", -7, 99, 0, 0, priority=-(1 << 40), returns_in_s=float("inf")),
)


def held_of_a(hint: AnswerEnd | None) -> list[set[bytes]]:
    """What tenant a has in DRAM, while tenant b, who knows a's keys and session, gives hints."""
    core = CoreHarness(4 * MIB, tenants=(tenant("a"), tenant("b")))
    a, b = client_of("a"), client_of("b")
    mask = core.pool._tenants.mask(core.pool._tenants.of_salt(a.salt_hash).id)
    everything, found = [chain(f"of a {number}", 5) for number in range(12)], []
    ours = {masked(key, mask) for keys in everything for key in keys}
    for number in range(24):
        keys, theirs = everything[number % 12], chain(f"of b {number}", 5)
        for client, dialog in ((a, keys), (b, theirs)):
            core.lookup(client, dialog)
            core.store(client, dialog)
            said = AnswerEnd(short(dialog[-1]), 2, 0, 8, 10, salt_hash=client.salt_hash)
            ends = [replaced(said, session=b"session")]
            if client is b and hint is not None:
                named = (short(dialog[-1]), short(keys[-1]), *map(short, keys))
                ends = [
                    replaced(hint, key=key, salt_hash=b.salt_hash, session=b"session")
                    for key in named
                ]
            core.pool.handle(client, AnswersEnded(ends))
            core.pass_time(1.0)
        core.settle()
        found.append({chunk.name.key for chunk in core.pool._dram.chunks} & ours)
    assert not core.pool.violations()
    core.pool.close(60.0)
    return found


@pytest.mark.parametrize("has_disk", [False, True])
def test_t37_a_flood_costs_a_tenant_with_a_floor_nothing(tmp_path: Path, has_disk: bool) -> None:
    """Its hit rate is at least 0.95 of what it has alone; caps are exact at every sample."""
    quiet = tenant("quiet", dram_floor=2 * MIB, disk_floor=24 * MIB)
    noisy = tenant("noisy", dram_cap=3 * MIB, disk_cap=16 * MIB)
    rates = []
    for is_flooded in (False, True):
        place = tmp_path / str(is_flooded)
        place.mkdir(mode=0o700)
        disk = (place, 64 * MIB) if has_disk else ()
        core = CoreHarness(4 * MIB, *disk, tenants=(quiet, noisy))
        rates.append(_hit_rate(core, flood=is_flooded))
        assert not core.pool.violations()
        core.pool.close(60.0)
    alone, flooded = rates
    assert alone > 0.9
    assert flooded >= 0.95 * alone


def _hit_rate(core: CoreHarness, *, flood: bool) -> float:
    """A tenant returns to 6 dialogs of 5 chunks, in any order; the other stores new ones."""
    mine, theirs = client_of("quiet"), client_of("noisy")
    draw = random.Random(7)
    dialogs = [chain(f"dialog {number}", 5) for number in range(6)]
    for keys in dialogs:
        core.store(mine, keys)
    hits = wanted = 0
    for turn in range(24):
        if flood:
            core.store(theirs, chain(f"flood {turn}", 12))
            assert used(core, "noisy") <= 3 * MIB, "the cap, at every sample"
            assert used(core, "noisy", "disk") <= 16 * MIB
        keys = draw.choice(dialogs)
        hits += core.load(mine, keys)
        wanted += len(keys)
        core.store(mine, keys)
    return hits / wanted


def test_without_a_floor_the_same_flood_costs_hits() -> None:
    """The control: so the test above measures floors and nothing else."""
    core = CoreHarness(4 * MIB, tenants=(tenant("quiet"), tenant("noisy", weight=1000)))
    assert _hit_rate_of_control(core) < 0.9


def _hit_rate_of_control(core: CoreHarness) -> float:
    mine, theirs = client_of("quiet"), client_of("noisy")
    keys = chain("dialog", 30)
    core.store(mine, keys)
    for turn in range(10):
        core.store(theirs, chain(f"flood {turn}", 12))
    return core.load(mine, keys) / len(keys)


def test_a_floor_is_had_back_by_whoever_let_others_use_it() -> None:
    core = CoreHarness(4 * MIB, tenants=(tenant("late", dram_floor=3 * MIB), tenant("early")))
    early, late = client_of("early"), client_of("late")
    core.store(early, chain("early", 64))
    assert used(core, "early") == 4 * MIB
    core.store(late, chain("late", 48))
    assert used(core, "late") == 3 * MIB
    assert core.lookup(late, chain("late", 48))[1].known == 48


def test_who_may_hold_less_than_a_chunk_stores_nothing() -> None:
    core = CoreHarness(4 * MIB, tenants=(tenant("tiny", dram_cap=SLOT // 2),))
    assert core.reserve(client_of("tiny"), chain("a", 2)) == [ReserveAnswer.NO] * 2
    assert used(core, "tiny") == 0


def test_who_is_at_its_cap_with_slots_in_use_costs_others_no_chunk() -> None:
    """Though it asks for slots of another size, which would need an arena of others."""
    tenants = (tenant("capped", dram_cap=4 * SLOT), tenant("other"))
    core = CoreHarness(4 * MIB, tenants=tenants)
    capped, other = client_of("capped"), client_of("other")
    assert all(answer >= 0 for answer in core.reserve(capped, chain("filling", 4)))
    core.store(other, chain("other", 48))
    before = used(core, "other")
    answers = core.reserve(capped, chain("small", 1), length=SLOT // 2)
    assert answers == [ReserveAnswer.LATER]
    assert used(core, "other") == before


def test_a_load_of_more_than_its_tenants_cap_has_what_fits(tmp_path: Path) -> None:
    """Though others hold DRAM too; nobody waits for a deadline, which never comes here."""
    tenants = (tenant("a", dram_cap=8 * SLOT), tenant("b"))
    core = CoreHarness(4 * MIB, tmp_path, 64 * MIB, tenants=tenants)
    a, b = client_of("a"), client_of("b")
    keys = chain("long", 24)
    core.store(a, keys)
    core.settle()
    number, _ = core.lookup(b, chain("other", 4))
    core.store(b, chain("other", 4))
    number, _ = core.lookup(b, chain("other", 4))
    core.ask(b, number, chain("other", 4))  # and keeps it
    assert 0 < core.load(a, keys) <= 8
    assert core.load(a, keys, stream=True) == 24
    assert used(core, "a") <= 8 * SLOT
    core.pool.handle(b, Release(number, []))


def test_other_tenants_at_runtime(tmp_path: Path) -> None:
    core = CoreHarness(4 * MIB, tmp_path, 64 * MIB, tenants=(tenant("a"),))
    a, operator = client_of("a"), Client("operator")
    keys = chain("dialog", 32)
    core.store(a, keys)
    core.settle()

    def change(*tenants: TenantSetting) -> AdminReply:
        core.pool.handle(operator, SetTenants([row_of(each) for each in tenants]))
        return core.receive(operator, AdminReply)

    assert change(tenant("a", dram_cap=8 * SLOT)).ok
    core.until(lambda: used(core, "a") <= 8 * SLOT)
    assert not change(tenant("a", dram_floor=5 * MIB)).ok, "more than there is"
    assert not change(tenant("a", dram_floor=2 * SLOT, dram_cap=SLOT)).ok
    assert used(core, "a") <= 8 * SLOT, "what was refused changed nothing"
    assert change().ok
    assert core.lookup(a, keys)[1].known == 0, "its salt is the default tenant's now"
    assert change(tenant("a")).ok
    assert core.lookup(a, keys)[1].known == len(keys), "the same id as before"


def test_no_salt_is_two_tenants_among_as_many_as_there_may_be() -> None:
    salts = [number.to_bytes(16, "little") for number in range(64 * 1024)]
    many = [TenantSetting(f"t{at}", tuple(salts[at::64])) for at in range(64)]
    core, operator = CoreHarness(4 * MIB), Client("operator")
    core.pool.handle(operator, SetTenants([row_of(each) for each in many]))
    assert core.receive(operator, AdminReply).ok
    many[-1] = many[-1]._replace(salts=many[0].salts)
    core.pool.handle(operator, SetTenants([row_of(each) for each in many]))
    assert core.receive(operator, AdminReply).sentence == "a salt's hash is listed twice."


def test_no_tenant_is_called_as_what_is_of_none() -> None:
    core, operator = CoreHarness(4 * MIB), Client("operator")
    core.pool.handle(operator, SetTenants([row_of(tenant("other"))]))
    assert "can be called other" in core.receive(operator, AdminReply).sentence


def test_no_tier_becomes_smaller_than_what_is_guaranteed(tmp_path: Path) -> None:
    quiet = tenant("quiet", dram_floor=6 * MIB, disk_floor=40 * MIB)
    core, operator = CoreHarness(16 * MIB, tmp_path, 64 * MIB, tenants=(quiet,)), Client("operator")
    mine = chain("mine", 80)
    core.store(client_of("quiet"), mine)
    core.settle()
    for refused in (Resize(4 * MIB, []), Resize(0, []), Resize(-1, [(str(tmp_path), 32 * MIB)])):
        core.pool.handle(operator, refused)
        reply = core.receive(operator, AdminReply)
        assert not reply.ok
        assert "the floors of all tenants together are more than that" in reply.sentence
    assert used(core, "quiet") == 80 * SLOT
    core.pool.handle(operator, Resize(8 * MIB, [(str(tmp_path), 48 * MIB)]))
    assert core.receive(operator, AdminReply).ok
    core.pool.close(60.0)


def test_quotas_of_a_store_reach_it_and_are_listed(tmp_path: Path) -> None:
    def opened(listener: TierListener, world: World) -> Tier:
        return open_remote(tmp_path, listener=listener, world=world)

    tenants = (tenant("a", remote_cap=MIB // 2), tenant("b", remote_floor=MIB))
    core = CoreHarness(8 * MIB, store=opened, tenants=tenants)
    for name in ("a", "b"):
        core.store(client_of(name), chain(name, 12))
    core.settle()
    rows = {row["tenant"]: row["remote"] for row in core.pool.stats()["tenants"]}
    assert 0 < rows["a"]["used_bytes"] <= MIB // 2 == rows["a"]["cap_bytes"]
    assert rows["b"]["used_bytes"] >= 12 * LENGTH
    assert (rows["b"]["floor_bytes"], rows["b"]["cap_bytes"]) == (MIB, None)
    operator = Client("operator")
    core.pool.handle(operator, SetTenants([row_of(tenant("a", remote_floor=4 * MIB))]))
    refused = core.receive(operator, AdminReply)
    assert not refused.ok
    assert refused.sentence.startswith("the remote floors of all tenants together are more")
    core.pool.handle(operator, SetTenants([row_of(tenant("b", remote_cap=0))]))
    assert core.receive(operator, AdminReply).ok
    core.until(lambda: used(core, "b", "remote") == 0)
    assert core.load(client_of("b"), chain("b", 12)) == 12, "DRAM has it still"
    core.pool.close(60.0)


class Noted(GatedTier):
    """Notes whose record comes when."""

    def __init__(self, listener: TierListener, world: World) -> None:
        super().__init__(listener, world)
        self.came: list[bytes] = []

    def submit_store(
        self,
        name: RecordName,
        source: memoryview,
        length: int,
        done: StoreDone,
        digest: Digest | None = None,
    ) -> None:
        self.came.append(name.tenant)
        super().submit_store(name, source, length, done, digest)


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 3)])
def test_writes_are_shared_by_weight_while_all_have_something_to_write(
    weights: tuple[int, ...],
) -> None:
    """Whatever their demand: none has more than a tenth above or below its share."""
    demand = {"a": 200, "b": 80, "c": 90}
    tiers: list[Noted] = []

    def opened(listener: TierListener, world: World) -> Tier:
        tiers.append(Noted(listener, world))
        tiers[0].takes = False
        return tiers[0]

    tenants = [tenant(name, weight=each) for name, each in zip(demand, weights, strict=True)]
    core = CoreHarness(32 * MIB, store=opened, tenants=tuple(tenants))
    for name, count in demand.items():
        core.store(client_of(name), chain(name, count))
    assert not tiers[0].came
    tiers[0].takes = True
    core.until(lambda: len(tiers[0].came) == sum(demand.values()))
    core.settle()
    ids = [core.pool._tenants.of_salt(salt_hash(name, KEY)).id for name in demand]
    came = [ids.index(each) for each in tiers[0].came]
    assert Counter(came) == dict(enumerate(demand.values())), "everything is written, once"
    finished = min(_place_of_last(came, number) for number in range(3))
    had = Counter(came[: finished + 1])
    for number, weight in enumerate(weights):
        fair = had.total() * weight / sum(weights)
        assert abs(had[number] - fair) <= fair / 10, had
    core.pool.close(60.0)


def _place_of_last(came: list[int], number: int) -> int:
    """Up to where a tenant had something to write."""
    return len(came) - 1 - came[::-1].index(number)
