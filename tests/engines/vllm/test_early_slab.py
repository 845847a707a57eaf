"""A slab that is mapped and registered before the first step, whatever the pool does meanwhile.

Real pools in processes of their own; a simulated device stands in for the GPU.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from tests.engines.copies.simulated import SimulatedDriver
from tests.engines.vllm.test_both_sides import TOKENS, VALUE, Both
from tests.engines.vllm.test_scheduler_side import CHUNKS, ROOT, SHAPE, Output
from tests.pool_process import (
    DRAM_BYTES,
    HANG_S,
    PatientClient,
    PoolProcess,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.engines.slab.early import StartPool
from forebay.engines.vllm.metadata import StepMetadata
from forebay.errors import StartupError
from forebay.identity.keys import KeyChain
from forebay.pool.client import Chain
from forebay.pool.client.outcomes import AdminOutcome

pytestmark = pytest.mark.vllm


class Counted(SimulatedDriver):
    """Counts what is unregistered."""

    unregistered = 0

    def unregister(self, address: int) -> None:
        self.unregistered += 1
        super().unregister(address)


class Early(Both):
    """Both sides, of which the worker's has begun before the first step."""

    def __init__(self, pool: PoolProcess, start: StartPool | None = None) -> None:
        super().__init__(pool, driver=Counted())
        self.worker.prepare(start)

    def __enter__(self) -> Self:
        return self

    @property
    def unregistered(self) -> int:
        assert isinstance(self.driver, Counted)
        return self.driver.unregistered

    def registered_bytes(self) -> int:
        return sum(list(self.driver.registered.values()))

    def wait_until_registered(self, size_bytes: int) -> None:
        wait_until(lambda: self.registered_bytes() >= size_bytes, "the slab to be registered")

    def wait_until_mapped(self) -> None:
        """Step until the worker has joined."""

        def is_mapped() -> bool:
            self.step()
            return self.worker._session is not None

        wait_until(is_mapped, "the worker to join")

    def loads(self) -> bool:
        """Whether what the pool holds arrives in the KV cache."""
        self.load()
        self.worker.begin(StepMetadata())  # whose forward waits for every load
        return self.seen_by_a_forward() == {VALUE}


def fill(pool: PoolProcess) -> None:
    keys = KeyChain(ROOT).extend(list(range(TOKENS)))
    with PatientClient(pool.socket) as client:
        payloads = [bytes([VALUE]) * SHAPE.chunk_bytes] * CHUNKS
        assert client.store(Chain(ROOT.namespace, keys), payloads).stored == CHUNKS


def resize(pool: PoolProcess, dram_bytes: int) -> None:
    with PatientClient(pool.socket) as client:
        assert isinstance(client.resize(dram_bytes, timeout_s=HANG_S), AdminOutcome)


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def pool(place: Path) -> Iterator[PoolProcess]:
    with running_pool(place, disk=False) as pool:
        fill(pool)
        yield pool


def test_the_first_step_takes_over_what_is_registered(pool: PoolProcess) -> None:
    with Early(pool) as both:
        both.wait_until_registered(DRAM_BYTES)
        wait_until(lambda: len(pool.stats()["engines"]) == 1, "it to leave: the scheduler is there")
        before = dict(both.driver.registered)
        assert both.loads()
        assert both.worker._early is None
        assert both.driver.registered == before
    assert both.unregistered == len(before), "at the end, each once"


def test_a_step_of_another_slab_has_the_early_one_left(pool: PoolProcess) -> None:
    with Early(pool) as both:
        both.wait_until_registered(DRAM_BYTES)
        before = len(both.driver.registered)
        pool.kill()
        pool.start()
        fill(pool)
        both.rejoin()
        both.wait_until_mapped()
        assert both.unregistered == before
        assert both.loads()


