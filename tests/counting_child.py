"""A child of a remote tier that notes every request to its store in a file beside the store."""

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forebay.sys import processes
from forebay.tiers.remote.process.child import Child
from forebay.tiers.remote.store import StoredObject, StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.urls import parse_url


def noted_in(place: Path) -> Path:
    """Where the requests to a store are noted, a byte each: p, g, l or d."""
    return place.with_name(f"{place.name}.requests")


def held_by(place: Path) -> Path:
    """While there is such a file, no request ends that begins."""
    return place.with_name(f"{place.name}.held")


class NotingStore(DirectoryStore):
    def __init__(self, path: str, host: str) -> None:
        super().__init__(path, host)
        self._notes = noted_in(Path(path))

    def note(self, kind: bytes) -> None:
        with self._notes.open("ab", buffering=0) as notes:
            notes.write(kind)
        while held_by(Path(self._path)).exists():
            time.sleep(0.01)

    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        self.note(b"p")
        return super().put(name, buffers)

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        self.note(b"g")
        return super().get(name, at, buffers)

    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        self.note(b"l")
        return super().listing(prefix)

    def delete(self, name: str) -> StoreFailure | None:
        self.note(b"d")
        return super().delete(name)


if __name__ == "__main__":
    processes.end_with_parent()
    descriptor, url, host, threads, entries = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        store = NotingStore(parse_url(url).path, host)
        Child(connection, store, host, int(entries)).serve(int(threads))
    os._exit(0)
