"""The tenants of a pool: from the hash of a salt to a tenant, its id, its mask and its quotas.

An engine cannot name a tenant. It sends the hash of a request's salt; no hash, or one that the
operator has assigned to nobody, means the default tenant. A forgotten tenant gets a new id
(`renew`): keys are masked by the id, so nothing stored under the old one can be asked for.

Promised: the ids of one name never repeat, even over restarts, as long as the tiers remember which
ids were forgotten. Owned by the pool's thread, except `weight_of`, which any thread may call.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from forebay.errors import SettingsError, StartupError
from forebay.files import read_regular
from forebay.identity.tenants import (
    DEFAULT_NAME,
    NO_MASK,
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    mask_of,
    salt_key,
    tenant_id,
)
from forebay.record.header import DEFAULT_TENANT
from forebay.record.region import SHORT_KEY_BYTES
from forebay.tenants import MEDIA, OTHER_NAME, TenantSetting
from forebay.tiers.quotas import Quota

EPOCHS_MAX: Final = 4096  # how often one tenant can be forgotten


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant, until it is forgotten."""

    setting: TenantSetting
    id: bytes
    mask: bytes  # mask of full keys; `NO_MASK`: the default tenant, unless it was forgotten

    @property
    def name(self) -> str:
        """The operator's name for it."""
        return self.setting.name

    @property
    def short_mask(self) -> bytes:
        """The mask of short keys."""
        return self.mask[:SHORT_KEY_BYTES]


class Tenants:
    """Every tenant of one pool, the default one included."""

    def __init__(
        self,
        secret: bytes = b"",
        settings: Iterable[TenantSetting] = (),
        forgotten: Collection[bytes] = (),
    ) -> None:
        """`forgotten`: ids that must not be used again. Without a secret there are no tenants."""
        self._secret = secret
        self._forgotten = set(forgotten)
        self._by_name: dict[str, Tenant] = {}
        self._by_id: dict[bytes, Tenant] = {}
        self._by_salt: dict[bytes, Tenant] = {}
        self._masks: dict[bytes, bytes] = {DEFAULT_TENANT: NO_MASK}  # including those of old ids
        self.salt_key = salt_key(secret) if secret else b""
        self.replace(settings)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def default(self) -> Tenant:
        """The tenant of all requests that no other tenant's salts claim."""
        return self._by_name[DEFAULT_NAME]

    def replace(self, settings: Iterable[TenantSetting]) -> None:
        """Use these tenants from now on; a SettingsError if the pool has no secret for them."""
        named = {each.name: each for each in settings}
        if named and not self._secret:  # verify: no tenants without a key
            raise SettingsError("this pool has no tenant_key_file, and so no tenants.")
        named.setdefault(DEFAULT_NAME, TenantSetting(DEFAULT_NAME))
        self._by_name = {name: self._tenant(each) for name, each in named.items()}
        self._index()

    def of_salt(self, salt_hash: bytes) -> Tenant:
        """The tenant of a request, by the hash of its salt."""
        return self._by_salt.get(salt_hash) or self.default

    def named(self, name: str) -> Tenant | None:
        """The tenant that has this name now, if any."""
        return self._by_name.get(name)

    def with_id(self, tenant: bytes) -> Tenant | None:
        """The tenant that has this id now; None if it was forgotten, or its name was removed."""
        return self._by_id.get(tenant)

    def name_of(self, tenant: bytes) -> str:
        """The name of the tenant with this id, for people and metrics."""
        found = self._by_id.get(tenant)
        return OTHER_NAME if found is None else found.name

    def is_current(self, tenant: bytes) -> bool:
        """Whether records with this tenant id may still be loaded and stored."""
        return tenant not in self._forgotten

    def mask(self, tenant: bytes) -> bytes:
        """The mask of full keys under this id."""
        found = self._masks.get(tenant)
        if found is None:
            found = self._masks[tenant] = mask_of(self._secret, tenant)
        return found

    def weight_of(self, tenant: bytes) -> int:
        """A tenant's weight; 1 for unknown ids."""
        found = self._by_id.get(tenant)
        return 1 if found is None else found.setting.weight

    def id_of(self, name: str) -> bytes | None:
        """The id of this name, whether it is a tenant now or was one; None if none is left."""
        return next(self._ids_left(name), None)

    def can_renew(self, name: str) -> bool:
        """Whether this name can get another id after its current one is forgotten."""
        return len(list(islice(self._ids_left(name), 2))) > 1

    def _ids_left(self, name: str) -> Iterator[bytes]:
        ids = (tenant_id(self._secret, name, epoch) for epoch in range(EPOCHS_MAX))
        return (each for each in ids if each not in self._forgotten)

    def renew(self, name: str, old: bytes) -> None:
        """The id `old` is forgotten: give the name its next id."""
        self._forgotten.add(old)
        if name in self._by_name:
            self._by_name[name] = self._tenant(self._by_name[name].setting)
            self._index()

    def quotas(self, medium: str) -> dict[bytes, Quota]:
        """What each tenant may hold of DRAM, of all drives together, or of each store, by id."""
        return {
            each.id: Quota(*each.setting.bounds(medium), each.setting.weight)
            for each in self._by_name.values()
        }

    def _tenant(self, setting: TenantSetting) -> Tenant:
        found = self.id_of(setting.name)
        if found is None:
            raise SettingsError(f"tenant {setting.name} was forgotten too often; rename it.")
        return Tenant(setting, found, self.mask(found))

    def _index(self) -> None:
        tenants: Sequence[Tenant] = list(self._by_name.values())
        by_salt = {salt: each for each in tenants for salt in each.setting.salts}
        self._by_id, self._by_salt = {each.id: each for each in tenants}, by_salt


def why_unfit(settings: Iterable[TenantSetting], caps: Mapping[str, int]) -> str | None:
    """Why these floors cannot be guaranteed under these caps, in one sentence."""
    wanted = list(settings)
    for medium in MEDIA:
        floors_bytes = sum(each.bounds(medium)[0] for each in wanted)
        if floors_bytes > caps.get(medium, 0):  # verify: floors fit
            return f"the {medium} floors of all tenants together are more than the pool has."
    return None


def read_secret(path: str) -> bytes:
    """The secret from the file at `path`; a StartupError says what is wrong."""
    try:
        secret = read_regular(path, SECRET_BYTES_MAX).strip()
    except SettingsError as error:
        raise StartupError(f"tenant_key_file: {error}") from None
    if len(secret) < SECRET_BYTES_MIN:  # verify: length of the tenants' key
        raise StartupError(
            f"tenant_key_file '{path}' needs {SECRET_BYTES_MIN} bytes or more; make one with:"
            f" (umask 077; openssl rand -hex 32 > '{path}')"
        )
    return secret
