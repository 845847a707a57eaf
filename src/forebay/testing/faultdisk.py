"""A disk that fails as it is told to: in this process, without root, while it is in use.

It does on the real file system what `Disk` does, unless an armed rule applies (see
`forebay.testing.faults`). If `volatile`, `power_off` undoes what a power loss would undo. Which
calls fail by chance, and what a power loss undoes, follows from `seed` alone: print it.
"""

import errno
import os
import random
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from forebay.sys.disk import Disk, FileStatus, Space
from forebay.testing.faults import Armed, Effect, Fault, Operation, Rules, parse_fault
from forebay.testing.volatile import Journal

HANG_SECONDS_MAX: Final = 100.0  # a forgotten hang ends before the test's own timeout does


class FaultDisk(Disk):
    """The real file system with faults; thread-safe, as the real one is."""

    def __init__(self, *faults: Fault | str, seed: int = 0, volatile: bool = False) -> None:
        self.seed = seed
        self._rules = Rules(seed)
        self._powered = True
        self._lock = threading.Lock()  # guards the paths
        self._paths: dict[int, str] = {}
        self._journal = Journal() if volatile else None
        self._journal_lock = threading.Lock()  # makes a change and its journal entry atomic
        for fault in faults:
            self.arm(fault)

    def arm(self, fault: Fault | str) -> Armed:
        """Apply a rule from now on, until it is disarmed."""
        return self._rules.arm(parse_fault(fault) if isinstance(fault, str) else fault)

    def disarm(self) -> None:
        """Remove all faults; calls that hang go on."""
        self._rules.disarm()

    @property
    def calls(self) -> Mapping[Operation, int]:
        """How often each operation was called."""
        return self._rules.calls

    def settle(self) -> None:
        """Let everything written so far reach the medium."""
        assert self._journal is not None, "only a volatile disk has something to settle"
        with self._journal_lock:
            self._journal.settle()

    def power_off(self) -> None:
        """Make every later call but close fail, and lose a part of what has not settled."""
        assert self._journal is not None, "only a volatile disk can lose power"
        self._powered = False
        with self._journal_lock:
            self._journal.lose(random.Random(self.seed))
        self.disarm()

    def open_directory(self, path: str) -> int:
        """As the real one."""
        with self._call(Operation.OPEN_DIRECTORY, path):
            return self._opened(super().open_directory(path), path)

    def open(self, directory: int, name: str, *, create: bool, direct: bool, write: bool) -> int:
        """As the real one."""
        path = os.path.join(self._path(directory), name)  # noqa: PTH118 - names stay as they are
        with self._call(Operation.OPEN, path), self._changing():
            opened = super().open(directory, name, create=create, direct=direct, write=write)
            if create and self._journal:
                self._journal.create(directory, name)
            return self._opened(opened, path)

    def close(self, descriptor: int) -> None:
        """As the real one, even without power: a descriptor belongs to the process."""
        with self._lock:
            path = self._paths.pop(descriptor, "")
        for armed in self._rules.matching(Operation.CLOSE, path):
            _before(armed)
        super().close(descriptor)

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """As the real one; with faults, wrong or fewer bytes."""
        with self._call(Operation.READ, self._path(descriptor)) as matching:
            faults = {armed.fault.effect: int(armed.fault.amount) for armed in matching}
            shifted = max(0, offset + faults.get(Effect.MISDIRECT, 0))
            count = super().read(descriptor, buffers, shifted)
            if Effect.SHORT in faults:
                count = min(count, faults[Effect.SHORT])
                _blank(buffers, count)
            for bit in self._rules.draw_bits(faults.get(Effect.FLIP, 0), max(1, count * 8)):
                _flip(buffers, bit)
            return count

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """As the real one; with faults, at another place, fewer bytes, or fewer than it claims."""
        with self._call(Operation.WRITE, self._path(descriptor)) as matching, self._changing():
            faults = {armed.fault.effect: int(armed.fault.amount) for armed in matching}
            if not self._journal and not faults.keys() & _REWRITING:
                return super().write(descriptor, buffers, offset)
            data = bytearray(b"".join(buffers))
            for bit in self._rules.draw_bits(faults.get(Effect.FLIP, 0), len(data) * 8):
                _flip([memoryview(data)], bit)
            reached = min(faults.get(effect, len(data)) for effect in (Effect.SHORT, Effect.TEAR))
            shifted = max(0, offset + faults.get(Effect.MISDIRECT, 0))
            if self._journal:
                self._journal.write(descriptor, bytes(data[:reached]), shifted)
            _write_plainly(descriptor, data[:reached], shifted)
            return min(len(data), faults.get(Effect.SHORT, len(data)))

    def preallocate(self, descriptor: int, size_bytes: int) -> None:
        """As the real one."""
        with self._call(Operation.PREALLOCATE, self._path(descriptor)), self._changing():
            if self._journal:
                self._journal.resize(descriptor)
            super().preallocate(descriptor, size_bytes)

    def zero(self, descriptor: int, offset: int, size_bytes: int) -> None:
        """As the real one; with faults, fewer bytes than it claims."""
        with self._call(Operation.ZERO, self._path(descriptor)) as matching, self._changing():
            tears = [
                int(each.fault.amount) for each in matching if each.fault.effect is Effect.TEAR
            ]
            size_bytes = min(size_bytes, *tears) if tears else size_bytes
            if self._journal:
                self._journal.write(descriptor, bytes(size_bytes), offset)
            super().zero(descriptor, offset, size_bytes)

    def rename(self, directory: int, source: str, target: str) -> None:
        """As the real one."""
        with self._call(Operation.RENAME, self._path(directory)), self._changing():
            if self._journal:
                self._journal.rename(directory, source, target)
            super().rename(directory, source, target)

    def unlink(self, directory: int, name: str) -> None:
        """As the real one."""
        with self._call(Operation.UNLINK, self._path(directory)), self._changing():
            if self._journal:
                self._journal.unlink(directory, name)
            super().unlink(directory, name)

    def sync(self, descriptor: int) -> None:
        """As the real one."""
        with self._call(Operation.SYNC, self._path(descriptor)), self._changing():
            if self._journal:
                self._journal.sync(descriptor)
            super().sync(descriptor)

    def names(self, directory: int) -> list[str]:
        """As the real one."""
        with self._call(Operation.NAMES, self._path(directory)):
            return super().names(directory)

    def status(self, descriptor: int) -> FileStatus:
        """As the real one."""
        with self._call(Operation.STATUS, self._path(descriptor)):
            return super().status(descriptor)

    def status_of(self, directory: int, name: str) -> FileStatus:
        """As the real one."""
        with self._call(Operation.STATUS, self._path(directory)):
            return super().status_of(directory, name)

    def space(self, directory: int) -> Space:
        """As the real one."""
        with self._call(Operation.SPACE, self._path(directory)):
            return super().space(directory)

    def try_lock(self, descriptor: int) -> bool:
        """As the real one."""
        with self._call(Operation.LOCK, self._path(descriptor)):
            return super().try_lock(descriptor)

    @contextmanager
    def _call(self, operation: Operation, path: str) -> Iterator[Sequence[Armed]]:
        """Count a call, apply the faults that come before and after it, and yield the others."""
        matching = self._rules.matching(operation, path)
        for armed in matching:
            _before(armed)
        if not self._powered:
            raise OSError(errno.EIO, "the power is off")
        try:
            yield matching
        finally:  # also after a call that failed: it may have done something
            for armed in matching:
                if armed.fault.effect is Effect.KILL:
                    os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep a power loss, if one is possible, from happening in the middle of a change."""
        if self._journal is None:
            yield
            return
        with self._journal_lock:
            if not self._powered:
                raise OSError(errno.EIO, "the power is off")
            yield

    def _opened(self, descriptor: int, path: str) -> int:
        with self._lock:
            self._paths[descriptor] = path
        return descriptor

    def _path(self, descriptor: int) -> str:
        with self._lock:
            return self._paths.get(descriptor, "")


# The effects with which other bytes are written than the caller's, or at another place.
_REWRITING: Final = {Effect.SHORT, Effect.TEAR, Effect.MISDIRECT, Effect.FLIP}


def _before(armed: Armed) -> None:
    fault = armed.fault
    if fault.effect is Effect.LATENCY:
        armed.wait(fault.amount)
    elif fault.effect is Effect.HANG:
        armed.wait(HANG_SECONDS_MAX)
    elif fault.effect is Effect.ERRNO:
        number = int(fault.amount)
        raise OSError(number, f"{os.strerror(number)} (injected)")
    elif fault.effect is Effect.KILL and not fault.amount:
        os.kill(os.getpid(), signal.SIGKILL)


def _write_plainly(descriptor: int, data: bytearray, offset: int) -> None:
    """Write any number of bytes, even if the descriptor has O_DIRECT and needs whole pages."""
    plain = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        written = os.pwrite(plain, data, offset)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(plain)


def _blank(buffers: Sequence[memoryview], start: int) -> None:
    """Zero what a short read did not fill, so that stale bytes cannot pass for the right ones."""
    for buffer in buffers:
        kept = min(start, buffer.nbytes)
        buffer[kept:] = bytes(buffer.nbytes - kept)
        start -= kept


def _flip(buffers: Sequence[memoryview], bit: int) -> None:
    at = bit // 8
    for buffer in buffers:
        if at < buffer.nbytes:
            buffer[at] ^= 1 << bit % 8
            return
        at -= buffer.nbytes
