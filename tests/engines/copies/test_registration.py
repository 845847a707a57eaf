"""A slab is registered in spans of whole slots, and gives way to what is being loaded."""

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.engines.copies.simulated import SimulatedDriver
from tests.pool_process import wait_until

from forebay.engines.copies import registration
from forebay.engines.copies.contract import LoadPart, Piece, WorkerSlab
from forebay.engines.copies.pointers import PageTable
from forebay.engines.copies.registration import Registration
from forebay.engines.copies.streamed import StreamedCopies

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

    def __init__(self, arenas: int, cap_bytes: int, span_bytes: int, register_s: float) -> None:
        self.driver = SimulatedDriver(register_s=register_s)
        self.memory = np.zeros(arenas * ARENA, dtype=np.uint8)
        self.changed = Counting()
        slab = WorkerSlab(1, self.memory, ARENA, cap_bytes)
        self.registration = Registration(self.driver, slab, SLOT, self.changed, span_bytes)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Start and length of each that is registered, in the order in which they were."""
        start = self.memory.ctypes.data
        return [(each - start, size) for each, size in list(self.driver.registered.items())]

    def rest(self) -> None:
        with self.changed:
            self.registration.rest()

    def want(self, offset: int) -> None:
        with self.changed:
            self.registration.want([offset], is_first=True)
        wait_until(lambda: bool(self.registration.are_ready([offset]).all()), "what is wanted")

    def end(self) -> None:
        with self.changed:
            self.registration.leave()
        wait_until(self.registration.has_left, "a registration that has left")
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
    ) -> Slab:
        made.append(Slab(arenas, cap_bytes, span_bytes, register_s))
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
    assert max(size for _, size in spans) <= max(1, int(slots)) * SLOT
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
        made.leave()
    wait_until(made.has_left, "a registration that has left")
    assert not driver.registered
    driver.end()


def test_what_nothing_wants_rests_when_something_is_loaded(begin: Begin) -> None:
    slab = begin(arenas=40)
    slab.rest()  # as early as can be
    before = len(slab.spans)
    slab.want(39 * ARENA + SLOT)
    registered, waits = len(slab.spans), slab.changed.waits
    assert registered <= before + 2, "what it was at, and what was wanted"
    slab.rest()
    time.sleep(registration._REST_S / 2)
    assert len(slab.spans) <= registered + 1, "it did not rest"
    assert slab.changed.waits <= waits + 3, "it rests asleep"
    wait_until(lambda: len(slab.spans) > registered + 10, "what is left, afterwards")


def test_loads_without_end_let_one_span_through_now_and_then(begin: Begin) -> None:
    slab = begin(arenas=40)
    slab.rest()
    begun, before = time.monotonic(), len(slab.spans)
    while time.monotonic() < begun + 3.5 * registration._AT_LEAST_S:
        slab.rest()
        time.sleep(0.01)
    assert 2 <= len(slab.spans) - before <= 5


class Stamped(SimulatedDriver):
    """Notes when each span was begun, and when a load was submitted."""

    def __init__(self, submit_s: float = 0.0) -> None:
        super().__init__(register_s=0.02)
        self.begun: list[float] = []
        self.launched: list[float] = []
        self.submit_s = submit_s
        self.on_submitted = self._note

    def register(self, address: int, length: int) -> str:
        self.begun.append(time.monotonic())
        return super().register(address, length)

    def between(self, start: float, stop: float) -> int:
        return sum(start < each < stop for each in self.begun)

    def _note(self) -> None:
        time.sleep(self.submit_s)
        self.launched.append(time.monotonic())


@pytest.fixture
def load() -> Iterator[Callable[[Stamped, int, int], float]]:
    """Load from so many arenas of a slab, from this one on; when it was told."""
    made: list[tuple[StreamedCopies, Stamped, object]] = []

    def begin(driver: Stamped, first: int, count: int) -> float:
        cache = np.zeros((1, 8, SLOT), dtype=np.uint8)
        copies = StreamedCopies(driver, PageTable.of([(cache.ctypes.data, SLOT)], SLOT, 8), SLOT)
        made.append((copies, driver, cache))  # as long as it is copied into
        memory = np.zeros(40 * ARENA, dtype=np.uint8)
        copies.attach(WorkerSlab(1, memory, ARENA, memory.nbytes))
        wait_until(lambda: copies.reach_bytes > 0, "the first span")
        copies.begin(1, [], loads=True, freed=0)
        pieces = [Piece((first + n) * ARENA, 0, [n % 8]) for n in range(count)]
        told = time.monotonic()
        copies.load(LoadPart("r", 1, pieces, True))
        wait_until(lambda: bool(driver.launched), "a load on the wire")
        return told

    yield begin
    for copies, driver, _ in made:
        copies.close()
        driver.end()


def test_a_load_is_submitted_without_registering_beside_it(
    load: Callable[[Stamped, int, int], float],
) -> None:
    driver = Stamped(submit_s=0.08)
    told = load(driver, 0, 1)
    assert driver.between(told, told + 0.08) <= 1


def test_a_load_that_waited_for_its_spans_has_its_forward_left_alone(
    load: Callable[[Stamped, int, int], float],
) -> None:
    """The rest that began when it was told is over when it is submitted: another one begins."""
    driver = Stamped()
    told = load(driver, 20, 15)  # far from the start, in spans that take three rests
    launched = driver.launched[0]
    assert driver.between(told, launched) <= 17, "hardly more than it needs"
    time.sleep(0.8 * registration._REST_S)
    assert driver.between(launched, time.monotonic()) <= 1
