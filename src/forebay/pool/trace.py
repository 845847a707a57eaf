"""Records requests for simulation, one line each, with nothing derived from text.

The format is that of the public conversation traces, `{"timestamp": ms, "input_length": …,
"output_length": …, "hash_ids": […]}`, in which a chunk stands for a block of 512 tokens, plus what
engines tell when an answer has ended: `"duration_ms"`, `"ended"` and `"after"` (classes, as in
`forebay.identity.endings`) and the caller's hints. A line is written when its answer has ended, or
after `_OPEN_S`; if several requests have the same last chunk, an answer belongs to the one that
arrived when the answer began. Ids, and those of sessions, are numbers in order of first appearance;
the keys themselves are neither written nor kept beyond the run. Off by default, limited in bytes
and in ids; a slow file costs lines, never a request's time.
"""

import json
import logging
import os
import queue
import stat
import threading
from collections import OrderedDict
from typing import Any, Final, NamedTuple

from forebay.errors import StartupError
from forebay.pool.messages import AnswerEnd
from forebay.record.region import SHORT_KEY_BYTES
from forebay.sys.disk import Disk

BLOCK_TOKENS: Final = 512
IDS_MAX: Final = 1_000_000  # about 150 MB of memory
_WAITING_MAX: Final = 1024  # requests waiting to be written; more are left out
_OPEN_MAX: Final = 1024  # requests waiting for their answers' end; more are written without it
_OPEN_IDS_MAX: Final = 1 << 20  # ids of all these requests
_OPEN_S: Final = 600.0
_log: Final = logging.getLogger(__name__)


class _Open(NamedTuple):
    """A request whose answer has not ended."""

    at: float
    key: bytes  # the last key of its chain
    line: dict[str, Any]


class Recorder:
    """Writes a trace on a thread of its own; one thread may call `request` and `ended`."""

    def __init__(self, path: str, size_bytes_max: int, disk: Disk | None = None) -> None:
        """Create the file, or use an empty one of this user; a StartupError if that fails."""
        self._disk = disk or Disk()
        self._size_bytes_max = size_bytes_max
        self.left_out = 0  # requests left out because the queue was full
        self._file = _create(self._disk, path)
        self._path = path
        self._ids: dict[bytes, int] = {}
        self._written_bytes = 0
        self._started: float | None = None
        self._sessions: dict[bytes, int] = {}
        self._open: OrderedDict[int, _Open] = OrderedDict()  # by number, the oldest first
        self._of_key: dict[bytes, list[int]] = {}  # last key → its open requests; no list is empty
        self._requests = 0
        self._open_ids = 0
        self._waiting: queue.Queue[tuple[bytes | AnswerEnd, float] | None]
        self._waiting = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="forebay-trace", daemon=True)
        self._thread.start()

    def request(self, keys: bytes, now: float) -> None:
        """A request asked for this chain (joined short keys); returns at once."""
        self._put(keys, now)

    def ended(self, end: AnswerEnd, now: float) -> None:
        """An answer has ended; returns at once."""
        self._put(end, now)

    def _put(self, told: bytes | AnswerEnd, now: float) -> None:
        try:
            self._waiting.put_nowait((told, now))
        except queue.Full:
            self.left_out += isinstance(told, bytes)

    def close(self, timeout_s: float) -> None:
        """Write what waits, as far as the time allows."""
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_full = False
        while (told := self._waiting.get()) is not None:
            if not is_full and not self._take(*told):
                is_full = True
                self._open.clear()
                self._of_key.clear()
                _log.warning("%s is as large as a trace may be, or cannot be written", self._path)
        if not is_full:
            self._write_open(0, 0.0)
        self._disk.close(self._file)

    def _take(self, told: bytes | AnswerEnd, now: float) -> bool:
        """Handle one entry of the queue; False once there are too many ids or bytes."""
        if isinstance(told, AnswerEnd):
            number = self._answered(told, now)
            return number is None or self._close(number, self._end(told))
        request = self._request(told, now)
        if len(self._ids) > IDS_MAX:
            return False
        last = told[-SHORT_KEY_BYTES:]
        self._requests += 1
        self._open[self._requests] = _Open(now, last, request)
        self._of_key.setdefault(last, []).append(self._requests)
        self._open_ids += len(request["hash_ids"])
        return self._write_open(_OPEN_MAX, now - _OPEN_S)

    def _write_open(self, open_max: int, before: float) -> bool:
        """Write open requests beyond this number, or older than this."""
        while self._open:
            number, oldest = next(iter(self._open.items()))
            is_young = oldest.at > before
            if len(self._open) <= open_max and is_young and self._open_ids <= _OPEN_IDS_MAX:
                break
            if not self._close(number, {}):
                return False
        return True

    def _answered(self, end: AnswerEnd, now: float) -> int | None:
        """The open request that is answered: with its last key, that arrived when it began."""
        arrived = now - (end.age_ms + end.duration_ms) / 1000
        numbers = self._of_key.get(end.key, ())
        return min(numbers, key=lambda each: abs(self._open[each].at - arrived), default=None)

    def _close(self, number: int, end: dict[str, Any]) -> bool:
        """Write an open request with what is known of its end."""
        _, key, line = self._open.pop(number)
        self._of_key[key].remove(number)
        if not self._of_key[key]:
            del self._of_key[key]
        self._open_ids -= len(line["hash_ids"])
        return self._write(json.dumps(line | end).encode() + b"\n")

    def _end(self, end: AnswerEnd) -> dict[str, Any]:
        """What is known about an answer's end; what was not told is left out."""
        known: dict[str, Any] = {
            "output_length": end.answer_tokens,
            "duration_ms": end.duration_ms,
            "ended": end.ending,
            "after": end.after,
        }
        if end.session and len(self._sessions) < IDS_MAX:
            known["session"] = self._sessions.setdefault(end.session, len(self._sessions))
        if not end.stores:
            known["store"] = False
        hints = {name: getattr(end, name) for name in ("returns_in_s", "keep_s", "priority")}
        return known | {name: value for name, value in hints.items() if value}

    def _request(self, keys: bytes, now: float) -> dict[str, Any]:
        """What is known about a request when it arrives."""
        self._started = now if self._started is None else self._started
        size = SHORT_KEY_BYTES
        chain = [keys[at : at + size] for at in range(0, len(keys) - size + 1, size)]
        ids = [self._ids.setdefault(key, len(self._ids)) for key in chain]
        return {
            "timestamp": round((now - self._started) * 1000),
            "input_length": len(ids) * BLOCK_TOKENS,
            "output_length": 0,
            "hash_ids": ids,
        }

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
    parent, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - the path may not exist yet
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
    """A new file, or an empty one of this user; FileExistsError if there is another file."""
    try:
        return disk.open(directory, name, create=True, direct=False, write=True)
    except FileExistsError:
        descriptor = disk.open(directory, name, create=False, direct=False, write=True)
        status = disk.status(descriptor)
        if stat.S_ISREG(status.mode) and not status.size_bytes and status.owner_uid == disk.user():
            return descriptor
        disk.close(descriptor)
        raise
