"""Ten clients on a failing disk, three of them hostile at every moment, beside ten that behave.

    python tools/hostile_soak.py [--minutes 15] [--seed N]

Two pools run side by side on this machine, each with seven honest clients. In the first, one more
is always stopped with all that it could get in its hands, one lies, and one is being killed; in the
second those three are honest too. Printed once a minute, and at the end: what the honest clients of
each stored and loaded, the ratio, the largest sizes seen against their caps, resident memory. The
exit status is 1 if a byte was wrong, a cap exceeded, a pool ended, or its barrier caught a bug; how
fast the clients were decides nothing here.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import greedy_engine, pool_process  # noqa: E402 - the tests' own processes
from tests.disk_harness import allocated  # noqa: E402
from tests.pool.test_soak import RULES  # noqa: E402
from tests.pool_process import PoolProcess  # noqa: E402

HONEST: Final = 7
NAMESPACES: Final = 3
PAUSE_S: Final = 0.05  # of a client between two calls, so that two cores serve twenty
DRAM_BYTES: Final = 64 << 20
DISK_BYTES: Final = 256 << 20
SAMPLE_S: Final = 0.25
STOPPED_S: Final = 5.0  # then another one is stopped
KILLED_S: Final = 1.5


def start(module: str, *words: str) -> subprocess.Popen[bytes]:
    """A client in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )


class Crowd:
    """A pool, its seven honest clients, and three others."""

    def __init__(self, place: Path, luck: random.Random, *, is_attacked: bool) -> None:
        (place / "faults").touch()
        flags = ("--faults-file", str(place / "faults"), "--verify-dram", "--dram", str(DRAM_BYTES))
        self.pool = PoolProcess(place, *flags, faulty=True, disk_bytes=DISK_BYTES).start()
        self.luck, self.is_attacked = luck, is_attacked
        self.honest = [self._generator(number % NAMESPACES) for number in range(HONEST)]
        self.others = [self._other(number) for number in range(3)]
        self.due = [0.0, 0.0]  # monotonic: when the next is stopped, and killed
        self.slab_bytes = self.disk_bytes = self.kills = 0
        self.resident: list[int] = []
        self.counts: Counter[str] = Counter()

    def _generator(self, namespace: int) -> subprocess.Popen[bytes]:
        seed = str(self.luck.randrange(1 << 30))
        words = (self.pool.socket, str(namespace), seed, str(PAUSE_S))
        return start("tests.load_generator", *words)

    def _other(self, number: int) -> subprocess.Popen[bytes]:
        if not self.is_attacked or number == 2:
            return self._generator(HONEST + number)
        if number == 0:
            return start(
                "tests.greedy_engine", self.luck.choice(("reserve", "load")), self.pool.socket
            )
        return start("tests.lying_engine", self.pool.socket, str(self.luck.random()))

    def _greed(self) -> str:
        """What the next one takes and keeps; what it loads is there."""
        if self.luck.random() < 0.5:
            return "reserve"
        chunks, chain = pool_process.made("wanted", greedy_engine.CHUNKS, greedy_engine.LENGTH)
        with pool_process.PatientClient(self.pool.socket) as client:
            client.store(chain, [chunk.payload for chunk in chunks], timeout_s=2.0)
        return "load"

    def disturb(self, rules: list[str]) -> None:
        """Faults of the disk, the same for both crowds."""
        (self.pool.place / "faults").write_text("\n".join(rules))
        self.pool.signal(signal.SIGHUP)

    def attack(self, now: float) -> None:
        """Stop the next, and kill the next, when it is time."""
        if not self.is_attacked:
            return
        if now >= self.due[0]:
            self._replace(0)
            output = self.others[0].stdout
            assert output is not None
            output.readline()  # it has what it can get
            self.others[0].send_signal(signal.SIGSTOP)
            self.due[0] = now + STOPPED_S
        if now >= self.due[1]:
            self._replace(2)
            self.due[1] = now + KILLED_S

    def _replace(self, number: int) -> None:
        self.others[number].kill()
        self.others[number].communicate()
        self.others[number] = self._other(number)
        self.kills += 1

    def sample(self) -> None:
        """Look at sizes, and at whether everyone is there."""
        self.pool.check_alive()
        self.slab_bytes = max(self.slab_bytes, self.pool.slab_bytes())
        self.disk_bytes = max(self.disk_bytes, allocated(self.pool.place / "disk"))
        for process in self.honest:
            assert process.poll() is None, process.communicate()

    def finish(self) -> None:
        """The honest ones say what they saw, a wrong byte included."""
        for process in self.honest:
            said, _ = process.communicate(b"\n", 240)
            report = json.loads(said.splitlines()[-1])
            assert process.returncode == 0, report
            self.counts += Counter(report["counts"])
        for process in self.others:
            process.kill()
            process.communicate()

    @property
    def served(self) -> int:
        """Chunks that the honest ones loaded or stored."""
        return self.counts["hits"] + self.counts["stored"]


def soak(crowds: list[Crowd], minutes: float, luck: random.Random) -> None:
    begun = time.monotonic()
    next_minute, next_fault = begun + 60, begun
    while (now := time.monotonic()) < begun + 60 * minutes:
        if now >= next_fault:
            rules = luck.choice(RULES)
            next_fault = now + luck.uniform(2, 8)
            for crowd in crowds:
                crowd.disturb(rules)
        for crowd in crowds:
            crowd.attack(now)
            crowd.sample()
        if now >= next_minute:
            next_minute += 60
            for crowd in crowds:
                crowd.resident.append(crowd.pool.resident_bytes() >> 20)
            sizes = "; ".join(f"resident {crowd.resident[-1]} MiB" for crowd in crowds)
            print(f"{(now - begun) / 60:4.1f} min: {sizes}", flush=True)
        time.sleep(SAMPLE_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parsed = parser.parse_args()
    print(f"seed {parsed.seed}", flush=True)
    luck = random.Random(parsed.seed)
    with ExitStack() as stack:
        places = [stack.enter_context(pool_process.short_directory()) for _ in range(2)]
        crowds = []
        for place, is_attacked in zip(places, (True, False), strict=True):
            crowd = Crowd(place, luck, is_attacked=is_attacked)
            stack.callback(crowd.pool.kill)
            crowds.append(crowd)
        soak(crowds, parsed.minutes, luck)
        for crowd in crowds:
            crowd.finish()
        attacked, calm = crowds
        for name, crowd in (("attacked", attacked), ("calm", calm)):
            print(
                f"{name}: {crowd.served} chunks of honest clients {dict(crowd.counts)}, "
                f"{crowd.kills} stopped or killed, slab at most {crowd.slab_bytes} of "
                f"{DRAM_BYTES} B, disk {crowd.disk_bytes} of "
                f"{DISK_BYTES} B, resident MiB a minute {crowd.resident}"
            )
        print(f"ratio {attacked.served / calm.served:.3f}")
        exceeded = [
            crowd
            for crowd in crowds
            if crowd.slab_bytes > DRAM_BYTES or crowd.disk_bytes > DISK_BYTES
        ]
        return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
