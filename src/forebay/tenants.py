"""Tenants in the settings: `[[tenant]]` tables of a TOML file; a SettingsError for each mistake.

    [[tenant]]
    name = "search"
    salts = ["3f1c…"]     # hashes of its cache_salts, by `forebay hash-salt`
    dram_floor = "16GiB"  # guaranteed; likewise dram_cap, and both for disk and remote
    weight = 2            # against others, where bandwidth or room is short

The tenant named `default` is whoever has no salt, or one that is not listed.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from forebay.errors import SettingsError
from forebay.quantity import parse_size

TENANTS_MAX: Final = 64  # of one pool: each is a label of metrics
SALTS_MAX: Final = 1024  # of one tenant
WEIGHT_MAX: Final = 1000
OTHER_NAME: Final = "other"  # in figures: all that belongs to no tenant named now
_NAME: Final = re.compile(r"[0-9A-Za-z_][0-9A-Za-z._-]{0,63}")
_SALT: Final = re.compile(r"[0-9a-fA-F]{32}")
MEDIA: Final = ("dram", "disk", "remote")  # for which tenants have quotas
_SIZES: Final = tuple(f"{medium}_{bound}" for medium in MEDIA for bound in ("floor", "cap"))
_FIELDS: Final = ("name", "salts", *_SIZES, "weight")
NAME_RULE: Final = (
    "a tenant's name is 1 to 64 letters, digits, '_', '.' and '-', the first of them no sign."
)


class TenantSetting(NamedTuple):
    """A `[[tenant]]` table."""

    name: str
    salts: tuple[bytes, ...] = ()  # hashes of its salts
    dram_floor: int = 0  # bytes
    dram_cap: int | None = None  # None: no cap
    disk_floor: int = 0
    disk_cap: int | None = None
    weight: int = 1
    remote_floor: int = 0  # in each store, of what this host keeps there
    remote_cap: int | None = None

    def bounds(self, medium: str) -> tuple[int, int | None]:
        """Floor and cap for one of `MEDIA`, in bytes."""
        bounds = {
            "dram": (self.dram_floor, self.dram_cap),
            "disk": (self.disk_floor, self.disk_cap),
            "remote": (self.remote_floor, self.remote_cap),
        }
        return bounds[medium]

    def __str__(self) -> str:
        return self.name


def is_tenant_name(name: str) -> bool:
    """Whether a tenant can have this name."""
    return _NAME.fullmatch(name) is not None


def parse_tenants(value: object) -> tuple[TenantSetting, ...]:
    """The tenants in a list of tables; a SettingsError says in one sentence what is wrong."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, Mapping) for each in value):
        raise SettingsError("tenants are [[tenant]] tables of a file; see docs/tenants.md.")
    if len(value) > TENANTS_MAX:  # verify: number of tenants
        raise SettingsError(f"{len(value)} tenants are too many; name up to {TENANTS_MAX}.")
    tenants = tuple(_tenant(each) for each in value)
    _refuse_repeated("tenant", [each.name for each in tenants])  # verify: a name is one tenant's
    salts = [salt.hex() for each in tenants for salt in each.salts]
    _refuse_repeated("salt", salts)  # verify: whose a salt is
    return tenants


def _tenant(table: Mapping[str, object]) -> TenantSetting:
    name = table.get("name")
    if not isinstance(name, str) or not is_tenant_name(name):
        raise SettingsError(NAME_RULE)
    if name == OTHER_NAME:  # verify: a name that figures have
        raise SettingsError(f"no tenant can be called {name}: what is of no tenant is listed so.")
    unknown = [each for each in table if each not in _FIELDS]
    if unknown:
        known = ", ".join(_FIELDS)
        raise SettingsError(f"tenant {name}: '{unknown[0][:80]}' is none of {known}.")
    sizes = {each: _size(name, each, table[each]) for each in _SIZES if each in table}
    tenant = TenantSetting(name, _salts(name, table.get("salts", ())), weight=_weight(name, table))
    tenant = tenant._replace(**sizes)  # type: ignore[arg-type]
    for medium in MEDIA:
        floor, cap = tenant.bounds(medium)
        if cap is not None and floor > cap:  # verify: floor within cap
            raise SettingsError(f"tenant {name}: its {medium}_floor is above its {medium}_cap.")
    return tenant


def _size(name: str, field: str, value: object) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    try:
        if is_number or isinstance(value, str):
            return parse_size(str(value))
    except SettingsError as error:
        raise SettingsError(f"tenant {name}: {field}: {error}") from None
    raise SettingsError(f"tenant {name}: {field} is a size; write one as 512MiB or 64GiB.")


def _salts(name: str, value: object) -> tuple[bytes, ...]:
    listed = list(value) if isinstance(value, list | tuple) else [None]
    if len(listed) > SALTS_MAX:  # verify: number of salts
        raise SettingsError(f"tenant {name}: it has more than {SALTS_MAX} salts.")
    if not all(isinstance(each, str) and _SALT.fullmatch(each) for each in listed):
        # The value may be a salt in plain text, and is not repeated.
        raise SettingsError(
            f"tenant {name}: salts are hashes of 32 hex digits each; `forebay hash-salt`"
            " makes them."
        )
    return tuple(bytes.fromhex(str(each)) for each in listed)


def _weight(name: str, table: Mapping[str, object]) -> int:
    value = table.get("weight", 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= WEIGHT_MAX:
        raise SettingsError(f"tenant {name}: weight is a whole number of 1 to {WEIGHT_MAX}.")
    return value


def _refuse_repeated(what: str, listed: list[str]) -> None:
    each, count = next(iter(Counter(listed).most_common(1)), ("", 0))
    if count > 1:
        named = f"{what} {each}" if what == "tenant" else f"a {what}'s hash"
        raise SettingsError(f"{named} is listed twice.")
