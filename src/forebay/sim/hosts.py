"""Several hosts under one load: each with a pool of its own, with or without a store between them.

The pools are those of `replay.py`, under the production policy. Every session has keys of its own,
even if the trace has fewer sessions than are asked for and one is drawn again. The store is as the
remote tier uses it: each host has a cap there, its oldest packs are evicted first, no host stores
what another one is known to have, and a chunk is known to others `VISIBLE_S` after it was written.
Writing and reading take no time and never fail.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forebay.pool.policy.learned import Learned
from forebay.sim.replay import (
    PROGRESS_REQUESTS,
    Progress,
    SimulatedPool,
    SimulatedTier,
    Sizes,
)
from forebay.sim.trace import CHUNK_TOKENS, Request, Trace, turns

HOSTS_MAX: Final = 1000
VISIBLE_S: Final = 20.0  # until other hosts know a chunk, see docs/remote.md
STORE_PACKS: Final = 64  # in a host's part of the store
_COPY_BYTES: Final = 8  # of a key, replaced by the number of its session


class Routing(StrEnum):
    """Which host answers a request."""

    RANDOM = "random"  # any
    STICKY = "sticky"  # the one of its session; sessions are given to hosts in turn


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is simulated: hosts of equal sizes, and how much each may keep in the store."""

    hosts: int
    routing: Routing
    sizes: Sizes  # of DRAM and drives of one host
    store_chunks: int = 0  # of one host; 0: no store
    users: int = 32  # per host
    sessions: int = 32  # per host; each user has one after another

    def __post_init__(self) -> None:
        assert 0 < self.hosts <= HOSTS_MAX
        assert 0 < self.users <= self.sessions


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """The result of a cluster's load; tokens are whole chunks, but the total is all tokens."""

    requests: int
    tokens: int
    dram_tokens: int
    disk_tokens: int
    store_tokens: int
    disk_written_bytes: int
    store_written_bytes: int
    store_read_bytes: int

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were not recomputed."""
        found = self.dram_tokens + self.disk_tokens + self.store_tokens
        return found / self.tokens if self.tokens else 0.0


class SharedStore:
    """What all hosts have in the store, and the simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written: dict[bytes, dict[int, float]] = {}  # → its hosts → when others know it

    def knows(self, key: bytes, host: int) -> bool:
        """Whether a host can load a chunk."""
        found = self.written.get(key)
        return found is not None and (host in found or min(found.values()) <= self.now)


class SimulatedRemote(SimulatedTier):
    """The store as one host sees it: its own part, and what others have."""

    def __init__(self, chunks: int, store: SharedStore, host: int) -> None:
        super().__init__(chunks, max(1, chunks // STORE_PACKS))
        self._store, self._host = store, host
        self.read_chunks = 0

    def has(self, key: bytes) -> bool:
        """Whether this host has a chunk, or knows that another one has."""
        return self._store.knows(key, self._host)

    def read(self, key: bytes) -> None:
        """Read a chunk of any host."""
        self.read_chunks += 1
        if key in self.held:
            super().read(key)

    def write(self, key: bytes, parent: bytes | None) -> list[tuple[bytes, bool]]:
        """Write a chunk, unless another host is known to have it."""
        if self._store.knows(key, self._host):
            return []
        owners = self._store.written.setdefault(key, {})
        owners[self._host] = self._store.now + VISIBLE_S
        return super().write(key, parent)

    def _first_to_go(self) -> int:
        return next(iter(self._regions))  # the oldest pack

    def forget(self, key: bytes) -> bool:
        """Forget a chunk of this host."""
        owners = self._store.written.get(key, {})
        if owners.pop(self._host, None) is not None and not owners:
            del self._store.written[key]
        return super().forget(key)


class SimulatedHost(SimulatedPool):
    """One host's pool; the store, if there is one, is the last of its tiers."""

    def __init__(self, cluster: Cluster, store: SharedStore, host: int) -> None:
        lower = cluster.sizes.lower_chunks
        with_store = (*lower, cluster.store_chunks) if cluster.store_chunks else lower
        sizes = Sizes(cluster.sizes.dram_chunks, with_store, cluster.sizes.chunk_bytes)
        super().__init__(sizes, Learned(sizes.lower_tiers()))
        self.remote: SimulatedRemote | None = None
        if cluster.store_chunks:
            self.remote = SimulatedRemote(cluster.store_chunks, store, host)
            self.lower[-1] = self.remote


def load_of(trace: Trace, cluster: Cluster, seed: int) -> Iterator[tuple[int, Request]]:
    """The requests of all users in order of time, each with the host that answers it."""
    draw = random.Random(seed)  # noqa: S311 - which session comes next, not a secret
    count = cluster.hosts * cluster.sessions
    sessions = [draw.choice(trace.sessions) for _ in range(count)]
    resampled = Trace(sessions, open_loop=False)
    for number, request in turns(resampled, cluster.hosts * cluster.users):
        copy = number.to_bytes(_COPY_BYTES, "big")
        keys = [copy + key[_COPY_BYTES:] for key in request.keys]
        is_sticky = cluster.routing is Routing.STICKY
        host = number % cluster.hosts if is_sticky else draw.randrange(cluster.hosts)
        yield host, request._replace(keys=keys)


def simulate_hosts(
    trace: Trace, cluster: Cluster, seed: int = 0, progress: Progress | None = None
) -> ClusterResult:
    """Serve a cluster's load; the same seed makes the same load."""
    store = SharedStore()
    pools = [SimulatedHost(cluster, store, host) for host in range(cluster.hosts)]
    number = tokens = in_dram = below = 0
    for number, (host, request) in enumerate(load_of(trace, cluster, seed), start=1):
        store.now = request.at_s
        from_dram, from_lower = pools[host].serve(request.keys, request.at_s, stores=request.stores)
        tokens += request.tokens
        in_dram += from_dram
        below += from_lower
        if progress is not None and number % PROGRESS_REQUESTS == 0:
            progress(PROGRESS_REQUESTS)
    remotes = [pool.remote for pool in pools if pool.remote is not None]
    from_store = sum(remote.read_chunks for remote in remotes)
    store_written = sum(remote.written for remote in remotes) * cluster.sizes.chunk_bytes
    return ClusterResult(
        number,
        tokens,
        in_dram * CHUNK_TOKENS,
        (below - from_store) * CHUNK_TOKENS,
        from_store * CHUNK_TOKENS,
        sum(pool.written_bytes for pool in pools) - store_written,
        store_written,
        from_store * cluster.sizes.chunk_bytes,
    )
