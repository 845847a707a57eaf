"""A shared directory as a remote tier keeps the contract of every tier."""

from pathlib import Path

from tests.remote_harness import damage_payloads, open_remote

from forebay.testing.conformance import TierConformance
from forebay.tiers.contract import Tier, TierListener


class TestDirectory(TierConformance):
    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        return open_remote(place, listener=listener)

    def damage(self, place: Path) -> None:
        damage_payloads(place)