def test_a_pool_that_is_gone_when_the_first_step_comes(pool: PoolProcess) -> None:
    """The step was built before that was known: it names the slab, and nobody answers."""
    with Early(pool) as both:
        both.wait_until_registered(DRAM_BYTES)
        step = both.scheduler.begin_step(Output)
        pool.kill()
        both.worker.begin(step)
        assert both.worker._session is None
        pool.start()
        fill(pool)
        both.rejoin()
        both.wait_until_mapped()
        assert both.loads()


def test_slots_of_another_size_are_registered_anew(pool: PoolProcess) -> None:
    with Early(pool) as both:
        both.wait_until_registered(DRAM_BYTES)
        before = len(both.driver.registered)
        step = both.scheduler.begin_step(Output)
        both.worker._shape = replace(SHAPE, shards=2)
        step.widest = (3 * SHAPE.block_bytes,)

        def is_mapped() -> bool:
            both.worker._begun = None
            both.worker.begin(step)
            return both.worker._session is not None

        wait_until(is_mapped, "the worker to join")
        assert both.unregistered == before


def test_what_the_pool_has_added_and_given_back_meanwhile_is_known(pool: PoolProcess) -> None:
    with Early(pool) as both:
        both.wait_until_registered(DRAM_BYTES)
        resize(pool, DRAM_BYTES // 2)
        resize(pool, 2 * DRAM_BYTES)
        assert both.loads()
        slab = both.worker._session and both.worker._session.slab
        assert slab
        assert slab.given_back, "the first cap was lowered"
        both.wait_until_registered(slab.size_bytes)
        assert not both.unregistered


def test_a_pool_is_started_where_none_answers(place: Path) -> None:
    pool = PoolProcess(place, disk=False)
    calls = []

    def start() -> None:
        calls.append(pool.start())
        fill(pool)

    with contextlib.ExitStack() as stack:
        both = Early(pool, start)
        stack.enter_context(both)
        both.wait_until_registered(DRAM_BYTES)
        stack.callback(pool.kill)
        both.rejoin()
        assert both.loads()
        assert len(calls) == 1
        assert not both.unregistered


def test_where_no_pool_can_be_had_the_attempt_ends(place: Path) -> None:
    def start() -> None:
        raise StartupError("there is none.")

    with Early(PoolProcess(place), start) as both:
        assert both.worker._early is not None
        both.worker._early._thread.join(HANG_S)
        assert not both.worker._early._thread.is_alive()
        both.step()
        assert both.worker._session is None


def test_a_pool_that_comes_later_is_found(place: Path) -> None:
    with Early(PoolProcess(place)) as both:
        both.step()
        with running_pool(place, disk=False) as pool:
            both.wait_until_registered(DRAM_BYTES)
            fill(pool)
            both.rejoin()
            assert both.loads()
            assert not both.unregistered


@pytest.mark.parametrize("ends", ["with the engine", "with the first step"])
def test_a_pool_that_is_found_too_late_is_left_alone(pool: PoolProcess, ends: str) -> None:
    """The thread waits for a pool; what ends it is not held up, and nothing is attached later."""
    gate, is_waiting = threading.Event(), threading.Event()
    socket, pool.socket = pool.socket, str(pool.place / "nobody")

    def start() -> None:
        is_waiting.set()
        assert gate.wait(HANG_S)

    both = Early(pool, start)
    early = both.worker._early
    assert early is not None
    assert is_waiting.wait(HANG_S)
    pool.socket, early._place = socket, early._place._replace(socket_path=socket)
    both.worker._socket_path = both.scheduler._pool._socket_path = socket
    if ends == "with the engine":
        both.worker.close()
    else:
        both.rejoin()
        both.wait_until_mapped()
        both.wait_until_registered(DRAM_BYTES)
    before = dict(both.driver.registered)
    gate.set()
    early._thread.join(HANG_S)
    assert not early._thread.is_alive()
    assert both.driver.registered == before
    assert early._mapped is None
    both.__exit__()
