"""P7: tenants share nothing, in whichever tier a record lies and whoever knows its key."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import opened
from tests.remote_harness import opened_remote

from forebay.record.header import DEFAULT_TENANT, Damage
from forebay.testing.conformance import load, store
from forebay.testing.samples import single
from forebay.tiers.contract import Hit, Miss, MissReason, Stored, Tier

TIERS: dict[str, Callable[[Path], AbstractContextManager[Tier]]] = {
    "disk": opened,
    "remote": opened_remote,
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("other", [b"o" * 16, DEFAULT_TENANT], ids=["another", "nobody"])
@pytest.mark.parametrize("is_again", [False, True], ids=["at once", "after a restart"])
def test_t35_a_key_of_one_tenant_brings_no_other_its_record(
    tmp_path: Path, tier: str, other: bytes, is_again: bool
) -> None:
    """A pool gives each tenant's keys a mask of its own; here the other knows the masked key."""
    tmp_path.chmod(0o700)
    sample = single("of one")
    own, theirs = (
        replace(sample, name=replace(sample.name, tenant=tenant)) for tenant in (b"t" * 16, other)
    )
    with ExitStack() as opened_tiers:
        open_tier = TIERS[tier]
        found = opened_tiers.enter_context(open_tier(tmp_path))
        assert store(found, own) == Stored()
        if is_again:
            opened_tiers.close()
            found = opened_tiers.enter_context(open_tier(tmp_path))
        assert load(found, own) == (Hit(own.length), own.payload), "the control"
        outcome, _ = load(found, theirs)
        assert outcome == Miss(MissReason.WRONG_RECORD, Damage.TENANT)
