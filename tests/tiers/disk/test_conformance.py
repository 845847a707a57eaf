"""The disk tier keeps the contract."""

from pathlib import Path

from tests.disk_harness import CAP_BYTES, SMALL, flip, records
from tests.encryption_harness import open_encrypted

from forebay.record.header import HEADER_BYTES
from forebay.testing.conformance import TierConformance
from forebay.tiers.contract import Tier, TierListener
from forebay.tiers.disk import Directory, DiskTier


class TestDiskTier(TierConformance):
    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        place.chmod(0o700)
        return DiskTier.open([Directory(str(place), CAP_BYTES)], SMALL, listener=listener)

    def damage(self, place: Path) -> None:
        for path, offset in records(place):
            flip(path, (offset + HEADER_BYTES) * 8)


class TestDiskTierOfTwoDrives(TestDiskTier):
    """The same tests: a caller cannot tell how many drives there are."""

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        drives = [place / "one", place / "two"]
        for drive in drives:
            drive.mkdir(mode=0o700, exist_ok=True)
        return DiskTier.open(
            [Directory(str(drive), 2 << 20) for drive in drives], SMALL, listener=listener
        )

    def damage(self, place: Path) -> None:
        for drive in ("one", "two"):
            super().damage(place / drive)


class TestEncryptedDiskTier(TestDiskTier):
    """The same tests: a caller cannot tell that the medium sees neither names nor bytes."""

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        return open_encrypted(place, listener)
