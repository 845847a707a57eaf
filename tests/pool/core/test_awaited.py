"""A lookup of what another engine just stores is answered when that is here, or never will be."""

from collections.abc import Iterator, Sequence

import pytest
from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain, payload
from tests.tiers.slow_memory import SlowMemoryTier

from forebay.pool.core.lookups.awaited import KEYS_BYTES_MAX
from forebay.pool.messages import AWAIT_S, KEYS_MAX, Abort, Cancel, Found, Lookup
from forebay.record.region import SHORT_KEY_BYTES, short
from forebay.sys.world import World
from forebay.tiers.contract import Prefix, Tier, TierListener

CHUNKS = 4


@pytest.fixture
def core() -> Iterator[CoreHarness]:
    harness = CoreHarness(64 * LENGTH)
    yield harness
    assert harness.pool.violations() == []
    harness.pool.close(60)


class BrokenTier(SlowMemoryTier):
    """Has a bug: no lookup can be answered that comes to it."""

    def prefix(self, keys: Sequence[bytes]) -> Prefix:
        raise ZeroDivisionError


class Meeting:
    """One engine stores a prompt, another has looked it up."""

    def __init__(self, core: CoreHarness, awaits: int = CHUNKS, first: int = 2) -> None:
        self.core, self.stores, self.loads = core, Client("stores"), Client("loads")
        self.keys = chain("prompt", CHUNKS)
        core.store(self.stores, self.keys[:first])
        self.offsets = core.reserve(self.stores, self.keys[first:], self.keys[first - 1])
        for key, offset in zip(self.keys[first:], self.offsets, strict=True):
            core.fill(offset, payload(key))
        self.look_up(1, awaits)

    def look_up(self, number: int, awaits: int) -> None:
        joined = b"".join(map(short, self.keys))
        self.core.pool.handle(self.loads, Lookup(number, NAMESPACE, 0, joined, awaits=awaits))

    def answers(self) -> list[tuple[int, int]]:
        """Requests that were answered, each with the chunks that are known."""
        found = [each for each in self.loads.inbox if isinstance(each, Found)]
        return [(each.request, each.known) for each in found if not each.coming]


def test_the_answer_comes_with_the_commit_and_can_be_loaded(core: CoreHarness) -> None:
    meeting = Meeting(core)
    core.turn()
    assert meeting.answers() == []
    assert meeting.loads.inbox == [Found(1, 0, 0, coming=True)]
    assert core.pool.is_waiting
    core.commit(meeting.stores, meeting.offsets)
    assert meeting.answers() == [(1, CHUNKS)]
    assert len(core.ask(meeting.loads, 1, meeting.keys).offsets) == CHUNKS
    core.pool.handle(meeting.loads, Cancel(1))


def test_one_of_two_commits_is_not_enough(core: CoreHarness) -> None:
    meeting = Meeting(core)
    core.commit(meeting.stores, meeting.offsets[:1])
    assert meeting.answers() == []
    core.commit(meeting.stores, meeting.offsets[1:])
    assert meeting.answers() == [(1, CHUNKS)]


@pytest.mark.parametrize("awaits", [0, 1, 2, -5])
def test_nobody_waits_for_what_was_not_awaited(core: CoreHarness, awaits: int) -> None:
    meeting = Meeting(core, awaits)
    assert meeting.answers() == [(1, 2)]
    core.commit(meeting.stores, meeting.offsets)


def test_more_chunks_than_there_are_keys_may_be_awaited(core: CoreHarness) -> None:
    meeting = Meeting(core, 1 << 40)
    core.commit(meeting.stores, meeting.offsets)
    assert meeting.answers() == [(1, CHUNKS)]


def test_nothing_is_waited_for_that_nobody_stores(core: CoreHarness) -> None:
    meeting = Meeting(core)
    core.commit(meeting.stores, meeting.offsets)
    meeting.keys = chain("another", CHUNKS)
    meeting.look_up(2, CHUNKS)
    assert meeting.answers() == [(1, CHUNKS), (2, 0)]


def test_a_store_that_is_given_up_ends_the_wait(core: CoreHarness) -> None:
    meeting = Meeting(core)
    core.pool.handle(meeting.stores, Abort(core.pool.generation, meeting.offsets))
    assert meeting.answers() == [(1, 2)]


def test_an_engine_that_dies_while_storing_ends_the_wait(core: CoreHarness) -> None:
    meeting = Meeting(core)
    core.pool.exited("stores")
    assert meeting.answers() == [(1, 2)]


def test_a_store_that_hangs_is_waited_for_until_the_deadline(core: CoreHarness) -> None:
    meeting = Meeting(core)
    core.pass_time(AWAIT_S * 0.9)
    core.turn()
    assert meeting.answers() == []
    core.pass_time(AWAIT_S * 0.2)
    core.turn()
    assert meeting.answers() == [(1, 2)]
    core.commit(meeting.stores, meeting.offsets)
    assert meeting.answers() == [(1, 2)]


def test_who_has_gone_or_cancelled_is_not_answered(core: CoreHarness) -> None:
    meeting = Meeting(core)
    meeting.look_up(2, CHUNKS)
    core.pool.handle(meeting.loads, Cancel(1))
    core.pool.disconnected(meeting.loads)
    core.commit(meeting.stores, meeting.offsets)
    assert meeting.answers() == []
    assert not core.pool.is_waiting


def test_one_session_can_have_so_many_lookups_wait(core: CoreHarness) -> None:
    meeting = Meeting(core)
    for number in range(2, 200):
        meeting.look_up(number, CHUNKS)
    assert 100 < len(meeting.answers()) < 199
    core.commit(meeting.stores, meeting.offsets)
    assert {number for number, _ in meeting.answers()} == set(range(1, 200))


def test_what_waits_is_kept_as_far_as_there_is_room(core: CoreHarness) -> None:
    meeting = Meeting(core)
    meeting.keys += chain("the longest that there is", KEYS_MAX - CHUNKS)
    for number in range(2, 10):
        meeting.look_up(number, CHUNKS)
    waiting = 9 - len(meeting.answers())
    assert waiting == KEYS_BYTES_MAX // (KEYS_MAX * SHORT_KEY_BYTES)
    core.commit(meeting.stores, meeting.offsets)
    assert {number for number, _ in meeting.answers()} == set(range(1, 10))


@pytest.mark.expects_faults
def test_a_lookup_that_cannot_be_answered_costs_nobody_else_anything() -> None:
    def opened(listener: TierListener, world: World) -> Tier:
        return BrokenTier(listener, world=world)

    core = CoreHarness(64 * LENGTH, store=opened)
    meeting = Meeting(core)
    meeting.keys += chain("of which DRAM has nothing", 1)  # so that the tier is asked
    meeting.look_up(2, CHUNKS)
    core.commit(meeting.stores, meeting.offsets)
    assert meeting.answers() == [(1, CHUNKS), (2, 0)]
    core.pool.close(60)
