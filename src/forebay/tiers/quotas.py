"""What tenants may hold of one medium: hard caps, guaranteed floors, and who gives way.

Pure and not thread-safe: whoever owns the medium owns this. Bytes are counted here alone, from the
moment that they are taken until they are given back, so a cap holds at every instant.

* A tenant never holds more than its cap.
* What a tenant holds up to its floor leaves for nobody else's sake.
* Room is made by the tenant that is furthest above its floor for its weight, and by the one that
  wants the room where it is itself at its cap.

A tenant that nobody has named has neither floor nor cap and gives way before all others: it was
forgotten, or its name was taken out of the settings.
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
    cap_bytes: int | None = None  # never exceeded; None: as much as there is
    weight: int = 1  # against others, where there is not enough for all

    def part(self, share: Fraction) -> "Quota":
        """The same for a part of the medium, rounded down."""
        cap_bytes = None if self.cap_bytes is None else int(self.cap_bytes * share)
        return Quota(int(self.floor_bytes * share), cap_bytes, self.weight)


_NOBODY: Final = Quota()
FLOORS: Final = "the floors of all tenants together are more than that; lower these first"


def floors_bytes(quotas: Mapping[bytes, Quota]) -> int:
    """What is guaranteed to all of these together."""
    return sum(quota.floor_bytes for quota in quotas.values())


class Quotas:
    """What every tenant holds, and may."""

    def __init__(self, quotas: Mapping[bytes, Quota] | None = None) -> None:
        self._quotas: dict[bytes, Quota] = {}
        self._used: dict[bytes, int] = {}
        self.replace(quotas or {DEFAULT_TENANT: Quota()})

    def replace(self, quotas: Mapping[bytes, Quota]) -> None:
        """Other quotas from now on; what is held stays until room is wanted."""
        self._quotas = dict(quotas)

    @property
    def floors_bytes(self) -> int:
        """What is guaranteed to all tenants together."""
        return floors_bytes(self._quotas)

    def quota_of(self, tenant: bytes) -> Quota:
        """A tenant's quota."""
        return self._quotas.get(tenant, _NOBODY)

    def used_bytes(self, tenant: bytes) -> int:
        """What a tenant holds."""
        return self._used.get(tenant, 0)

    def take(self, tenant: bytes, size_bytes: int) -> None:
        """A tenant holds so much more."""
        self._used[tenant] = self.used_bytes(tenant) + size_bytes

    def give(self, tenant: bytes, size_bytes: int) -> None:
        """A tenant holds so much less."""
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
        """Whether a tenant may lose so much so that another, or itself, has room."""
        left_bytes = self.used_bytes(tenant) - size_bytes
        is_above = left_bytes >= self.quota_of(tenant).floor_bytes  # verify: tenant's floor
        return tenant == wanted_by or is_above

    def losers(self, wanted_by: bytes, size_bytes: int) -> list[bytes]:
        """Who may lose so much for a tenant, in the order in which they are to be asked.

        Itself only, where it is at its cap. Else the one first that is furthest above its floor.
        """
        if not self.fits(wanted_by, size_bytes):
            return [wanted_by]
        able = [each for each in self._used if self.may_lose(each, size_bytes, wanted_by)]
        return sorted(able, key=lambda each: self._rank(each, wanted_by))

    def above_caps(self) -> list[bytes]:
        """Tenants that hold more than their caps, since those were lowered."""
        return [tenant for tenant in self._used if not self.fits(tenant, 0)]

    def holders(self) -> Iterable[bytes]:
        """All who hold anything."""
        return self._used.keys()

    def held(self) -> dict[bytes, int]:
        """What each of them holds; any thread may ask."""
        return dict(self._used)

    def _rank(self, tenant: bytes, wanted_by: bytes) -> tuple[bool, float, bool]:
        quota = self.quota_of(tenant)
        above = (self.used_bytes(tenant) - quota.floor_bytes) / quota.weight
        return tenant in self._quotas, -above, tenant != wanted_by
