"""The pool's core, driven directly: what is stored comes back, whatever the sizes."""

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain, payload
from tests.oldest_first import OldestFirst

from forebay.pool.core.dram import Dram
from forebay.pool.messages import (
    Abort,
    Ask,
    Cancel,
    ChunkRun,
    Commit,
    Committed,
    Promise,
    Release,
    Reserve,
    ReserveAnswer,
    Reserved,
)
from forebay.record.header import DEFAULT_TENANT, ROOT, payload_hash
from forebay.record.region import short

MIB = 1 << 20


@pytest.fixture
def core() -> Iterator[CoreHarness]:
    core = CoreHarness(4 * MIB)
    yield core
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_a_chain_comes_back_from_dram(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 8)
    core.store(client, keys)
    assert core.load(client, keys) == 8
    assert core.load(client, [*keys[:5], *chain("b", 3)]) == 5


def test_an_unknown_chain_is_promised_nothing(core: CoreHarness) -> None:
    client = Client("e")
    number, found = core.lookup(client, chain("a", 3))
    assert (found.known, found.ready) == (0, 0)
    assert core.ask(client, number, chain("a", 3)).total == 0


@pytest.mark.parametrize(("namespace", "group"), [(b"m" * 32, 0), (NAMESPACE, 1)])
def test_a_key_under_another_name_is_promised_nothing(
    core: CoreHarness, namespace: bytes, group: int
) -> None:
    """The wire carries half of a key: equal halves must not make chunks of two models one."""
    client, keys = Client("e"), chain("a", 2)
    core.store(client, keys)
    number, _ = core.lookup(client, keys, namespace, group)
    promise = core.ask(client, number, keys)
    assert (promise.total, promise.offsets) == (0, [])
    assert core.load(client, keys) == 2


def test_what_is_not_committed_is_not_found(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 2)
    core.reserve(client, keys)
    assert core.lookup(client, keys)[1].known == 0


def test_t21_two_engines_of_one_key_share_one_slot(core: CoreHarness) -> None:
    keys = chain("a", 2)
    first, second = Client("e"), Client("f")
    offsets = core.reserve(first, keys)
    assert core.reserve(second, keys) == [ReserveAnswer.HAVE, ReserveAnswer.HAVE]
    assert core.commit(second, offsets) == 0, "only the engine that reserved may commit"
    for key, offset in zip(keys, offsets, strict=True):
        core.fill(offset, payload(key))
    assert core.commit(first, offsets) == 2
    assert core.load(second, keys) == 2


def test_a_chunk_without_its_prefix_is_refused(core: CoreHarness) -> None:
    keys = chain("a", 3)
    assert core.reserve(Client("e"), keys[1:], parent=keys[0]) == [
        ReserveAnswer.NO,
        ReserveAnswer.NO,
    ]


def test_others_are_served_while_slots_are_found_for_many() -> None:
    core, kept = CoreHarness(16 * MIB), chain("kept", 4)
    first, second = Client("e"), Client("f")
    core.store(second, kept)
    turns = 0
    for _ in core.reserving(first, chain("long", 60)):
        turns += 1
        assert core.load(second, kept) == 4
    assert turns == 3
    offsets = core.receive(first, Reserved).answers
    assert all(offset >= 0 for offset in offsets)
    assert core.commit(first, offsets) == 60
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_a_run_whose_parent_leaves_meanwhile_gets_no_more_slots(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 41)
    core.store(client, keys[:1])
    work = core.reserving(client, keys[1:], keys[0])
    next(work)
    early = [offset for offset in range(4 * MIB) if offset in core.pool._stores._filling["e"]]
    core.pool.handle(client, Abort(core.pool.generation, early))
    assert list(work) == []
    answers = core.receive(client, Reserved).answers
    assert answers[14:] == [ReserveAnswer.NO] * 26, "what it would continue is gone"
    assert len(answers) == 40


def test_slots_of_an_offer_that_is_broken_off_are_free_again(core: CoreHarness) -> None:
    client = Client("e")
    work = core.reserving(client, chain("a", 40))
    next(work)
    assert core.number("leased_slots") == 14
    work.close()
    assert not core.pool.lends("e")
    assert core.number("leased_slots") == 0
    assert core.reserve(client, chain("a", 4))[0] >= 0


