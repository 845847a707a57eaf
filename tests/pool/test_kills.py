"""Kill tests with real processes: whoever dies, in whatever state, gives back all that it held."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import pool_process
from tests.clocks import waiting_in_vain
from tests.pool_process import PatientClient, PoolProcess, count_exact, exact, made

from forebay.pool.client import Client, Known, Receipt
from forebay.testing.clock import ManualClock

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
STATES = ("reserved", "copying", "committed", "waiting", "leased")
NOTHING = {"pinned_bytes": 0, "leased_slots": 0, "requests": 0, "connections": 0}


class EngineProcess:
    """`tests.engine_process` in a process of its own."""

    def __init__(self, state: str, pool: PoolProcess) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine_process", state, pool.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def ask(self) -> dict[str, Any]:
        """Let it finish, and look for a pool."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.line())
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def engine(state: str, pool: PoolProcess) -> Iterator[EngineProcess]:
    process = EngineProcess(state, pool)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def pool(place: Path) -> Iterator[PoolProcess]:
    """A pool that has four shared chunks on disk, and rules of its own in a file."""
    (place / "faults").touch()
    pool = PoolProcess(place, "--faults-file", str(place / "faults"), faulty=True).start()
    try:
        share(pool)
        yield pool
    finally:
        if pool.process is not None and pool.process.poll() is None:
            pool.kill()


def share(pool: PoolProcess) -> None:
    """Put the shared chunks on disk, and nowhere else: the pool starts anew."""
    chunks, chain = made("shared")
    with PatientClient(pool.socket) as client:
        assert client.store(chain, [chunk.payload for chunk in chunks]) == Receipt(stored=4)
        pool_process.wait_until(lambda: pool.number("chunks", tier="disk") == 4, "writing behind")
    assert pool.stop() == 0
    pool.start()


def switch(pool: PoolProcess, *rules: str) -> None:
    (pool.place / "faults").write_text("\n".join(rules))
    before = pool.log.read_text().count("faults are on")
    pool.signal(signal.SIGHUP)
    pool_process.wait_until(
        lambda: pool.log.read_text().count("faults are on") > before, "the faults"
    )


def returns_to(pool: PoolProcess, baseline: dict[str, int]) -> None:
    """Everything is as it was, soon."""
    until = time.monotonic() + pool_process.HANG_S
    while changed := _changed(pool.held(), baseline):
        assert time.monotonic() < until, changed
        time.sleep(0.05)


