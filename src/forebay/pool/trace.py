"""Recording requests for simulation: one line each, without anything derived from text.

The format is that of the public conversation traces, `{"timestamp": ms, "input_length": …,
"output_length": …, "hash_ids": […]}`, in which a chunk stands for a block of 512 tokens. Ids are
numbers in order of first sight; the keys themselves are neither written nor kept beyond the run.
Off by default, capped in bytes and in ids; a slow file costs lines, never a request's time.
"""

import json
import logging
import os
import queue
import stat
import threading
from typing import Final

from forebay.errors import StartupError
from forebay.record.region import SHORT_KEY_BYTES
from forebay.sys.disk import Disk

BLOCK_TOKENS: Final = 512
IDS_MAX: Final = 1_000_000  # about 150 MB of memory
_WAITING_MAX: Final = 1024  # requests on their way to the file; more are left out
_log: Final = logging.getLogger(__name__)


class Recorder:
    """Writes a trace on a thread of its own; `request` may be called from one thread."""

    def __init__(self, path: str, size_bytes_max: int, disk: Disk | None = None) -> None:
        """Create the file, or use an empty one of ours; a StartupError if that cannot be."""
        self._disk = disk or Disk()
        self._size_bytes_max = size_bytes_max
        self.left_out = 0  # requests that found the queue full
        self._file = _create(self._disk, path)
        self._path = path
        self._ids: dict[bytes, int] = {}
        self._written_bytes = 0
        self._started: float | None = None
        self._waiting: queue.Queue[tuple[bytes, float] | None] = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="forebay-trace", daemon=True)
        self._thread.start()

    def request(self, keys: bytes, now: float) -> None:
        """A request asked for this chain of short keys, joined; returns at once."""
        try:
            self._waiting.put_nowait((keys, now))
        except queue.Full:
            self.left_out += 1

    def close(self, timeout_s: float) -> None:
        """Write what waits, as far as the time allows."""
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_full = False
        while (request := self._waiting.get()) is not None:
            if is_full:
                continue
            line = self._line(*request)
            is_full = line is None or not self._write(line)
            if is_full:
                _log.warning("%s is as large as a trace may be, or cannot be written", self._path)
        self._disk.close(self._file)

    def _line(self, keys: bytes, now: float) -> bytes | None:
        """One request; None once there are too many ids."""
        self._started = now if self._started is None else self._started
        size = SHORT_KEY_BYTES
        chain = [keys[at : at + size] for at in range(0, len(keys) - size + 1, size)]
        ids = [self._ids.setdefault(key, len(self._ids)) for key in chain]
        if len(self._ids) > IDS_MAX:
            return None
        request = {
            "timestamp": round((now - self._started) * 1000),
            "input_length": len(ids) * BLOCK_TOKENS,
            "output_length": 0,  # the pool does not see what is generated
            "hash_ids": ids,
        }
        return json.dumps(request).encode() + b"\n"

    def _write(self, line: bytes) -> bool:
        if self._written_bytes + len(line) > self._size_bytes_max:
            return False
        try:
            count = self._disk.write(self._file, [memoryview(line)], self._written_bytes)
        except OSError:
            return False
        self._written_bytes += count
        return count == len(line)


def _create(disk: Disk, path: str) -> int:
    parent, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - may not exist yet
    try:
        directory = disk.open_directory(os.path.realpath(parent))
        try:
            return _create_or_reuse(disk, directory, name)
        finally:
            disk.close(directory)
    except FileExistsError:
        raise StartupError(
            f"{path} exists and is not an empty file of yours; name a new file for the trace."
        ) from None
    except OSError as error:
        raise StartupError(f"{path} cannot be written ({error.strerror}).") from None


def _create_or_reuse(disk: Disk, directory: int, name: str) -> int:
    """A new file, or an empty one of this user; FileExistsError if there is another."""
    try:
        return disk.open(directory, name, create=True, direct=False, write=True)
    except FileExistsError:
        descriptor = disk.open(directory, name, create=False, direct=False, write=True)
        status = disk.status(descriptor)
        if stat.S_ISREG(status.mode) and not status.size_bytes and status.owner_uid == disk.user():
            return descriptor
        disk.close(descriptor)
        raise
