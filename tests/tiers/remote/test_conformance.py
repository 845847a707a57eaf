"""A shared directory as a remote tier keeps the contract of every tier."""

from pathlib import Path

from tests.encryption_harness import open_encrypted_remote
from tests.remote_harness import damage_payloads, open_remote

from forebay.testing.conformance import TierConformance
from forebay.tiers.contract import Tier, TierListener


class TestDirectory(TierConformance):
    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        return open_remote(place, listener=listener)

    def damage(self, place: Path) -> None:
        damage_payloads(place)


class TestEncryptedDirectory(TestDirectory):
    """The same tests: a caller cannot tell that the store sees neither names nor bytes."""

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        return open_encrypted_remote(place, listener)
