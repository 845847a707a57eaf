"""A child of a remote tier whose shared directory does what a file beside it says."""

import os
import socket
import sys
from pathlib import Path

from forebay.sys import processes
from forebay.testing.faultdisk import FaultDisk
from forebay.tiers.remote.process.child import Child
from forebay.tiers.remote.store import ObjectStore
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.urls import parse_url


def rule_of(place: Path) -> Path:
    """Where the fault stands, as `forebay.testing.faults` has them; none: it is sound."""
    return place.with_name(f"{place.name}.fault")


class FaultyDisk(FaultDisk):
    """Looks the fault up whenever the directory is opened: every call of a store does so first."""

    def __init__(self, rule: Path) -> None:
        super().__init__()
        self._rule, self._is = rule, ""

    def open_directory(self, path: str) -> int:
        wanted = self._rule.read_text() if self._rule.exists() else ""
        if wanted != self._is:
            self.disarm()
            self._is = wanted
            if wanted:
                self.arm(wanted)
        return super().open_directory(path)


def opened(url: str, host: str) -> ObjectStore:
    path = parse_url(url).path
    return DirectoryStore(path, host, FaultyDisk(rule_of(Path(path))))


if __name__ == "__main__":
    processes.end_with_parent()
    descriptor, url, host, threads, entries = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        Child(connection, opened(url, host), host, int(entries)).serve(int(threads))
    os._exit(0)
