"""Parts of tenancy on their own: who the tenants are, and a policy for each."""

from pathlib import Path

import pytest
from tests.core_harness import SECRET
from tests.oldest_first import OldestFirst
from tests.pool.core.test_tenants import tenant

from forebay.errors import SettingsError, StartupError
from forebay.identity.tenants import tenant_id
from forebay.pool.core.tenants.policies import Policies
from forebay.pool.core.tenants.registry import EPOCHS_MAX, Tenants, read_secret, why_unfit
from forebay.record.header import DEFAULT_TENANT
from forebay.tenants import OTHER_NAME

OLD = b"t" * 16  # a tenant's id


def test_a_pool_without_a_key_has_no_tenants() -> None:
    tenants = Tenants()
    assert [each.id for each in tenants] == [DEFAULT_TENANT]
    with pytest.raises(SettingsError, match="no tenant_key_file, and so no tenants"):
        tenants.replace([tenant("a")])
    assert tenants.salt_key == b""


def test_a_name_that_has_used_all_of_its_ids_is_refused() -> None:
    forgotten = {tenant_id(SECRET, "a", epoch) for epoch in range(EPOCHS_MAX)}
    with pytest.raises(SettingsError, match="tenant a was forgotten too often; rename it"):
        Tenants(SECRET, [tenant("a")], forgotten)
    last = tenant_id(SECRET, "a", EPOCHS_MAX - 1)
    tenants = Tenants(SECRET, [tenant("a")], forgotten - {last})
    assert tenants.id_of("a") == last
    assert not tenants.can_renew("a")


def test_a_forgotten_id_is_nobodys_and_the_next_one_has_another_mask() -> None:
    tenants = Tenants(SECRET, [tenant("a")])
    before = tenants.named("a")
    assert before is not None
    tenants.renew("a", before.id)
    after = tenants.named("a")
    assert after is not None
    assert len({before.id, after.id, before.mask, after.mask}) == 4
    assert tenants.of_salt(before.setting.salts[0]) == after
    assert tenants.name_of(before.id) == OTHER_NAME
    assert tenants.is_current(after.id)
    assert not tenants.is_current(before.id)
    tenants.renew("nobody", OLD)  # what is taken out of the settings can be forgotten, too
    assert not tenants.is_current(OLD)
    assert tenants.named("nobody") is None


@pytest.mark.parametrize("tier", ["dram", "disk"])
def test_floors_that_do_not_fit_are_one_sentence(tier: str) -> None:
    wanted = [tenant(name, **{f"{tier}_floor": 5}) for name in "ab"]
    assert why_unfit(wanted, {"dram": 10, "disk": 10}) is None
    assert why_unfit(wanted, {"dram": 9, "disk": 9}) == (
        f"the {tier} floors of all tenants together are more than the pool has."
    )


def test_a_key_that_is_missing_or_short_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "tenants.key"
    with pytest.raises(StartupError, match=r"tenant_key_file: .*tenants\.key"):
        read_secret(str(path))
    path.write_bytes(b"  15 bytes, short\n"[2:18])
    with pytest.raises(StartupError, match="needs 16 bytes or more; make one with"):
        read_secret(str(path))
    path.write_bytes(b"\n sixteen bytes....\n")
    assert read_secret(str(path)) == b"sixteen bytes...."


class Listening(OldestFirst):
    """A policy that knows which tiers take nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[int] = set()

    def hold_writes(self, tier: int, *, held: bool) -> None:
        self.held = self.held | {tier} if held else self.held - {tier}


def test_policies_to_come_know_which_tiers_take_nothing() -> None:
    made: list[Listening] = [Listening()]

    def new() -> Listening:
        made.append(Listening())
        return made[-1]

    policies = Policies(made[0], new, lambda _: 1, 2)
    policies.hold_writes(1, held=True)
    policies.of(OLD)
    assert [each.held for each in made] == [{1}, {1}]
    policies.hold_writes(1, held=False)
    policies.of(b"u" * 16)
    assert [each.held for each in made] == [set(), set(), set()]


def test_policies_of_nobody_go_and_the_default_tenants_stays() -> None:
    default = OldestFirst()
    policies = Policies(default, OldestFirst, lambda _: 1, 1)
    kept = policies.of(OLD)
    policies.forget_unless(lambda tenant: tenant == OLD)
    assert policies.of(OLD) is kept
    kept.stored(b"k", None, 1, 0.0)
    policies.forget_unless(lambda _: False)
    assert policies.next_write(0, 0.0, idle=True) is None, "its turn went with it"
    assert policies.of(OLD) is not kept
    assert policies.of(DEFAULT_TENANT) is default
