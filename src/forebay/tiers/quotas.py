"""Tenants' quotas on one medium: hard caps, guaranteed floors, and who gives way.

Pure and not thread-safe: the medium's owner owns this. Bytes are counted only here, from the moment
they are taken until they are given back, so a cap holds at every instant.

* A tenant never holds more than its cap.
* Up to its floor, a tenant loses nothing for others.
* Room is made by the tenant that is furthest above its floor, relative to its weight. A tenant at
  its cap makes room for itself.

A tenant without a quota, since it was forgotten or removed from the settings, has neither floor nor
cap and gives way before all others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from forebay.record.header import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may hold of one medium."""

    floor_bytes: int = 0  # guaranteed
    cap_bytes: int | None = None  # never exceeded; None: no cap
    weight: int = 1  # share, relative to others, of what is not enough for all

    def part(self, share: Fraction) -> "Quota":
        """The same quota for a part of the medium, rounded down."""
        cap_bytes = None if self.cap_bytes is None else int(self.cap_bytes * share)
        return Quota(int(self.floor_bytes * share), cap_bytes, self.weight)


_NOBODY: Final = Quota()
FLOORS: Final = "the floors of all tenants together are more than that; lower these first"


def floors_bytes(quotas: Mapping[bytes, Quota]) -> int:
    """The sum of these quotas' floors."""
    return sum(quota.floor_bytes for quota in quotas.values())


class Quotas:
    """What every tenant holds, and may hold."""

    def __init__(self, quotas: Mapping[bytes, Quota] | None = None) -> None:
        self._quotas: dict[bytes, Quota] = {}
        self._used: dict[bytes, int] = {}
        self.replace(quotas or {DEFAULT_TENANT: Quota()})

    def replace(self, quotas: Mapping[bytes, Quota]) -> None:
        """Use other quotas from now on; nobody loses anything before room is needed."""
        self._quotas = dict(quotas)

    @property
    def floors_bytes(self) -> int:
        """The sum of all floors."""
        return floors_bytes(self._quotas)

    def quota_of(self, tenant: bytes) -> Quota:
        """A tenant's quota."""
        return self._quotas.get(tenant, _NOBODY)

    def used_bytes(self, tenant: bytes) -> int:
        """What a tenant holds."""
        return self._used.get(tenant, 0)

    def take(self, tenant: bytes, size_bytes: int) -> None:
        """A tenant takes so many bytes."""
        self._used[tenant] = self.used_bytes(tenant) + size_bytes

    def give(self, tenant: bytes, size_bytes: int) -> None:
        """A tenant gives back so many bytes."""
        left_bytes = self.used_bytes(tenant) - size_bytes
        assert left_bytes >= 0
        if left_bytes:
            self._used[tenant] = left_bytes
        else:
            self._used.pop(tenant, None)

    def fits(self, tenant: bytes, size_bytes: int) -> bool:
        """Whether a tenant may hold so much more."""
        cap_bytes = self.quota_of(tenant).cap_bytes
        left_bytes = (cap_bytes or 0) - self.used_bytes(tenant)
        is_within = size_bytes <= left_bytes  # verify: tenant's cap
        return cap_bytes is None or is_within

    def ever_fits(self, tenant: bytes, size_bytes: int) -> bool:
        """Whether a tenant could hold so much, if it held nothing else."""
        cap_bytes = self.quota_of(tenant).cap_bytes
        return cap_bytes is None or size_bytes <= cap_bytes

    def may_lose(self, tenant: bytes, size_bytes: int, wanted_by: bytes) -> bool:
        """Whether a tenant may lose so much to make room for another one, or for itself."""
        left_bytes = self.used_bytes(tenant) - size_bytes
        is_above = left_bytes >= self.quota_of(tenant).floor_bytes  # verify: tenant's floor
        return tenant == wanted_by or is_above

    def losers(self, wanted_by: bytes, size_bytes: int) -> list[bytes]:
        """The tenants that may lose so much for a tenant, the first to ask first.

        A tenant at its cap can only lose its own. Otherwise the one furthest above its floor is
        first.
        """
        if not self.fits(wanted_by, size_bytes):
            return [wanted_by]
        able = [each for each in self._used if self.may_lose(each, size_bytes, wanted_by)]
        return sorted(able, key=lambda each: self._rank(each, wanted_by))

    def above_caps(self) -> list[bytes]:
        """Tenants that hold more than their caps, after these were lowered."""
        return [tenant for tenant in self._used if not self.fits(tenant, 0)]

    def holders(self) -> Iterable[bytes]:
        """All tenants that hold anything."""
        return self._used.keys()

    def held(self) -> dict[bytes, int]:
        """What each tenant holds; any thread may call."""
        return dict(self._used)

    def _rank(self, tenant: bytes, wanted_by: bytes) -> tuple[bool, float, bool]:
        quota = self.quota_of(tenant)
        above = (self.used_bytes(tenant) - quota.floor_bytes) / quota.weight
        return tenant in self._quotas, -above, tenant != wanted_by
