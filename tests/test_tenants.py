"""Tenants as a file of settings says them: every slip is one sentence, and shows no salt."""

from typing import Any

import pytest

from forebay.errors import SettingsError
from forebay.tenants import SALTS_MAX, TENANTS_MAX, TenantSetting, parse_tenants

SALT = "ab" * 16
SLIPS: dict[str, tuple[object, str]] = {
    "no tables": ("search", "tenants are [[tenant]] tables of a file; see docs/tenants.md."),
    "no table": (["search"], "tenants are [[tenant]] tables of a file; see docs/tenants.md."),
    "too many": ([{"name": f"t{n}"} for n in range(TENANTS_MAX + 1)], "65 tenants are too many"),
    "no name": ([{}], "a tenant's name is 1 to 64 letters"),
    "a sign first": ([{"name": "-a"}], "a tenant's name is 1 to 64 letters"),
    "a name of figures": ([{"name": "other"}], "no tenant can be called other"),
    "an unknown field": ([{"name": "a", "flor": 1}], "tenant a: 'flor' is none of name, salts,"),
    "no size": ([{"name": "a", "dram_cap": True}], "tenant a: dram_cap is a size; write one"),
    "below zero": ([{"name": "a", "dram_cap": -1}], "tenant a: dram_cap is a size; write one"),
    "another unit": ([{"name": "a", "disk_floor": "1 yard"}], "tenant a: disk_floor: "),
    "no list of salts": ([{"name": "a", "salts": SALT}], "tenant a: salts are hashes of 32 hex"),
    "a plain salt": ([{"name": "a", "salts": ["secret"]}], "tenant a: salts are hashes of 32 hex"),
    "salts": ([{"name": "a", "salts": [SALT] * (SALTS_MAX + 1)}], "more than 1024 salts."),
    "a weight": ([{"name": "a", "weight": 0}], "tenant a: weight is a whole number of 1 to 1000."),
    "no weight": ([{"name": "a", "weight": True}], "tenant a: weight is a whole number"),
    "dram": ([{"name": "a", "dram_floor": 2, "dram_cap": 1}], "its dram_floor is above its dram_c"),
    "disk": ([{"name": "a", "disk_floor": 2, "disk_cap": 1}], "its disk_floor is above its disk_c"),
    "a name twice": ([{"name": "a"}, {"name": "a"}], "tenant a is listed twice."),
    "a salt twice": (
        [{"name": "a", "salts": [SALT]}, {"name": "b", "salts": [SALT.upper()]}],
        "a salt's hash is listed twice.",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_one_sentence(slip: str) -> None:
    value, sentence = SLIPS[slip]
    with pytest.raises(SettingsError) as refused:
        parse_tenants(value)
    assert sentence in str(refused.value)
    assert "secret" not in str(refused.value), "it may be a salt in plain"


def test_tables_are_tenants() -> None:
    table: dict[str, Any] = {"name": "a", "salts": [SALT], "weight": 3}
    sizes = {"dram_floor": "1MiB", "dram_cap": 1 << 20, "disk_floor": 0, "disk_cap": "2GiB"}
    found = parse_tenants([table | sizes, {"name": "default"}])
    first = TenantSetting("a", (bytes.fromhex(SALT),), 1 << 20, 1 << 20, 0, 2 << 30, 3)
    assert found == (first, TenantSetting("default"))
    assert parse_tenants([]) == ()
    assert [str(each) for each in found] == ["a", "default"]
