"""Tells everything that ranks chunks (policies, tiers, use counts) what engines ask for.

None of these decides anything for the request itself, so they are told after it was answered.
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
        """A tenant's request wants these chunks, of which the first `known` are known.

        `now`: tell at once, because slots may be freed for them.
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
