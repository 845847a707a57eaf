"""Valkey alone, Redis over TLS with few rights, and a cluster keep the contract of every tier."""

import hashlib
from pathlib import Path

import pytest
from tests.remote_harness import CAP_BYTES, PATIENT
from tests.valkey_servers import SecureServer, Server, damage_packs

from forebay.testing.conformance import TierConformance
from forebay.tiers.contract import Tier, TierListener
from forebay.tiers.remote.tier import RemoteTier

pytestmark = pytest.mark.stores


class ValkeyConformance(TierConformance):
    """Where the rights allow it, each test has a prefix of its own."""

    def open_url(self, url: str, listener: TierListener) -> Tier:
        return RemoteTier.open(f"{url}cap={CAP_BYTES}&timeout=600", "a", PATIENT, None, listener)


def prefix_of(place: Path) -> str:
    return hashlib.sha256(str(place).encode()).hexdigest()[:16]


class TestValkey(ValkeyConformance):
    server: Server

    @pytest.fixture(autouse=True)
    def _served(self, valkey: Server) -> None:
        type(self).server = valkey

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        return self.open_url(f"valkey://{self.server.address}/3/{prefix_of(place)}?", listener)

    def damage(self, place: Path) -> None:
        with self.server.client(db=3) as client:
            damage_packs(client, prefix_of(place))


class TestRedisOverTls(ValkeyConformance):
    server: SecureServer

    @pytest.fixture(autouse=True)
    def _served(self, redis_tls: SecureServer) -> None:
        type(self).server = redis_tls
        with redis_tls.client() as client:
            client.flushall()

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        address = self.server.server.tls_address
        return self.open_url(f"rediss://{address}?{self.server.options}&", listener)

    def damage(self, place: Path) -> None:
        with self.server.client() as client:
            damage_packs(client, "forebay")


class TestCluster(ValkeyConformance):
    servers: list[Server]

    @pytest.fixture(autouse=True)
    def _served(self, cluster: list[Server]) -> None:
        type(self).servers = cluster

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        address = self.servers[0].address
        return self.open_url(f"valkey://{address}/0/{prefix_of(place)}?", listener)

    def damage(self, place: Path) -> None:
        for server in self.servers:
            with server.client() as client:
                damage_packs(client, prefix_of(place))
