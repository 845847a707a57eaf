"""P7, P8, P11 at the socket: nobody but this user is heard, and nothing private is said."""

import json
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests import pool_process
from tests.clocks import jumping_wall
from tests.pool_process import PatientClient, exact, made

from forebay.identity.keys import ChainRoot, KeyChain
from forebay.pool import wire
from forebay.pool.client import Chain, Known
from forebay.pool.messages import PROTOCOL, Hello
from forebay.settings import Settings
from forebay.tiers.contract import Miss

TABLES = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "netlink", "packet")


@pytest.fixture
def place() -> Iterator[Path]:
    with pool_process.short_directory() as path:
        yield path


def socket_inodes(pid: int) -> set[str]:
    links = [pool_process._target(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {link[8:-1] for link in links if link.startswith("socket:")}


def test_t42_a_pool_listens_at_its_socket_and_nowhere_else(place: Path) -> None:
    before = socket_inodes(os.getpid())
    with pool_process.serving(place) as service:
        ours = socket_inodes(os.getpid()) - before
        assert ours
        for table in TABLES:
            path = Path(f"/proc/net/{table}")
            words = set(path.read_text().split()) if path.exists() else set[str]()
            assert not ours & words, table
        rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
        listening = [row for row in rows if len(row) > 7 and row[6] in ours]
        assert [row[7] for row in listening] == [service.address.path]
        assert Path(service.address.path).stat().st_mode & 0o777 == 0o600


def test_t46_logs_and_statistics_hold_nothing_private(
    place: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    salt, tokens = "tenant-of-great-secrecy", list(range(483_920_517, 483_920_581))
    keys = KeyChain(ChainRoot(bytes(range(32)), 16, salt=salt)).extend(tokens)
    chain = Chain(bytes(range(32)), keys)
    payloads = [b"KV-BYTES-THAT-NOBODY-MAY-SEE" * 100] * len(keys)
    with pool_process.serving(place, pool_process.with_disk(place)) as service:
        with PatientClient(service.address.path) as client:
            client.store(chain, payloads)
            with client.load(chain) as loaded:
                assert not isinstance(loaded, Miss)
            client.clear(chain.namespace.hex()[:8])
            client.resize(8 << 20)
            stats = json.dumps(client.stats())
        for data in (b"tenant-of-great-secrecy", wire.encode(Hello(PROTOCOL, salt * 3))):
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(service.address.path)
                link.sendall(data + salt.encode())
    said = stats + caplog.text + "".join(capfd.readouterr())
    private = [salt, "KV-BYTES", str(tokens[0]), *(key.hex()[:12] for key in keys)]
    private.append(payloads[0].hex()[:16])
    for word in private:
        assert word not in said


def test_t47_a_jumping_wall_clock_ends_no_lease(place: Path) -> None:
    chunks, chain = made("jumping")
    with (
        jumping_wall(),
        pool_process.serving(place) as service,
        PatientClient(service.address.path) as client,
    ):
        client.store(chain, [chunk.payload for chunk in chunks])
        with client.load(chain) as loaded, PatientClient(service.address.path) as other:
            assert other.lookup(chain) == Known(4, 4)
            assert exact(loaded, chunks)


def test_t35_chains_of_two_tenants_share_nothing_through_the_pool(place: Path) -> None:
    tokens = list(range(64))
    chains = [
        Chain(bytes(32), KeyChain(ChainRoot(bytes(32), 16, salt=salt)).extend(tokens))
        for salt in ("", "a", "b")
    ]
    settings: Settings = replace(pool_process.SMALL)
    with (
        pool_process.serving(place, settings) as service,
        PatientClient(service.address.path) as client,
    ):
        for chain in chains:
            assert client.lookup(chain) == Known(0, 0)
            client.store(chain, [bytes(5000)] * 4)
            assert client.lookup(chain) == Known(4, 4)
