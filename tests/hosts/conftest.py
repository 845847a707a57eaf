"""Hosts and stores of all tests here; `make test-hosts` has what they need."""

import hashlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.hosts import network, stores
from tests.hosts.network import Host, Network
from tests.hosts.stores import SeaweedServer
from tests.pool_process import PoolProcess, short_directory

HAS_ALL = network.is_possible() and stores.PYTHON.exists()
collect_ignore_glob = [] if HAS_ALL else ["test_*.py"]
if find_spec("vllm") is None:
    collect_ignore_glob.append("test_dialogs.py")

StartPool = Callable[[Host, str], PoolProcess]  # on a host, with the store of this URL


@pytest.fixture(scope="session")
def hosts() -> Iterator[Network]:
    with network.connected() as made, pytest.MonkeyPatch.context() as patch:
        for name, value in stores.VARIABLES.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="session")
def seaweed(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    server = SeaweedServer(hosts.store, tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def juicefs(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with stores.mounted_juicefs(hosts, tmp_path_factory.mktemp("juicefs")) as path:
        yield path


@pytest.fixture(scope="session")
def valkey(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stores.serving_valkey(hosts.store, tmp_path_factory.mktemp("valkey")) as address:
        yield address


@pytest.fixture(scope="session")
def mooncake(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stores.serving_mooncake(hosts.store, tmp_path_factory.mktemp("mooncake")) as address:
        yield address


@pytest.fixture
def url(request: pytest.FixtureRequest, hosts: Network, tmp_path: Path) -> str:
    """A store with nothing in it, of the kind that is the test's parameter."""
    kind = request.param
    unique = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
    if kind == "s3":
        server: SeaweedServer = request.getfixturevalue("seaweed")
        return f"s3://tests/{unique}?endpoint={server.url}&region=us-east-1"
    if kind == "valkey":
        return f"valkey://{request.getfixturevalue('valkey')}/0/{unique}"
    if kind == "mooncake":
        return f"mooncake://{request.getfixturevalue('mooncake')}/{unique}"
    parent = tmp_path if kind == "file" else request.getfixturevalue("juicefs")
    hosts.a.run("mkdir", "-m", "700", parent / unique)
    return f"file://{parent / unique}"


@pytest.fixture
def start() -> Iterator[StartPool]:
    """Starts pools that are gone at the end of the test; one on each host at a time."""
    with short_directory() as place:
        begun: list[PoolProcess] = []

        def started(host: Host, url: str) -> PoolProcess:
            begun.append(stores.start_pool(host, place / host.name, url))
            return begun[-1]

        yield started
        for pool in begun:
            if pool.process is not None and pool.process.poll() is None:
                pool.kill()