def _changed(held: dict[str, int], baseline: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What differs. Fewer descriptors do not: whoever waited for the start had some at first."""
    return {
        name: (held[name], before)
        for name, before in baseline.items()
        if held[name] != before and not (name == "descriptors" and held[name] < before)
    }


def test_t30_a_client_killed_in_any_state_gives_back_all_that_it_held(pool: PoolProcess) -> None:
    baseline = pool.held()
    assert not baseline["pinned_bytes"]
    assert not baseline["leased_slots"]
    for state in ("waiting", *(state for state in STATES if state != "waiting")):
        slow = state == "waiting"
        if slow:
            switch(pool, "read:latency=30s")
        with engine(state, pool) as client:
            held = pool.held()
            assert held != baseline, state
            assert held["leased_slots"] == (4 if state in {"reserved", "copying"} else 0), state
            if state == "leased":
                assert held["pinned_bytes"], state
            client.kill()
        if slow:
            switch(pool)
        returns_to(pool, baseline)
    with PatientClient(pool.socket) as other:
        chunks, chain = made("shared")
        with other.load(chain) as loaded:
            assert exact(loaded, chunks)


def test_a_slot_is_not_given_away_while_its_process_lives(pool: PoolProcess) -> None:
    """It writes and writes, its connection long gone; nobody else's bytes may suffer.

    How many chunks find room depends on how fast the disk takes them, and is not at stake here.
    """
    baseline = pool.held()
    came = 0
    with engine("writing_detached", pool) as client, PatientClient(pool.socket) as other:
        for number in range(20):  # two and a half times what DRAM holds
            chunks, chain = made(f"other {number}", 20)
            other.store(chain, [chunk.payload for chunk in chunks])
            with other.load(chain) as loaded:
                came += count_exact(loaded, chunks)
        assert came
        assert pool.held()["leased_slots"] == 4
        other.close()
        client.kill()
    returns_to(pool, baseline)


@pytest.mark.parametrize("ends", ["exits", "comes back"])
def test_t23_a_slot_is_not_overwritten_while_its_reader_lives(pool: PoolProcess, ends: str) -> None:
    """It reads on, its connection gone, while others fill the memory many times over."""
    baseline = pool.held()
    with engine("reading_detached", pool) as reader, PatientClient(pool.socket) as other:
        for number in range(20):
            chunks, chain = made(f"other {number}", 20)
            other.store(chain, [chunk.payload for chunk in chunks])
        held = pool.held()
        assert held["pinned_bytes"]
        assert not held["requests"]
        other.close()
        if ends == "exits":
            reader.kill()
        else:
            report = reader.ask()
            assert report["finished"] == "exact"
            assert report["lookup"] == "known"
            pool_process.wait_until(lambda: not pool.held()["pinned_bytes"], "what it had read")
    returns_to(pool, baseline)


def test_slots_wait_for_every_process_of_their_engine(pool: PoolProcess) -> None:
    baseline = pool.held()
    with engine("joined", pool) as second:
        with engine("paired", pool) as first:
            first.kill()
        time.sleep(1.5)
        assert pool.held()["leased_slots"] == 4
        second.kill()
    returns_to(pool, baseline)


def test_the_pool_killed_in_any_state_is_a_miss_at_once_and_joined_again(
    pool: PoolProcess,
) -> None:
    switch(pool, "read:latency=30s")
    with ExitStack() as stack:
        engines = {"waiting": stack.enter_context(engine("waiting", pool))}
        switch(pool)
        for state in STATES:
            if state != "waiting":
                engines[state] = stack.enter_context(engine(state, pool))
        pool.kill()
        for state, each in engines.items():
            report = each.ask()
            assert report["finished"] in {"NoneType", "stored", "nothing", "exact", "promised"}
            assert report["finished"] != "NoneType" or state in {"reserved", "copying"}
            assert report["lookup"] == "no_pool", "and not one whose time is up"
        pool.start()
        for state, each in engines.items():
            report = each.ask()
            assert report["lookup"] == "known", (state, report)
    with PatientClient(pool.socket) as other:
        chunks, chain = made("shared")
        with other.load(chain) as loaded:
            assert exact(loaded, chunks)


def test_both_killed_leave_a_warm_and_correct_cache(pool: PoolProcess) -> None:
    for state in ("copying", "leased"):
        with engine(state, pool) as client:
            pool.kill()
            client.kill()
        pool.start()
        chunks, chain = made("shared")
        with PatientClient(pool.socket) as other:
            assert other.lookup(chain) == Known(4, 0)
            with other.load(chain) as loaded:
                assert exact(loaded, chunks)
        pool_process.wait_until(lambda: NOTHING.items() <= pool.held().items(), str(NOTHING))


def test_no_call_exceeds_its_deadline_while_the_pool_stands_still(pool: PoolProcess) -> None:
    chunks, chain = made("still")
    payloads = [chunk.payload for chunk in chunks]
    clock = ManualClock()
    with Client(pool.socket, clock) as client:
        assert client.join()
        pool.signal(signal.SIGSTOP)
        with waiting_in_vain(clock):
            for timeout_s in (0.0, 0.01, 0.2):
                for call in (
                    lambda limit=timeout_s: client.lookup(chain, limit),
                    lambda limit=timeout_s: client.store(chain, payloads, 0, limit),
                    lambda limit=timeout_s: client.stats(limit),
                    lambda limit=timeout_s: client.load(chain, 0, limit).__enter__(),
                ):
                    started = clock.monotonic()
                    call()
                    assert clock.monotonic() - started == pytest.approx(timeout_s)
        pool.signal(signal.SIGCONT)
        # The first store was granted slots when nobody waited for them any more; they come back.
        assert isinstance(client.stats(), dict)
        pool_process.wait_until(lambda: not pool.held()["leased_slots"], "the late slots")
        assert client.store(chain, payloads) == Receipt(stored=4)
