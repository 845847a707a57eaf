"""A4: looking at deadlines costs nothing while none has come, however many requests there are."""

import pytest
from tests.core_harness import LENGTH, Client, CoreHarness, chain
from tests.line_counter import LineCounter

from forebay.pool.messages import Ask, Cancel, Promise
from forebay.testing.clock import ManualClock

MANY = 1000
LINES_MAX = 500  # of a tick in which nothing is due
WANTED, OTHERS = chain("wanted", 8), chain("others", 8)


@pytest.fixture
def core() -> CoreHarness:
    """Loads may hold 8 chunks at once."""
    return CoreHarness(16 * LENGTH)


def advance(core: CoreHarness, seconds: float) -> None:
    assert isinstance(core.clock, ManualClock)
    core.clock.advance(seconds)


def tick_lines(core: CoreHarness) -> int:
    with LineCounter() as counter:
        core.pool.tick(core.clock.monotonic())
    return counter.lines


def ask_in_vain(core: CoreHarness, client: Client, deadline_ms: int) -> int:
    """A request that waits for room until its deadline; its number."""
    number, _ = core.lookup(client, OTHERS)
    core.pool.handle(client, Ask(number, 0, len(OTHERS), deadline_ms, stream=False))
    return number


def test_requests_that_have_not_asked_cost_a_tick_nothing(core: CoreHarness) -> None:
    client = Client("e")
    core.store(client, WANTED)
    for _ in range(MANY):
        core.lookup(client, WANTED)
        advance(core, 0.01)
    assert tick_lines(core) < LINES_MAX
    with LineCounter() as counter:
        core.pool._loads.read_ahead.learned({bytes(16)})
    assert counter.lines < LINES_MAX, "nor has a tier's answer to do with them"
    advance(core, 25.0)
    core.turn()
    retained = core.pool._loads._retention._arrived
    assert 0 < len(retained) < MANY, "those that came first are retained no more"
    advance(core, 10.0)
    core.turn()
    assert not retained
    assert not core.pool.violations()


def test_requests_that_wait_for_room_cost_a_tick_nothing(core: CoreHarness) -> None:
    client = Client("e")
    core.store(client, WANTED)
    core.store(client, OTHERS)
    number, _ = core.lookup(client, WANTED)
    assert core.ask(client, number, WANTED).total == len(WANTED), "all that loads may hold"
    for waiting in range(MANY):
        ask_in_vain(core, client, 30_000 - 10 * waiting)
    assert tick_lines(core) < LINES_MAX
    client.inbox.clear()
    advance(core, 25.0)
    core.turn()
    cut = [message for message in client.inbox if isinstance(message, Promise)]
    assert len(cut) == core.number("promises_cut")
    assert MANY // 3 < len(cut) < MANY
    asked = [message.request for message in cut]
    assert asked == sorted(asked, reverse=True), "whose deadline came first"
    assert not core.pool.violations()


def test_deadlines_of_requests_that_are_over_are_forgotten(core: CoreHarness) -> None:
    client = Client("e")
    core.store(client, WANTED)
    core.store(client, OTHERS)
    number, _ = core.lookup(client, WANTED)
    core.ask(client, number, WANTED)
    for _ in range(MANY):
        core.pool.handle(client, Cancel(ask_in_vain(core, client, 30_000)))
    core.turn()
    assert len(core.pool._loads._asks._deadlines) < 100
