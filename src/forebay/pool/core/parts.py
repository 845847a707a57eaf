"""What the parts of a pool's core work with; made once, when the pool begins."""

from collections.abc import Callable
from dataclasses import dataclass

from forebay.barrier import Barrier
from forebay.metrics.catalog import PoolMetrics
from forebay.pool.core.dram import Dram
from forebay.pool.core.stack import TierStack
from forebay.pool.core.tenants.registry import Tenants
from forebay.sys.clock import Clock

Complete = Callable[[Callable[[], None]], None]  # have something done on the pool's thread


@dataclass(frozen=True, slots=True)
class CoreParts:
    """Owned by the pool's thread, but for `complete` and `barrier`, which any thread may call."""

    dram: Dram
    stack: TierStack
    metrics: PoolMetrics
    clock: Clock
    complete: Complete
    barrier: Barrier
    tenants: Tenants
    generation: int  # of the slab that slots are named in
