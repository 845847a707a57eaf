"""Hosts and stores of all tests here; `make test-hosts` has what they need."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.hosts import network, stores
from tests.hosts.network import Host, Network
from tests.hosts.stores import SharedStore
from tests.pool_process import PoolProcess, short_directory

HAS_ALL = network.is_possible() and stores.PYTHON.exists()
collect_ignore_glob = [] if HAS_ALL else ["test_*.py"]
if find_spec("vllm") is None:
    collect_ignore_glob.append("test_dialogs.py")

StartPool = Callable[[Host, str], PoolProcess]  # on a host, with the store of this URL
Fault = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def hosts() -> Iterator[Network]:
    with network.connected() as made, pytest.MonkeyPatch.context() as patch:
        for name, value in stores.VARIABLES.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="session")
def s3(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    with stores.serving_s3(hosts.store, tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="session")
def juicefs(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    with stores.mounted_juicefs(hosts, tmp_path_factory.mktemp("juicefs")) as store:
        yield store


@pytest.fixture(scope="session")
def valkey(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    with stores.serving_valkey(hosts.store, tmp_path_factory.mktemp("valkey")) as store:
        yield store


@pytest.fixture(scope="session")
def mooncake(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    with stores.serving_mooncake(hosts.store, tmp_path_factory.mktemp("mooncake")) as store:
        yield store


@pytest.fixture
def url(request: pytest.FixtureRequest, hosts: Network, tmp_path: Path) -> str:
    """A store with nothing in it, of the kind that is the test's parameter."""
    kind = request.param
    unique = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
    if kind == "file":
        hosts.a.run("mkdir", "-m", "700", tmp_path / unique)
        return f"file://{tmp_path / unique}"
    where = request.getfixturevalue(kind).where
    if kind == "juicefs":
        hosts.a.run("mkdir", "-m", "700", f"{where}/{unique}")
    return {
        "s3": f"s3://tests/{unique}?endpoint={where}&region=us-east-1",
        "juicefs": f"file://{where}/{unique}",
        "valkey": f"valkey://{where}/0/{unique}",
        "mooncake": f"mooncake://{where}/{unique}",
    }[kind]


@pytest.fixture
def faults(request: pytest.FixtureRequest, url: str) -> list[Fault]:
    """What can happen to that store; each begins with its block, and ends with it."""
    kind = request.node.callspec.params["url"]
    if kind == "file":
        directory = Path(url.removeprefix("file://"))
        return [partial(stores.moved_away, directory)]
    store: SharedStore = request.getfixturevalue(kind)
    # That S3 dies is tried with pools alone, in test_faults.py.
    return [store.stopped] if kind == "s3" else [store.stopped, store.killed]


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
