"""A child of a remote tier whose store flips a bit of the first probe, and loses the second."""

import os
import socket
import sys
from collections.abc import Sequence

from forebay.sys import processes
from forebay.tiers.remote.process.child import Child
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.urls import parse_url


class FlippingStore(DirectoryStore):
    probes = 0

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        count = super().get(name, at, buffers)
        if name.endswith("/probe"):
            self.probes += 1
            buffers[0][-1] ^= 1
        return count if self.probes < 2 else StoreFailure.ABSENT


if __name__ == "__main__":
    processes.end_with_parent()
    descriptor, url, host, threads, entries = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        store = FlippingStore(parse_url(url).path, host)
        Child(connection, store, host, int(entries)).serve(int(threads))
    os._exit(0)
