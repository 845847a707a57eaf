"""Hashes of LoRA adapters' files, computed and watched by a separate process.

An engine loads an adapter when a request first names it, and may load it again later. So an adapter
is identified by the content of its files, and only while that stays the same: `python -m
forebay.engines.adapters` hashes the files and checks them every second from then on.
`AdapterHashes` writes to that process and reads its answers, without ever waiting.

Assumed: nobody changes an adapter's files between its loading and the first request that uses it.
"""

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from forebay.engines.weights import SUFFIXES, end_hashing, hash_files, memory_path, stamp_of

_LOOK_S: Final = 1.0  # between looks at the files
_CONFIG: Final = "adapter_config.json"
Stamps: TypeAlias = dict[str, str]  # file → everything that changes when it does


@dataclass(slots=True)
class _Adapter:
    """The adapter that an engine knows by one number."""

    path: str
    is_asked: bool = False  # the process was told to hash it
    digest: str = ""  # empty: not known
    is_lost: bool = False  # its files have changed, or cannot be hashed; final


class AdapterHashes:
    """The adapters of one engine, by its own numbers for them. Owned by one thread."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forebay.engines.adapters"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._adapters: dict[int, _Adapter] = {}
        self._gone: set[str] = set()  # hashes of adapters lost since the last `poll`
        self._unread = b""

    def digest_of(self, number: int, path: str) -> str | None:
        """The hash of an adapter's files; "" if it cannot be known, None if it is not known yet.

        The engine may load another path under the same number: the adapter is then lost.
        """
        adapter = self._adapters.setdefault(number, _Adapter(path))
        if adapter.path != path:  # verify: one adapter
            self._lose(adapter)
        if not (adapter.is_asked or adapter.is_lost):
            self._ask(number, adapter)
        if adapter.is_lost:
            return ""
        return adapter.digest or None

    def lose(self, number: int) -> None:
        """Stop trusting this number: the engine may have loaded another adapter under it."""
        self._lose(self._adapters.setdefault(number, _Adapter("")))

    def poll(self) -> set[str]:
        """Read the process's answers; return the hashes of adapters whose files have changed."""
        for line in self._lines():
            number, digest = json.loads(line)
            adapter = self._adapters[number]
            if digest and not adapter.is_lost:
                adapter.digest = digest
            else:
                self._lose(adapter)
        gone, self._gone = self._gone, set()
        return gone

    def close(self) -> None:
        """Stop hashing."""
        end_hashing(self._process)

    def _ask(self, number: int, adapter: _Adapter) -> None:
        line = json.dumps([number, adapter.path]).encode() + b"\n"
        if len(line) > select.PIPE_BUF:  # a longer line might be written in parts
            self._lose(adapter)
            return
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line)
        except BlockingIOError:  # the pipe is full: the next request asks again
            return
        except OSError:
            self._lose(adapter)
        adapter.is_asked = True

    def _lines(self) -> list[bytes]:
        assert self._process.stdout is not None
        try:
            more = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not more:  # the process has ended: nobody watches the files
            for adapter in self._adapters.values():
                self._lose(adapter)
        *lines, self._unread = (self._unread + more).split(b"\n")
        return lines

    def _lose(self, adapter: _Adapter) -> None:
        if adapter.digest:
            self._gone.add(adapter.digest)
        adapter.is_lost, adapter.digest = True, ""


def stamps_of(directory: str) -> Stamps:
    """The stamp of each file of an adapter, as it is now; empty if this is no adapter."""
    try:
        found = {
            str(path): stamp_of(path)
            for path in Path(directory).expanduser().iterdir()
            if path.suffix in SUFFIXES or path.name == _CONFIG
        }
    except OSError:
        return {}
    has_weights = any(Path(path).suffix in SUFFIXES for path in found)
    return found if has_weights and any(Path(path).name == _CONFIG for path in found) else {}


def hash_adapter(directory: str, stamps: Stamps, memory: Path) -> str:
    """The hash of files that have these stamps before and after hashing; "" if it fails."""
    try:
        digest = hash_files(map(Path, sorted(stamps)), memory) if stamps else ""
    except OSError:
        return ""
    return digest if stamps_of(directory) == stamps else ""


def main() -> int:
    """Answer each line [number, path] of our input with [number, hash], until the input ends."""
    watched: dict[int, tuple[str, Stamps]] = {}
    unread = b""
    while True:
        is_told, _, _ = select.select([0], [], [], _LOOK_S)
        more = os.read(0, 1 << 16) if is_told else b""
        if is_told and not more:
            return 0
        *lines, unread = (unread + more).split(b"\n")
        for line in lines:
            number, path = json.loads(line)
            stamps = stamps_of(path)
            digest = hash_adapter(path, stamps, memory_path())
            if digest:
                watched[number] = path, stamps
            _answer(number, digest)
        for number, (path, stamps) in list(watched.items()):
            if stamps_of(path) != stamps:  # verify: the same files
                del watched[number]
                _answer(number, "")


def _answer(number: int, digest: str) -> None:
    os.write(1, json.dumps([number, digest]).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
