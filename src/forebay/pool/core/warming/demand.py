"""What engines ask for, told to all who rank chunks by it: policies, tiers, and use counts.

None of them decides anything for the request itself, so they hear of it when it was answered.
"""

from functools import partial

from forebay.pool.core.parts import CoreParts
from forebay.pool.core.warming.use_counts import UseCounts


class ChunkDemand:
    """Owned by the pool's thread."""

    def __init__(self, parts: CoreParts) -> None:
        self.uses = UseCounts(parts)
        self._policies, self._stack = parts.dram.policies, parts.stack
        self._clock, self._deferred = parts.clock, parts.deferred

    def asked_for(self, tenant: bytes, keys: list[bytes], known: int, *, now: bool = False) -> None:
        """A tenant's request wants these chunks, of which the first so many are known.

        `now`: before anything else, because slots may be freed for them.
        """
        if not now:
            self._deferred.add(partial(self._tell, tenant, keys, known))
            return
        self._deferred.run()
        self._tell(tenant, keys, known)

    def _tell(self, tenant: bytes, keys: list[bytes], known: int) -> None:
        self._policies.of(tenant).requested(keys, known, self._clock.monotonic())
        self._stack.asked(keys[:known])
        self.uses.asked_for(keys[:known])
