"""Pools for tests that go through the socket: on a thread of ours, or in a process of its own."""

import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.clocks import SlowClock

from forebay.barrier import FAULT
from forebay.metrics import reading
from forebay.pool.client import Chain, Client, Loaded
from forebay.pool.server.limits import ServerLimits
from forebay.pool.service import Service
from forebay.settings import DiskSetting, Settings
from forebay.sys.world import World
from forebay.testing import samples
from forebay.testing.samples import Sample
from forebay.tiers.contract import Miss
from forebay.tiers.dram.slab import arena_bytes_for

HANG_S: Final = 60.0  # longer than anything takes; ends a test that would wait for ever
_START_S: Final = 600.0  # likewise, of a process that imports everything on a busy machine
DRAM_BYTES: Final = 16 << 20
DISK_BYTES: Final = 64 << 20
_FEW_BYTES: Final = 64  # different ones of a page that are not KV, but zeros and the like
_LOUD: Final = b"\x42"  # numbers of such bytes are large, whatever their format
# What is no namespace, though some ways to read hex digits take it for one, or for all of them.
NO_NAMESPACES: Final = (
    "",
    " ",
    "   ",
    "6e6e6e6e ",
    " 6e6e6e6e",
    "6e6e 6e6e",
    "6e6e6e",
    "6e" * 33,
    "zz",
)
SMALL: Final = Settings(dram=DRAM_BYTES)


