"""A child of a remote tier whose store gives back one bit other than it was given."""

import sys
from collections.abc import Sequence

from forebay.tiers.remote.process import child
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.urls import parse_url


class FlippingStore(DirectoryStore):
    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        count = super().get(name, at, buffers)
        if name.endswith("/probe"):
            buffers[0][-1] ^= 1
        return count


def open_flipping(url: str, host: str) -> FlippingStore:
    return FlippingStore(parse_url(url).path, host)


if __name__ == "__main__":
    child.open_store = open_flipping
    child.main(sys.argv[1:])
