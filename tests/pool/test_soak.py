"""Ten clients of three namespaces on a failing disk, with everybody killed now and then.

Zero wrong bytes, no deadlock, no call beyond its deadline, memory flat. `make soak` runs five
minutes of it; FOREBAY_SOAK_S is the time in seconds.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import pool_process
from tests.disk_harness import allocated
from tests.pool_process import PoolProcess

pytestmark = pytest.mark.long
ROOT = Path(__file__).parent.parent.parent
SECONDS = float(os.environ.get("FOREBAY_SOAK_S") or 12)
CLIENTS, NAMESPACES = 10, 3
LATE_S = 60.0  # what a call may take beyond its deadline on the busiest machine
GROWTH_BYTES_MAX = 24 << 20
IDLE_S = 120.0  # until nothing is held any more
RULES: tuple[list[str], ...] = (
    [],
    ["read:flip=1@4%"],
    ["read:flip=1@4%", "write:tear=4096@3%"],
    ["write:misdirect=4096@3%", "read:short=4096@2%"],
    ["read:latency=30ms@20%", "read:flip=3@2%"],
    ["write:errno=EIO@1%", "read:errno=EIO@1%"],
)


class LoadGenerators:
    """The clients; whoever is killed is replaced."""

    def __init__(self, pool: PoolProcess, luck: random.Random) -> None:
        self._pool, self._luck = pool, luck
        self._processes = [self._start(number) for number in range(CLIENTS)]
        self.counts: Counter[str] = Counter()
        self.late_s = 0.0

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        words = [self._pool.socket, str(number % NAMESPACES), str(self._luck.randrange(1 << 30))]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.load_generator", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def kill_one(self) -> None:
        number = self._luck.randrange(CLIENTS)
        assert self._processes[number].poll() is None, self._processes[number].communicate()
        self.kill(number)
        self._processes[number] = self._start(number)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].communicate()

    def finish(self) -> None:
        """Everyone stops and says what it saw."""
        for process in self._processes:
            said, _ = process.communicate(b"\n", 240)
            report = json.loads(said.splitlines()[-1])
            assert process.returncode == 0, report
            self.counts += Counter(report["counts"])
            self.late_s = max(self.late_s, report["late_s"])

    def close(self) -> None:
        for number in range(CLIENTS):
            self.kill(number)


@contextmanager
def load_generators(pool: PoolProcess, luck: random.Random) -> Iterator[LoadGenerators]:
    generators = LoadGenerators(pool, luck)
    try:
        yield generators
    finally:
        generators.close()


def disturb(pool: PoolProcess, generators: LoadGenerators, luck: random.Random) -> None:
    """One thing goes wrong."""
    match luck.randrange(5):
        case 0:
            pool.kill()
            pool.start()
        case 1:
            pool.signal(signal.SIGSTOP)
            time.sleep(luck.uniform(0.05, 0.5))
            pool.signal(signal.SIGCONT)
        case 2:
            generators.kill_one()
            generators.kill_one()
        case _:
            (pool.place / "faults").write_text("\n".join(luck.choice(RULES)))
            pool.signal(signal.SIGHUP)


@pytest.mark.timeout(int(SECONDS) + 600)
def test_t21_t28_t31_a_crowd_on_a_failing_disk_sees_no_wrong_byte(place: Path, seed: int) -> None:
    luck = random.Random(seed)
    (place / "faults").touch()
    flags = ("--faults-file", str(place / "faults"))
    pool = PoolProcess(place, *flags, faulty=True).start()
    try:
        with load_generators(pool, luck) as generators:
            until = time.monotonic() + SECONDS * 2 / 3
            while time.monotonic() < until:
                time.sleep(luck.uniform(0.5, 2.0))
                pool.check_alive()
                disturb(pool, generators, luck)
                assert pool.slab_bytes() <= pool_process.DRAM_BYTES
                assert allocated(place / "disk") <= pool_process.DISK_BYTES
            (place / "faults").write_text("read:flip=1@4%")
            pool.signal(signal.SIGHUP)
            time.sleep(SECONDS / 9)  # everything is warm
            before = pool.resident_bytes()
            time.sleep(SECONDS * 2 / 9)
            growth = pool.resident_bytes() - before
            generators.finish()
            print(generators.counts, f"late {generators.late_s:.3f} s, growth {growth >> 10} KiB")
            assert generators.counts["hits"] >= CLIENTS
            assert generators.counts["stored"] >= CLIENTS
            assert generators.late_s < LATE_S
            assert growth < GROWTH_BYTES_MAX
            ended = time.monotonic()
            while any(idle(pool).values()):
                assert time.monotonic() < ended + IDLE_S, json.dumps(pool.stats())
                time.sleep(0.05)
    finally:
        if pool.process is not None and pool.process.poll() is None:
            pool.kill()


def idle(pool: PoolProcess) -> dict[str, int]:
    """What is still held; nothing, once reads under way have ended."""
    return {name: count for name, count in pool.held().items() if name != "descriptors"}
