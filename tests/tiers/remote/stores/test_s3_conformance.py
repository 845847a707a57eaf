"""S3 as a remote tier keeps the contract of every tier."""

import hashlib
from pathlib import Path

import obstore
import pytest
from tests import seaweed
from tests.remote_harness import CAP_BYTES, PATIENT, damaged
from tests.seaweed import BUCKET, S3Server

from forebay.testing.conformance import TierConformance
from forebay.tiers.contract import Tier, TierListener
from forebay.tiers.remote.tier import RemoteTier

pytestmark = pytest.mark.stores


class TestS3(TierConformance):
    server: S3Server

    @pytest.fixture(autouse=True)
    def _served(self, s3: S3Server) -> None:
        type(self).server = s3

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        url = f"s3://{BUCKET}/{_prefix(place)}?cap={CAP_BYTES}&endpoint={self.server.url}"
        return RemoteTier.open(f"{url}&timeout=600", "a", PATIENT, None, listener)

    def damage(self, place: Path) -> None:
        client = seaweed.client(self.server, _prefix(place))
        for page in obstore.list(client, "packs"):
            for each in page:
                data = bytes(obstore.get(client, each["path"]).bytes())
                obstore.put(client, each["path"], damaged(data))


def _prefix(place: Path) -> str:
    return hashlib.sha256(str(place).encode()).hexdigest()[:16]
