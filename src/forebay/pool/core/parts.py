"""What the parts of a pool's core share; made once, when the pool begins."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forebay.barrier import Barrier
from forebay.metrics.catalog import PoolMetrics
from forebay.pool.core.dram import Dram
from forebay.pool.core.stack import TierStack
from forebay.pool.core.tenants.registry import Tenants
from forebay.sys.clock import Clock

Complete = Callable[[Callable[[], None]], None]  # runs something on the pool's thread


class Deferred:
    """Work that an answer need not wait for: done after it was sent, or before the next message."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self._work: deque[Callable[[], None]] = deque()

    def add(self, work: Callable[[], None]) -> None:
        """Do this a little later."""
        self._work.append(work)

    def run(self) -> None:
        """Do what waits, behind a barrier of its own: a failure here belongs to another message."""
        while self._work:
            self._barrier.call("what answers did not wait for", self._work.popleft())


@dataclass(frozen=True, slots=True)
class CoreParts:
    """Owned by the pool's thread, except `complete` and `barrier`, which any thread may call."""

    dram: Dram
    stack: TierStack
    metrics: PoolMetrics
    clock: Clock
    complete: Complete
    deferred: Deferred
    barrier: Barrier
    tenants: Tenants
    generation: int  # of the slab that offsets refer to
