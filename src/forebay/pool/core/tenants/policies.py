"""A policy for each tenant, and whose chunk is written next.

Tenants do not learn from one another, so what one does tells another nothing and moves none of its
chunks. Quotas decide between tenants (`forebay.tiers.quotas`), and their writes to a lower tier
take turns by weight (`forebay.tiers.turns`). Owned by the pool's thread.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from forebay.pool.policy.contract import Policy
from forebay.record.header import DEFAULT_TENANT
from forebay.tiers.contract import Removed
from forebay.tiers.turns import Turns

NewPolicy = Callable[[], Policy]


class Offered(NamedTuple):
    """A chunk that is to be written to a tier."""

    key: bytes
    tenant: bytes


class NamedRead(NamedTuple):
    """A chunk that is to be read before it is asked for."""

    key: bytes
    victim: bytes | None  # the chunk of the same tenant that leaves for it, if any
    chain: bytes  # the last key of the chain that it belongs to
    tenant: bytes


class Policies:
    """One pool's policies."""

    def __init__(
        self, default: Policy, new: NewPolicy, weight_of: Callable[[bytes], int], tiers: int
    ) -> None:
        self._new = new
        self._by_tenant: dict[bytes, Policy] = {DEFAULT_TENANT: default}
        self._turns = [Turns(weight_of) for _ in range(tiers)]
        self._held: set[int] = set()  # tiers that accept nothing now

    def of(self, tenant: bytes) -> Policy:
        """A tenant's policy."""
        policy = self._by_tenant.get(tenant)
        if policy is None:
            policy = self._by_tenant[tenant] = self._new()
            for tier in self._held:
                policy.hold_writes(tier, held=True)
        return policy

    def forget_unless(self, is_used: Callable[[bytes], bool]) -> None:
        """Drop the policies of unused tenants: nobody has their ids, nor DRAM under them.

        A lookup that was answered before may still have made one, or a copy may have ended late.
        """
        unused = [each for each in self._by_tenant if each != DEFAULT_TENANT and not is_used(each)]
        for tenant in unused:
            del self._by_tenant[tenant]
            for turns in self._turns:
                turns.leave(tenant)

    def next_read(self, now: float, has_room: Callable[[bytes, int], bool]) -> NamedRead | None:
        """See Policy; of the first tenant that has one, which then comes last."""
        for tenant in list(self._by_tenant):
            policy = self._by_tenant[tenant]
            found = policy.next_read(now, partial(has_room, tenant))
            if found is not None:
                self._by_tenant[tenant] = self._by_tenant.pop(tenant)
                return NamedRead(found.key, found.victim, found.chain, tenant)
        return None

    @property
    def queued_bytes(self) -> int:
        """See Policy; of all tenants."""
        return sum(policy.queued_bytes for policy in self._by_tenant.values())

    def hold_writes(self, tier: int, *, held: bool) -> None:
        """See Policy; for all tenants, also those to come."""
        if held:
            self._held.add(tier)
        else:
            self._held.discard(tier)
        for policy in self._by_tenant.values():
            policy.hold_writes(tier, held=held)

    def next_write(self, tier: int, now: float, *, idle: bool) -> Offered | None:
        """See Policy; of the tenant whose turn it is, among those with something to write."""
        turns = self._turns[tier]
        for tenant in self._by_tenant:
            turns.join(tenant)
        while (tenant_now := turns.current()) is not None:
            key = self._by_tenant[tenant_now].next_write(tier, now, idle=idle)
            if key is not None:
                return Offered(key, tenant_now)
            turns.leave(tenant_now)
        return None

    def written(self, tier: int, tenant: bytes, size_bytes: int) -> None:
        """A tenant's chunk is being written to a tier: take its size off the tenant's turn."""
        self._turns[tier].served(tenant, size_bytes)

    def evicted(self, tier: int, records: Iterable[Removed], now: float) -> None:
        """See Policy."""
        sizes: dict[bytes, list[int]] = {}
        for record in records:
            of_it = sizes.setdefault(record.tenant, [0, 0])
            of_it[0] += record.length
            of_it[1] += record.length if record.was_read else 0
        for tenant, (size_bytes, read_bytes) in sizes.items():
            if tenant in self._by_tenant:
                self._by_tenant[tenant].evicted(tier, size_bytes, read_bytes, now)