def test_a_turn_is_short_whatever_the_answers_are(
    core: CoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, tried = Client("e"), Counter[int]()
    while core.reserve(client, chain(f"full {core.number('leased_slots')}", 1))[0] >= 0:
        pass
    has = Dram.has

    def count(dram: Dram, key: bytes) -> bool:
        tried[turns] += 1
        return has(dram, key)

    monkeypatch.setattr(Dram, "has", count)
    runs = [ChunkRun(NAMESPACE, 0, ROOT, b"".join(chain(f"r{n}", 8)), LENGTH) for n in range(100)]
    runs += [
        ChunkRun(NAMESPACE, 0, chain("gone", 1)[0], chain(f"g{n}", 1)[0], 1) for n in range(100)
    ]
    turns = 0
    for _ in core.pool.handle(client, Reserve(1, runs)) or ():
        turns += 1
    answers = core.receive(client, Reserved).answers
    assert set(answers) == {ReserveAnswer.LATER, ReserveAnswer.NO}
    assert len(answers) == 900
    assert turns == (2 * 100 + 2 * 100) // 16, "each run counts, and each chunk that was tried"
    assert max(tried.values()) <= 16


class Closed(OldestFirst):
    """A policy that would rather keep what it has."""

    def __init__(self) -> None:
        super().__init__(tiers=0)
        self.asked: list[tuple[bytes, bytes | None]] = []

    def declines(self, key: bytes, parent: bytes | None, now: float, slot_bytes: int) -> bool:
        self.asked.append((key, parent))
        return True


def test_a_newcomer_that_the_policy_declines_is_refused_and_nothing_leaves_for_it() -> None:
    core, client = CoreHarness(4 * MIB), Client("e")
    policy = Closed()
    core.pool._dram.policies._by_tenant[DEFAULT_TENANT] = policy
    kept, offered = chain("a", 60), chain("b", 8)
    core.store(client, kept)
    answers = core.reserve(client, offered)
    assert [answer >= 0 for answer in answers] == [True] * 4 + [False] * 4, "while slots are free"
    assert answers[4:] == [ReserveAnswer.NO] * 4
    assert policy.asked == [(short(offered[0]), None)], "the run's first chunk stands for all"
    more = core.reserve(client, chain("a", 62)[60:], parent=kept[-1])
    assert more == [ReserveAnswer.NO, ReserveAnswer.NO]
    assert policy.asked[-1] == (short(chain("a", 61)[-1]), short(kept[-1]))
    assert core.lookup(client, kept)[1].ready == 60
    assert core.number("stores_refused", reason="declined") == 6, "chunks"
    core.pool.handle(client, Abort(core.pool.generation, answers[:4]))
    assert core.pool.violations() == []
    core.pool.close(300)


def test_nonsense_is_refused(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 1)
    for length in (0, -1, 1 << 40, 4 * MIB):
        assert core.reserve(client, keys, length=length) == [ReserveAnswer.NO]
    assert core.reserve(client, keys, parent=b"short") == [ReserveAnswer.NO]
    core.pool.handle(client, Commit(core.pool.generation + 1, [0], bytes(16)))
    assert core.receive(client, Committed).count == 0
    core.pool.handle(client, Release(99, [1, 2]))
    core.pool.handle(client, Cancel(99))
    core.pool.handle(client, Abort(core.pool.generation, [12345]))
    core.pool.handle(client, Ask(99, -5, -5, -5, True))
    assert core.receive(client, Promise).total == 0


def test_t33_with_everything_pinned_a_store_is_refused_at_once(core: CoreHarness) -> None:
    client = Client("e")
    chains = [chain(str(number), 16) for number in range(4)]  # 64 slots: all there are
    offsets = []
    for keys in chains:
        answers = core.reserve(client, keys)
        offsets += [answer for answer in answers if answer >= 0]
    assert len(offsets) == 32, "an engine fills half of DRAM at most"
    assert set(core.reserve(client, chain("more", 16))) == {ReserveAnswer.LATER}
    assert core.reserve(Client("f"), chain("other", 2))[0] >= 0, "another has its share"
    core.pool.handle(client, Abort(core.pool.generation, offsets))
    core.pool.exited("f")
    assert core.number("used_bytes", tier="dram") == 0


class CarelessPolicy(OldestFirst):
    """Offers what is in use as well."""

    def pin(self, *keys: bytes) -> None:
        pass

    def unpin(self, key: bytes) -> None:
        pass


def test_t33_what_is_in_use_leaves_for_no_store_whatever_a_policy_says() -> None:
    core = CoreHarness(16 * LENGTH, policy=CarelessPolicy())
    client, keys = Client("e"), chain("read", 8)
    core.store(client, keys)
    number, _ = core.lookup(client, keys)
    core.ask(client, number, keys)
    core.store(client, chain("idle", 8))
    answers = core.reserve(client, chain("new", 16))
    assert core.number("pinned_chunks") == 8
    assert answers[-1] == ReserveAnswer.LATER
    for key in keys:
        chunk = core.pool._dram.chunks.get(short(key))
        assert chunk is not None
        assert core.pool.view(chunk.offset, LENGTH) == payload(key)
    core.pool.close(300)


def test_leaves_go_before_roots(core: CoreHarness) -> None:
    client, old = Client("e"), chain("old", 40)
    core.store(client, old)
    core.store(client, chain("new", 40))
    known = core.lookup(client, old)[1].known
    assert 0 < known < 40
    assert core.load(client, chain("new", 40)) == 32, "the load budget is half of the slab"


def test_models_of_different_shape_share_the_slab(core: CoreHarness) -> None:
    client = Client("e")
    core.store(client, chain("small", 64))
    for length in (LENGTH // 2, LENGTH * 3, LENGTH * 7):
        core.settle()
        keys = chain(f"of {length}", 3)
        offsets = core.reserve(client, keys, length=length)
        assert all(offset >= 0 for offset in offsets)
        assert core.commit(client, offsets) == 3
        assert core.lookup(client, keys)[1].known == 3


def test_an_engine_that_exits_gives_back_all_that_it_held(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 8)
    core.store(client, keys[:4])
    core.reserve(client, keys[4:], parent=keys[3])
    number, _ = core.lookup(client, keys)
    core.ask(client, number, keys)
    core.pool.disconnected(client)
    assert core.number("pinned_bytes") == 4 * LENGTH, "a living process may still read"
    assert core.number("leased_slots") == 4, "or write there"
    core.pool.exited("e")
    assert core.number("pinned_bytes") == 0
    assert core.number("leased_slots") == 0
    assert core.load(Client("f"), keys) == 4


def test_an_aborted_parent_takes_its_children_along(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 3)
    offsets = core.reserve(client, keys)
    assert core.commit(client, offsets[1:]) == 2
    core.pool.handle(client, Abort(core.pool.generation, offsets[:1]))
    core.settle()
    core.pool.handle(client, Abort(core.pool.generation, offsets[:1]))
    assert core.lookup(client, keys)[1].known == 0


def test_t6_a_rotten_slot_is_found_by_verify_dram() -> None:
    core = CoreHarness(4 * MIB, verify_dram=True)
    client, keys = Client("e"), chain("a", 4)
    core.store(client, keys)
    core.settle()
    number, _ = core.lookup(client, keys)
    offset = core.ask(client, number, keys).offsets[2]
    core.pool.handle(client, Release(number, []))
    core.pool.view(offset, 1)[0] ^= 1
    assert core.load(client, keys) == 2
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_t6_a_rotten_slot_is_found_by_the_idle_scrubber(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 4)
    core.store(client, keys)
    core.settle()  # its hash is known
    number, _ = core.lookup(client, keys)
    offset = core.ask(client, number, keys).offsets[2]
    core.pool.handle(client, Release(number, []))
    core.pool.view(offset, 1)[0] ^= 1
    core.pass_time_until(lambda: core.lookup(client, keys)[1].known == 2)


def test_shards_are_hashed_each_for_itself_and_a_rotten_one_is_found(core: CoreHarness) -> None:
    client, keys = Client("e"), chain("a", 2)
    run = ChunkRun(NAMESPACE, 0, ROOT, b"".join(keys), LENGTH, 2)
    offsets = core.reserve_run(client, run)
    digests = []
    for key, offset in zip(keys, offsets, strict=True):
        core.fill(offset, payload(key))
        digests.append(payload_hash(payload(key), 2))
    core.pool.handle(client, Commit(core.pool.generation, offsets, b"".join(digests)))
    assert core.receive(client, Committed).count == 2
    core.settle()
    checked = core.pool._scrubber.checked
    core.pass_time_until(lambda: core.pool._scrubber.checked >= checked + 4)
    assert core.lookup(client, keys)[1].known == 2, "they have the digests of their shards"
    core.pool.view(offsets[1], 1)[0] ^= 1
    core.pass_time_until(lambda: core.lookup(client, keys)[1].known == 1)


@pytest.mark.parametrize("shards", [0, -1, 3, 1 << 11])
def test_shards_that_cannot_be_are_not_wanted(core: CoreHarness, shards: int) -> None:
    run = ChunkRun(NAMESPACE, 0, ROOT, chain("a", 1)[0], 4096, shards)
    assert core.reserve_run(Client("e"), run) == [ReserveAnswer.NO]


def test_t58_a_commit_without_a_digest_for_each_slot_gives_the_slots_back(
    core: CoreHarness,
) -> None:
    """F8: what has no digest of its producer could not be verified."""
    client, keys = Client("e"), chain("a", 3)
    for digests in (b"", bytes(16), bytes(49)):
        offsets = core.reserve(client, keys)
        assert min(offsets) >= 0
        core.pool.handle(client, Commit(core.pool.generation, offsets, digests))
        assert core.receive(client, Committed).count == 0
    assert core.number("used_bytes", tier="dram") == 0
    assert core.pool.violations() == []
