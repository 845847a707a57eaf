"""Loads of chains that lie on NVMe, several in flight, as an engine with a queue has them."""

import random
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final

from forebay.bench.pool.stored_chains import CHAIN_RECORDS
from forebay.bench.processes import PoolProcess, pool_stats
from forebay.errors import StartupError
from forebay.metrics.reading import count
from forebay.pool.client import Client
from forebay.pool.client.chain import Chain
from forebay.pool.client.session import join
from forebay.pool.messages import Ask, Found, Lookup, Promise, Release
from forebay.sys.clock import Clock

_DEADLINE_MS: Final = 20_000
_WAIT_S: Final = 30.0


class NvmeReads:
    """A client that keeps several requests in flight. Used by one thread."""

    def __init__(self, pool: PoolProcess, watch: Client, chains: Sequence[Chain]) -> None:
        link = join(pool.socket, secrets.token_hex(8), Clock(), time.monotonic() + _WAIT_S)
        if isinstance(link, str):
            raise StartupError(f"the pool cannot be joined: {link}")
        self._link = link
        self._watch = watch
        self._order = _round(chains)
        self._number = 0
        self.misses = 0  # chunks that were asked for and not promised

    def read(self, depth: int, seconds: float) -> float:
        """GB/s (10^9) from NVMe into the slab, with so many records wanted at a time.

        Counted by the pool's own count of what came from the disk, so that a chunk that was still
        in DRAM adds nothing.
        """
        before = self._loaded_bytes()
        start = time.monotonic()
        flying = 0
        for _ in range(max(1, depth // CHAIN_RECORDS)):
            self._ask()
            flying += 1
        while flying:
            promise = self._next_promise()
            self._link.post(Release(promise.request, []))
            self.misses += CHAIN_RECORDS - promise.total
            if time.monotonic() - start < seconds:
                self._ask()
            else:
                flying -= 1
        elapsed = time.monotonic() - start
        return (self._loaded_bytes() - before) / elapsed / 1e9

    def close(self) -> None:
        self._link.close()

    def _ask(self) -> None:
        chain = next(self._order)
        self._number += 1
        self._link.post(Lookup(self._number, chain.namespace, chain.group, chain.shorts()))
        self._link.post(Ask(self._number, 0, CHAIN_RECORDS, _DEADLINE_MS, stream=False))

    def _next_promise(self) -> Promise:
        until = time.monotonic() + _WAIT_S
        while (message := self._link.take(until)) is not None:
            if isinstance(message, Promise):
                return message
            assert isinstance(message, Found)
        raise StartupError("the pool did not answer an ask in time.")

    def _loaded_bytes(self) -> int:
        return count(pool_stats(self._watch), "moved_bytes", tier="disk", direction="load")


def _round(chains: Sequence[Chain]) -> Iterator[Chain]:
    """All of them in random order, again and again: several times what DRAM holds of them."""
    order = list(chains)
    while True:
        random.shuffle(order)
        yield from order