@contextmanager
def short_directory() -> Iterator[Path]:
    """A private directory whose name leaves room for a socket's path."""
    path = Path(tempfile.mkdtemp(prefix="fb-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def serving(
    place: Path,
    settings: Settings = SMALL,
    *,
    limits: ServerLimits | None = None,
    world: World | None = None,
    before: Callable[[Service], object] = lambda _: None,
) -> Iterator[Service]:
    """A pool on a thread of ours, its socket in `place`.

    It listens when `before` is called, and reads what was sent to it only afterwards.
    """
    settings = replace(settings, socket=settings.socket or str(place / "pool.sock"))
    service = Service.open(settings, world=world, limits=limits)
    before(service)
    thread = threading.Thread(target=service.run, args=(None,), name="test-pool")
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(HANG_S)
        assert not thread.is_alive()
        service.close(HANG_S)


def with_disk(place: Path) -> Settings:
    """A small pool's settings with a directory in `place`."""
    (place / "disk").mkdir(mode=0o700, exist_ok=True)
    return replace(SMALL, disk=(DiskSetting(str(place / "disk"), DISK_BYTES),))


class PatientClient(Client):
    """A client whose calls have a minute where a test names no time."""

    def __init__(self, socket: str) -> None:
        super().__init__(socket, SlowClock())

    @contextmanager
    def load(
        self, chain: Chain, first: int = 0, timeout_s: float = HANG_S
    ) -> Iterator[Loaded | Miss]:
        with super().load(chain, first, timeout_s) as loaded:
            yield loaded

    def stream(
        self, chain: Chain, first: int = 0, timeout_s: float = HANG_S
    ) -> Iterator[tuple[int, memoryview]]:
        return super().stream(chain, first, timeout_s)


class PoolProcess:
    """`forebay pool` in a process of its own, or the faulty one of `forebay.testing`."""

    def __init__(
        self,
        place: Path,
        *flags: str,
        faulty: bool = False,
        disk: bool = True,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self.place = place
        self.socket = str(place / "pool.sock")
        self.log = place / "pool.log"
        module = "forebay.testing" if faulty else "forebay.cli"
        self.command = [sys.executable, "-m", module, "pool", "--socket", self.socket]
        self.command += ["--dram", str(DRAM_BYTES), "--metrics-address", "none", *flags]
        if disk:
            (place / "disk").mkdir(mode=0o700, exist_ok=True)
            self.command += ["--disk", f"{place / 'disk'}:{disk_bytes}"]
        self.process: subprocess.Popen[bytes] | None = None
        self._log_from = 0  # where the log of this life begins
        self.expects_faults = False  # by a test of the barrier itself

    def start(self) -> "PoolProcess":
        """Start, and wait until it answers."""
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )
        with PatientClient(self.socket) as client:

            def answers() -> bool:
                self.check_alive()
                return client.join()

            wait_until(answers, "the pool to answer", _START_S)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def is_stopped(self) -> bool:
        """Whether it stands still after SIGSTOP."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def kill(self) -> None:
        """SIGKILL, at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(HANG_S)
        self._check_faults()

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(HANG_S)
        self._check_faults()
        return status

    def faults(self) -> int:
        """How many kinds of bugs its barrier has caught; a test that expects some says so."""
        return self.log.read_text(errors="replace").count(FAULT)

    def _check_faults(self) -> None:
        if not self.expects_faults:
            assert not self.faults(), self.log.read_text(errors="replace")[-8000:]

    def stats(self) -> dict[str, Any]:
        """What it says of itself."""
        with PatientClient(self.socket) as client:
            stats = client.stats()
        assert isinstance(stats, dict), (stats, self.log.read_text())
        return stats

    def number(self, name: str, **labels: str) -> int:
        """One figure of these, summed over the labels that are not given."""
        return reading.count(self.stats(), name, **labels)

    def url(self) -> str:
        """Where it answers HTTP, if it was told to."""

        def found() -> re.Match[str] | None:
            log = self.log.read_text()[self._log_from :]
            return re.search(r"metrics at (http://\S+)/metrics", log)

        wait_until(found, "the log, which a thread of its own writes")
        match = found()
        assert match is not None
        return match[1].replace("0.0.0.0", "127.0.0.1")

    def volume(self) -> dict[str, Any]:
        """Its first directory."""
        found: dict[str, Any] = reading.tier_of(self.stats(), "disk")["volumes"][0]
        return found

    def held(self) -> dict[str, int]:
        """What must be as before when everybody has gone; without our own connection."""
        stats = self.stats()
        figures = ("pinned_bytes", "pinned_chunks", "filling_bytes", "leased_slots")
        return {
            **{name: reading.count(stats, name) for name in figures},
            "requests": stats["requests"]["active"],
            "connections": reading.count(stats, "connections") - 1,
            "engines": len(stats["engines"]),  # a look at it is none
            "descriptors": descriptors(self.pid),
        }

    def slab_bytes(self) -> int:
        """Memory that the slab has taken from the system, whoever wrote there."""
        return sum(slab.stat().st_blocks * 512 for slab in self._segments())

    def slab_pages(self) -> set[bytes]:
        """Every page of the slab that holds more than a few different bytes."""
        size, found = mmap.PAGESIZE, set()
        for slab in self._segments():
            with slab.open("rb") as file:  # not mapped: that would take memory for all of it
                while part := file.read(1 << 20):
                    found |= {part[at : at + size] for at in range(0, len(part), size)}
        return {page for page in found if len(set(page)) > _FEW_BYTES}

    def spoil_slab(self) -> None:
        """Every byte of the first arena is wrong from now on: the control of a test.

        It is no more than that, since the idle pool looks for damage, a few MiB several times a
        second, and drops what it finds.
        """
        for slab in self._segments():
            with slab.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                arena_bytes = arena_bytes_for(len(memory))
                memory[:arena_bytes] = _LOUD * arena_bytes

    def _segments(self) -> list[Path]:
        paths = Path(f"/proc/{self.pid}/fd").iterdir()
        return [path for path in paths if "memfd:forebay-slab" in _target(path)]

    def check_alive(self) -> None:
        """It has not ended by itself; if it has, its last words are the failure."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-4000:]

    def resident_bytes(self) -> int:
        """Memory of its own, without the slab."""
        self.check_alive()
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def running_pool(
    place: Path,
    *flags: str,
    faulty: bool = False,
    disk: bool = True,
    disk_bytes: int = DISK_BYTES,
) -> Iterator[PoolProcess]:
    """A pool in a process of its own, gone at the end."""
    pool = PoolProcess(place, *flags, faulty=faulty, disk=disk, disk_bytes=disk_bytes).start()
    try:
        yield pool
    finally:
        if pool.process is not None and pool.process.poll() is None:
            pool.signal(signal.SIGCONT)
            pool.kill()


def is_written(pool: PoolProcess) -> bool:
    """Whether the disk has everything that was stored."""
    stored = pool.number("operations", tier="dram", direction="store")
    return pool.number("chunks", tier="disk") >= stored


def flip_records(pool: PoolProcess) -> None:
    """Every fourth page of every region on disk has a byte changed under the pool's feet."""
    for path in (pool.place / "disk").rglob("region-*"):
        with path.open("r+b") as region:
            for at in range(64 * 1024, path.stat().st_size, 4 * mmap.PAGESIZE):
                region.seek(at)
                old = region.read(1)
                region.seek(at)
                region.write(bytes([old[0] ^ 255]))
            os.fsync(region.fileno())


def environment() -> Mapping[str, str]:
    """Ours, without anything that a pool would take for a setting."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}


def descriptors(pid: int | None = None) -> int:
    """How many descriptors a process has, regions of a disk tier left out."""
    paths = list(Path(f"/proc/{pid or 'self'}/fd").iterdir())
    return sum(1 for path in paths if "/region-" not in _target(path))


def open_files(kind: str) -> int:
    """How many descriptors of this process are of a kind, as the kernel names what is open.

    All of them cannot be counted: what an earlier test has left is closed whenever Python likes.
    """
    return sum(1 for path in Path("/proc/self/fd").iterdir() if kind in _target(path))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return "/region-"  # closed meanwhile


def wait_until(is_so: Callable[[], object], what: str, timeout_s: float = HANG_S) -> None:
    """Look every few milliseconds until something is so."""
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


def chain_of(chunks: list[Sample]) -> Chain:
    return Chain(chunks[0].name.namespace, [chunk.name.key for chunk in chunks])


def made(label: str, count: int = 4, length: int = 100_000) -> tuple[list[Sample], Chain]:
    """Chunks whose payload follows from their name, and their chain."""
    chunks = samples.chain(label, [length] * count)
    return chunks, chain_of(chunks)


def exact(loaded: Loaded | Miss, chunks: list[Sample]) -> bool:
    """Whether these are all of the chunks, bit for bit."""
    return isinstance(loaded, Loaded) and [bytes(view) for view in loaded.chunks] == [
        chunk.payload for chunk in chunks[loaded.first :]
    ]


def count_exact(loaded: Loaded | Miss, chunks: list[Sample]) -> int:
    """How many of the chunks came; every one of them bit for bit, or the test has failed."""
    if not isinstance(loaded, Loaded):
        return 0
    wanted = chunks[loaded.first : loaded.first + len(loaded.chunks)]
    assert [bytes(view) for view in loaded.chunks] == [chunk.payload for chunk in wanted]
    return len(loaded.chunks)
