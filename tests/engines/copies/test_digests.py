"""Digests of what was stored are the same whoever computes them, and a dead process costs none."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.engines.copies.machine import CHUNK, SLOT, page_tables
from tests.pool_process import HANG_S, wait_until

from forebay.engines.copies.contract import DOES_NOT_FIT, Piece, Store, WorkerSlab
from forebay.engines.digests import process
from forebay.engines.digests.process import HashingProcess, SlabRange
from forebay.engines.digests.stores import StoreDigests
from forebay.record.exponents import COUNT_AT, encoded_bytes
from forebay.record.header import payload_hash
from forebay.sys.shared import SharedMemory

pytestmark = pytest.mark.vllm  # the environment that has numpy
COUNT = 12


@pytest.fixture(autouse=True)
def _a_process_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine runs no process for seconds; a test of giving up names its own time."""
    for name in ("_ANSWER_S", "_END_S"):
        monkeypatch.setattr(process, name, HANG_S)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(4 << 20)
    memory.extend(2 << 20)
    memory.extend(1 << 20)
    yield memory
    memory.close()


@pytest.fixture
def digests() -> Iterator[StoreDigests]:
    digests = StoreDigests(page_tables([(0, 4096)] * 3).shape)
    yield digests
    digests.close(HANG_S)


def slab_of(memory: SharedMemory) -> WorkerSlab:
    array = np.frombuffer(memory.view, dtype=np.uint8)
    return WorkerSlab(1, array, 2 << 20, memory.size_bytes, segments=tuple(memory.segments))


def stores() -> list[Store]:
    """The last one lies in the second segment."""
    places = [*(number * SLOT for number in range(COUNT - 1)), 2 << 20]
    return [Store(1, Piece(place, 0, [0, 1])) for place in places]


def digests_of(digests: StoreDigests, slab: WorkerSlab) -> list[bytes]:
    """Of stores that hold different bytes, as they are told."""
    made = stores()
    for number, store in enumerate(made):
        slab.memory[store.piece.offset : store.piece.offset + CHUNK] = number + 1
    digests.submit(made, slab)
    found: dict[int, bytes] = {}

    def are_done() -> bool:
        found.update({store.piece.offset: digest for store, digest in digests.take_done()})
        return len(found) == COUNT

    wait_until(are_done, "digests")
    return [found[store.piece.offset] for store in made]


EXPECTED = [payload_hash(bytes([number + 1]) * CHUNK) for number in range(COUNT)]


def process_of(digests: StoreDigests) -> HashingProcess:
    wait_until(lambda: digests._process is not None, "a process")
    assert digests._process is not None
    return ready(digests._process)


def ready(started: HashingProcess) -> HashingProcess:
    wait_until(started.is_ready, "a process that can be asked")
    return started


def has_exited(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")  # noqa: PTH110


def test_a_process_computes_them_before_the_first_store_is_there(
    memory: SharedMemory, digests: StoreDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    slab = slab_of(memory)
    digests.attach(slab)
    process_of(digests)
    monkeypatch.setattr("forebay.engines.digests.stores.digest_at", None)  # nobody does it here
    assert digests_of(digests, slab) == EXPECTED


def test_a_thread_computes_them_once_the_process_was_killed(
    memory: SharedMemory, digests: StoreDigests, caplog: pytest.LogCaptureFixture
) -> None:
    slab = slab_of(memory)
    digests.attach(slab)
    os.kill(process_of(digests).pid, signal.SIGKILL)
    assert digests_of(digests, slab) == EXPECTED
    assert digests_of(digests, slab) == EXPECTED
    assert len(caplog.records) == 1


def test_a_process_that_answers_nothing_is_given_up(
    memory: SharedMemory, digests: StoreDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_ANSWER_S", 0.1)
    slab = slab_of(memory)
    digests.attach(slab)
    pid = process_of(digests).pid
    os.kill(pid, signal.SIGSTOP)
    assert digests_of(digests, slab) == EXPECTED
    wait_until(lambda: has_exited(pid), "its end")


def test_without_a_process_a_thread_computes_them(
    memory: SharedMemory, digests: StoreDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process, "ChildProcess", refuse)
    slab = slab_of(memory)
    digests.attach(slab)
    assert digests_of(digests, slab) == EXPECTED


def test_a_slab_that_is_left_is_unmapped_and_the_next_one_has_a_process_of_its_own(
    memory: SharedMemory, digests: StoreDigests
) -> None:
    first, second = slab_of(memory), slab_of(memory)
    digests.attach(first)
    pid = process_of(digests).pid
    digests.attach(None)
    wait_until(lambda: digests.is_idle, "the end of the first process")
    assert has_exited(pid)
    digests.attach(second)
    assert digests_of(digests, second) == EXPECTED
    pid = process_of(digests).pid
    digests.close(HANG_S)
    assert has_exited(pid)


def test_its_process_hears_no_terminal_and_ends_with_its_socket(memory: SharedMemory) -> None:
    started = ready(HashingProcess(memory.segments))
    assert started.digests_of([SlabRange(0, 8, 8, 0)]) == [payload_hash(bytes(8))]
    assert os.getpgid(started.pid) != os.getpgid(0)
    started._connection.close()
    wait_until(started._process.has_exited, "its end")
    started._process.close()


def test_nobody_waits_for_a_process_that_is_not_ready(
    memory: SharedMemory, digests: StoreDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashingProcess, "is_ready", lambda _: False)
    monkeypatch.setattr(HashingProcess, "digests_of", None)
    slab = slab_of(memory)
    digests.attach(slab)
    assert digests_of(digests, slab) == EXPECTED


def test_what_goes_wrong_misses_these_stores_alone(
    memory: SharedMemory, digests: StoreDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    slab = slab_of(memory)
    digests.attach(slab)
    process_of(digests)
    with monkeypatch.context() as patch:
        patch.setattr(HashingProcess, "digests_of", fail)
        assert digests_of(digests, slab) == [b""] * COUNT
    assert digests_of(digests, slab) == EXPECTED


def test_one_whose_engine_is_gone_before_it_begins_touches_nothing(memory: SharedMemory) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(msgspec.msgpack.encode([SlabRange(0, 0, 8, 0)]))
    memory.view[:8] = b"others' "
    segment = memory.segments[0]
    somebody = "1"  # is not who starts it
    words = [somebody, str(theirs.fileno()), f"{segment.descriptor}:{segment.size_bytes}"]
    descriptors = (theirs.fileno(), segment.descriptor)
    command = [sys.executable, "-m", process.__name__, *words]
    assert subprocess.run(command, pass_fds=descriptors, check=False).returncode == 1
    assert bytes(memory.view[:8]) == b"others' "
    ours.close()
    theirs.close()


def test_it_writes_the_padding_and_sees_what_does_not_fit(memory: SharedMemory) -> None:
    array: Any = np.frombuffer(memory.view, dtype=np.uint8)
    array[:] = 7
    size = encoded_bytes(4096)
    array[COUNT_AT] = 255  # escapes: more than there is room for
    started = ready(HashingProcess(memory.segments))
    padded, unfit = started.digests_of(
        [SlabRange(1 << 20, 100, 128, 0), SlabRange(0, size, size, 4096)]
    )
    assert padded == payload_hash(bytes([7]) * 100 + bytes(28))
    assert unfit == DOES_NOT_FIT
    started.close()


def test_more_places_than_one_message_holds(memory: SharedMemory) -> None:
    started = ready(HashingProcess(memory.segments))
    assert started.digests_of([SlabRange(0, 8, 8, 0)] * 2500) == [payload_hash(bytes(8))] * 2500
    started.close()
