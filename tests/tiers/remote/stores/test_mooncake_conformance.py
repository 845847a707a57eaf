"""Mooncake keeps the contract of every tier."""

import hashlib
from pathlib import Path

import pytest
from tests.mooncake_servers import Mooncake, damage_packs
from tests.remote_harness import CAP_BYTES, PATIENT

from forebay.testing.conformance import TierConformance
from forebay.tiers.contract import Tier, TierListener
from forebay.tiers.remote.tier import RemoteTier

pytestmark = pytest.mark.stores


class TestMooncake(TierConformance):
    """Each test has a prefix of its own."""

    servers: Mooncake

    @pytest.fixture(autouse=True)
    def _served(self, mooncake: Mooncake) -> None:
        type(self).servers = mooncake

    def url_of(self, place: Path) -> str:
        prefix = hashlib.sha256(str(place).encode()).hexdigest()[:16]
        return self.servers.url(prefix, f"cap={CAP_BYTES}")

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        return RemoteTier.open(self.url_of(place), "a", PATIENT, None, listener)

    def damage(self, place: Path) -> None:
        damage_packs(self.url_of(place), "a")
