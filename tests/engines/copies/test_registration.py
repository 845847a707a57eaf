"""A slab is registered in spans of whole slots, and gives way to what is being loaded."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from tests.engines.copies.simulated import SimulatedDriver
from tests.pool_process import HANG_S, wait_until

from forebay.engines.copies import registration
from forebay.engines.copies.contract import LoadPart, Piece, WorkerSlab
from forebay.engines.copies.pointers import PageTable, PageTables
from forebay.engines.copies.registration import Registration
from forebay.engines.copies.streamed import StreamedCopies
from forebay.engines.geometry import Geometry

pytestmark = pytest.mark.vllm  # the environment that has numpy
ARENA, ARENAS = 1 << 18, 4
SLOT = 9 << 10  # 28 an arena, and a rest
SLOTS = ARENA // SLOT


class Counting(threading.Condition):
    """Counts how often anyone began to wait."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


class Slab:
    """Memory, what it is registered with, and when."""

    def __init__(
        self, arenas: int, cap_bytes: int, span_bytes: int, driver: SimulatedDriver
    ) -> None:
        self.driver = driver
        self.memory = np.zeros(arenas * ARENA, dtype=np.uint8)
        self.changed = Counting()
        slab = WorkerSlab(1, self.memory, ARENA, cap_bytes)
        self.registration = Registration(self.driver, slab, SLOT, self.changed, span_bytes)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Start and length of each that is registered, in the order in which they were."""
        start = self.memory.ctypes.data
        return [(each - start, size) for each, size in list(self.driver.registered.items())]

    def has_registered(self, spans: int) -> bool:
        return len(self.spans) >= spans

    def pause(self) -> None:
        with self.changed:
            self.registration.pause()

    def want(self, offset: int) -> None:
        with self.changed:
            self.registration.want([offset], is_first=True)
        wait_until(lambda: bool(self.registration.are_ready([offset]).all()), "what is wanted")

    def end(self) -> None:
        with self.changed:
            self.registration.unregister()
        wait_until(self.registration.is_unregistered, "a registration that has ended")
        assert self.registration.ready_bytes == 0
        assert not self.driver.registered
        self.driver.end()


Begin = Callable[..., Slab]


@pytest.fixture
def begin() -> Iterator[Begin]:
    made: list[Slab] = []

    def start(
        arenas: int = ARENAS,
        cap_bytes: int = 1 << 40,
        span_bytes: int = SLOT,
        register_s: float = 0.002,
        before_register: Callable[[], object] = lambda: None,
    ) -> Slab:
        driver = SimulatedDriver(register_s=register_s, before_register=before_register)
        made.append(Slab(arenas, cap_bytes, span_bytes, driver))
        return made[-1]

    yield start
    for each in made:
        each.end()


@pytest.mark.parametrize("slots", [0.5, 1, 2, 5, 9, 27, 28, 60])
def test_every_slot_is_in_one_span_and_all_is_counted(begin: Begin, slots: float) -> None:
    slab = begin(span_bytes=int(slots * SLOT))
    wait_until(lambda: slab.registration.ready_bytes == ARENAS * ARENA, "the slab, to the byte")
    spans = slab.spans
    assert sum(size for _, size in spans) == ARENAS * SLOTS * SLOT, "none twice, no rest"
    longest = registration._EARLY_SPANS * max(1, int(slots)) * SLOT
    assert max(size for _, size in spans) <= longest, "several by one call: no step was begun"
    for arena in range(ARENAS):
        for number in range(SLOTS):
            at = arena * ARENA + number * SLOT
            assert any(start <= at and at + SLOT <= start + size for start, size in spans)


def test_beyond_the_cap_only_what_is_wanted_is_registered(begin: Begin) -> None:
    slab = begin(cap_bytes=2 * ARENA + ARENA // 2)
    wait_until(lambda: slab.registration.ready_bytes == 2 * ARENA, "what lies below the cap")
    slab.want(3 * ARENA)
    assert slab.registration.ready_bytes == 2 * ARENA + SLOT


def test_what_cannot_be_registered_is_not_counted(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    slab = begin(register_s=0.01)
    slab.driver.refuses = "no more"
    wait_until(lambda: bool(slab.registration.why), "the end")
    wait_until(lambda: bool(caplog.messages), "a line of it")
    assert slab.registration.ready_bytes == len(slab.spans) * SLOT


def test_arenas_too_small_for_a_slot_are_left_alone() -> None:
    driver, changed = SimulatedDriver(), threading.Condition()
    memory = np.zeros(SLOT, dtype=np.uint8)
    made = Registration(driver, WorkerSlab(1, memory, SLOT // 2, SLOT), SLOT, changed)
    with changed:
        made.unregister()
    wait_until(made.is_unregistered, "a registration that has ended")
    assert not driver.registered
    driver.end()


class Clock:
    """The registration's time, which passes only where a test lets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(registration, "time", made)
    return made


def test_what_nothing_wants_rests_when_something_is_loaded(begin: Begin, clock: Clock) -> None:
    slab = begin(arenas=40)
    slab.pause()
    before = len(slab.spans)
    slab.want(39 * ARENA + SLOT)
    registered, waits, begun = len(slab.spans), slab.changed.waits, time.monotonic()
    assert registered <= before + 2, "what it was at, and what was wanted"
    time.sleep(2 * registration._PAUSE_S)
    assert len(slab.spans) == registered, "it did not pause"
    naps = (time.monotonic() - begun) / registration._PAUSE_S
    assert slab.changed.waits <= waits + naps + 2, "it rests asleep"
    clock.now += registration._PAUSE_S
    wait_until(lambda: len(slab.spans) > registered + 10, "what is left, afterwards")


def test_loads_without_end_let_one_span_through_now_and_then(begin: Begin, clock: Clock) -> None:
    slab = begin(arenas=40)
    slab.pause()
    slab.want(39 * ARENA + SLOT)  # it is not at any other when this is registered
    before = len(slab.spans)
    for so_many in range(before + 1, before + 5):
        with slab.changed:
            clock.now += registration._AT_LEAST_S
            slab.registration.pause()
        wait_until(partial(slab.has_registered, so_many), "one span")
        time.sleep(0.02)
        assert len(slab.spans) == so_many


def test_steps_leave_only_what_stores_will_reach(begin: Begin, clock: Clock) -> None:
    """A step is always being begun: the rest of the slab comes a span now and then."""
    held = threading.Event()  # nothing is registered before the first step
    slab = begin(arenas=40, register_s=0.0, before_register=lambda: held.wait(HANG_S))
    with slab.changed:
        slab.registration.begin_step()
        slab.registration.note_stores([10 * ARENA])
    held.set()
    near = 10 * SLOTS + registration._NEAR_SPANS
    wait_until(lambda: bool(slab.registration.are_ready([place_of(near)]).all()), "what is near")
    with slab.changed:
        clock.now += registration._AT_LEAST_S
        slab.registration.begin_step()
    wait_until(lambda: bool(slab.registration.are_ready([place_of(near + 1)]).all()), "one more")
    assert not slab.registration.are_ready([place_of(39 * SLOTS)]).any()


def place_of(slot: int) -> int:
    return slot // SLOTS * ARENA + slot % SLOTS * SLOT


def test_arenas_given_back_meanwhile_are_not_registered(begin: Begin) -> None:
    held = threading.Event()
    slab = begin(register_s=0.0, before_register=lambda: held.wait(HANG_S))
    told = WorkerSlab(1, slab.memory, ARENA, ARENAS * ARENA, frozenset({2}))
    with slab.changed:
        slab.registration.take_over(told)
    held.set()
    wait_until(lambda: slab.registration.ready_bytes == (ARENAS - 1) * ARENA, "all but that one")
    assert slab.registration.are_ready([ARENA, 2 * ARENA, 3 * ARENA]).tolist() == [
        True,
        False,
        True,
    ]


class Noted(SimulatedDriver):
    """Counts spans that were begun, and has time pass while it registers one."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(register_s=0.002)
        self.clock = clock
        self.begun = 0
        self.paused_at: list[int] = []  # spans begun when it was told to pause
        self.launches = 0
        self.on_submitted = self._note

    def register(self, address: int, length: int) -> str:
        self.begun += 1
        self.clock.now += 0.02
        return super().register(address, length)

    def _note(self) -> None:
        self.launches += 1


@pytest.fixture
def load(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], Noted]]:
    """Load from so many arenas of a slab, from this one on; what was noted of it."""
    made: list[tuple[StreamedCopies, object]] = []
    driver, pause = Noted(clock), Registration.pause

    def noted_pause(self: Registration) -> None:
        driver.paused_at.append(driver.begun)
        pause(self)

    def begin(first: int, count: int) -> Noted:
        monkeypatch.setattr(Registration, "pause", noted_pause)
        cache = np.zeros((1, 8, SLOT), dtype=np.uint8)
        page_table = PageTable.of([(cache.ctypes.data, SLOT)], SLOT, 8)
        copies = StreamedCopies(driver, PageTables([page_table], Geometry(("layer",), SLOT, 16, 1)))
        made.append((copies, cache))  # as long as it is copied into
        memory = np.zeros(40 * ARENA, dtype=np.uint8)
        copies.attach(WorkerSlab(1, memory, ARENA, memory.nbytes, slot_bytes=SLOT))
        wait_until(lambda: copies.reach_bytes > 0, "the first span")
        copies.begin(1, [], loads=True, freed=0)
        pieces = [Piece((first + n) * ARENA, 0, [n % 8]) for n in range(count)]
        copies.load(LoadPart("r", 1, pieces, True))
        wait_until(lambda: driver.launches, "a load on the wire")
        return driver

    yield begin
    for copies, _ in made:
        copies.close()
    driver.end()


def test_a_load_is_submitted_without_registering_beside_it(
    load: Callable[[int, int], Noted],
) -> None:
    driver = load(0, 1)
    time.sleep(2 * registration._PAUSE_S)
    assert driver.begun - driver.paused_at[0] <= 1


def test_a_load_that_waited_for_its_spans_has_its_forward_left_alone(
    load: Callable[[int, int], Noted],
) -> None:
    """The pause that began when it was told is over when it is submitted: another one begins."""
    driver = load(20, 15)  # far from the start, in spans that take three rests
    assert driver.begun - driver.paused_at[0] >= 15, "the control: it had to wait for them"
    time.sleep(2 * registration._PAUSE_S)
    assert len(driver.paused_at) > 1
    assert driver.begun - driver.paused_at[-1] <= 1
