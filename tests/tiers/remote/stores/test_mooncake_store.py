"""Mooncake as a store, on real processes: what was put, or a failure."""

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import xxhash
from tests.mooncake_servers import Mooncake, packs_of, serving
from tests.remote_harness import AGE_S, sweep
from tests.store_faults import until_true

from forebay.sys import memory
from forebay.sys.clock import Clock
from forebay.testing.clock import ManualClock
from forebay.tiers.remote.process import maintenance, recovery
from forebay.tiers.remote.store import StoredObject, StoreFailure
from forebay.tiers.remote.stores.mooncake import lists
from forebay.tiers.remote.stores.mooncake.client import MasterAccess, MooncakeClient
from forebay.tiers.remote.stores.mooncake.store import MooncakeStore
from forebay.tiers.remote.stores.opening import open_store
from forebay.urls import parse_url

pytestmark = pytest.mark.stores

NAME = "packs/00/host/01"
BYTES = secrets.token_bytes(300_000)
GUARD = b"\x5a" * 4096
OPEN: list[MooncakeStore] = []
# The master does not notice for a long time that a process has gone: what it says is stale.
NEVER_NOTICED = "--client_ttl=3600"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def store_at(url: str, host: str = "host", clock: Clock | None = None) -> MooncakeStore:
    store = MooncakeStore(parse_url(url), host, clock)
    OPEN.append(store)
    return store


def put(store: MooncakeStore, name: str, data: bytes) -> StoreFailure | None:
    return store.put(name, [memoryview(data)])


def read(store: MooncakeStore, name: str, size: int, at: int = 0) -> bytes | StoreFailure:
    """Into two buffers, with something behind them that must stay as it is."""
    buffer = memory.allocate(size + len(GUARD))[: size + len(GUARD)]
    buffer[size:] = GUARD
    count = store.get(name, at, [buffer[: size // 3], buffer[size // 3 : size]])
    assert bytes(buffer[size:]) == GUARD
    return count if isinstance(count, StoreFailure) else bytes(buffer[:count])


def listed(store: MooncakeStore, prefix: str) -> dict[str, StoredObject]:
    found = store.listing(prefix)
    assert isinstance(found, list)
    return {each.name: each for each in found}


def raw_client(servers: Mooncake) -> MooncakeClient:
    """What is beneath the store; it ends nothing."""
    access = MasterAccess((servers.host, servers.port), "tcp", "", "", 1)
    return MooncakeClient(access, end=lambda: None)


@pytest.fixture
def store(mooncake: Mooncake, prefix: str) -> MooncakeStore:
    return store_at(mooncake.url(prefix))


def test_an_object_is_what_was_put_and_may_be_replaced(store: MooncakeStore) -> None:
    parts = [memoryview(BYTES)[at : at + 2000] for at in range(0, 300_000, 2000)]
    assert store.put(NAME, [memoryview(b""), *parts]) is None
    assert read(store, NAME, 300_000) == BYTES
    assert read(store, NAME, 400_000) == BYTES, "it ends before"
    assert read(store, NAME, 5000, at=7777) == BYTES[7777:12777]
    assert read(store, NAME, 5000, at=298_000) == BYTES[298_000:]
    assert read(store, NAME, 5000, at=300_000) == b""
    assert put(store, NAME, b"other") is None
    assert read(store, NAME, 100) == b"other"
    large = BYTES * 10  # than every buffer that was used before
    assert put(store, NAME, large) is None
    assert read(store, NAME, len(large)) == large
    assert put(store, NAME, b"") is StoreFailure.FAILED, "there are no empty objects"


def test_what_is_absent_is_absent(store: MooncakeStore) -> None:
    assert read(store, NAME, 100) is StoreFailure.ABSENT
    assert store.delete(NAME) is None
    assert put(store, NAME, b"here") is None
    assert store.delete(NAME) is None
    assert read(store, NAME, 100) is StoreFailure.ABSENT
    assert store.listing("packs/00/host") == []


def test_a_listing_has_one_level(mooncake: Mooncake, prefix: str, store: MooncakeStore) -> None:
    other = store_at(mooncake.url(prefix), "other")
    assert store.listing("packs") == []
    names = [f"packs/00/host/{number:02}" for number in range(40)]
    for name in names:
        assert put(store, name, name.encode()) is None
    assert put(other, "packs/01/other/01", b"1") is None
    assert put(other, "packs/01/other/02", b"1") is None
    assert other.delete("packs/01/other/02") is None
    for each in (store, other):
        assert {*listed(each, "")} == {"packs/"}
        assert {*listed(each, "packs/")} == {"00/", "01/"}
        assert {*listed(each, "packs/01")} == {"other/"}
        assert {*listed(each, "packs/01/other")} == {"01"}
        assert {*listed(each, "hosts")} == {"host/", "other/"}
        found = listed(each, "packs/00/host")
        assert {*found} == {f"{number:02}" for number in range(40)}
        assert {line.size_bytes for line in found.values()} == {len(names[0])}


def test_the_next_process_of_a_host_knows_what_the_last_one_put(
    mooncake: Mooncake, prefix: str, store: MooncakeStore
) -> None:
    assert put(store, NAME, BYTES) is None
    assert put(store, "packs/00/host/02", b"gone") is None
    assert store.delete("packs/00/host/02") is None
    again = store_at(mooncake.url(prefix))
    assert put(again, "packs/00/host/03", BYTES) is None
    assert {*listed(again, "packs/00/host")} == {"01", "03"}
    assert {*packs_of(store_at(mooncake.url(prefix), "b"), "host")} == {NAME, "packs/00/host/03"}


def test_hosts_that_are_lost_are_found_again(
    mooncake: Mooncake, prefix: str, store: MooncakeStore
) -> None:
    """The members may be overwritten by a host that did not know of another, lost, or damaged."""
    other, client = store_at(mooncake.url(prefix), "other"), raw_client(mooncake)
    assert put(store, NAME, b"1") is None
    assert put(other, "packs/00/other/01", b"1") is None
    assert {*listed(store, "hosts")} == {"host/", "other/"}
    for damage in (b"", b"x", bytes(100)):
        if damage:
            client.put(f"{prefix}/members", [memoryview(damage)], pinned=True)
        else:
            assert client.remove(f"{prefix}/members") is None
        assert "other/" in listed(other, "hosts")
        assert {*listed(store, "hosts")} == {"host/", "other/"}
        assert {*listed(other, "hosts")} == {"host/", "other/"}
    client.close()


def test_a_damaged_list_of_another_host_is_a_failure_and_ones_own_is_begun_anew(
    mooncake: Mooncake, prefix: str, store: MooncakeStore
) -> None:
    """What another has must not be taken for gone."""
    other, client = store_at(mooncake.url(prefix), "other"), raw_client(mooncake)
    assert put(store, NAME, b"1") is None
    assert client.put(f"{prefix}/lists/host", [memoryview(bytes(100))], pinned=True) is None
    assert other.listing("packs/00/host") is StoreFailure.FAILED
    assert put(other, "hosts/other/tail", b"1") is None
    assert sweep(other, "other") is StoreFailure.FAILED, "nobody is taken for dead"
    assert {*listed(store, "packs/00/host")} == {"01"}, "it knows by itself"
    again = store_at(mooncake.url(prefix))
    assert again.listing("packs/00/host") == []
    assert put(again, "packs/00/host/02", b"2") is None
    assert {*listed(other, "packs/00/host")} == {"02"}
    client.close()


def test_a_damaged_list_costs_other_hosts_nothing(
    mooncake: Mooncake, prefix: str, store: MooncakeStore
) -> None:
    other, client = store_at(mooncake.url(prefix), "other"), raw_client(mooncake)
    assert put(store, NAME, b"1") is None
    assert put(other, "packs/01/other/01", b"1") is None
    assert client.put(f"{prefix}/lists/host", [memoryview(bytes(100))], pinned=True) is None
    assert {*listed(other, "packs")} == {"01/"}
    for read in (maintenance.audit, recovery.recover):
        assert isinstance(read(other, "other"), bytes)
    client.close()


def test_what_is_listed_while_it_is_put_stays_listed(
    store: MooncakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool audits its packs while it puts another one."""
    really, seen = store._client.put, []

    def put_late(key: str, buffers: Sequence[memoryview], *, pinned: bool) -> StoreFailure | None:
        if key.endswith(NAME):
            seen.append({*listed(store, "packs/00/host")})
        return really(key, buffers, pinned=pinned)

    monkeypatch.setattr(store._client, "put", put_late)
    for _ in range(2):
        assert put(store, NAME, b"1") is None
        assert {*listed(store, "packs/00/host")} == {"01"}
    assert seen == [set(), {"01"}], "it was there before it was put again"


def test_a_list_that_says_nothing_or_is_full_is_not_believed_or_exceeded(
    mooncake: Mooncake, prefix: str, store: MooncakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, no_message, an_empty_one = raw_client(mooncake), b"\xc1", b"\x80"
    for body, digest in (
        (no_message, xxhash.xxh3_128_digest(no_message)),
        (an_empty_one, bytes(16)),
    ):
        parts = [memoryview(body), memoryview(digest)]
        assert client.put(f"{prefix}/lists/other", parts, pinned=True) is None
        assert store.listing("packs/00/other") is StoreFailure.FAILED
    client.close()
    monkeypatch.setattr(lists, "LISTED_MAX", 2)
    for name, outcome in (("01", None), ("02", None), ("03", StoreFailure.FULL), ("02", None)):
        assert put(store, f"packs/00/host/{name}", b"1") is outcome


def test_a_host_that_is_long_dead_is_swept_and_no_member_any_more(
    mooncake: Mooncake, prefix: str
) -> None:
    """By the store's own time: their clocks were never the same."""
    old, new = ManualClock(5e8), ManualClock(7.0)
    dead = store_at(mooncake.url(prefix), "dead", old)
    for name in ("hosts/dead/tail", "packs/00/dead/01"):
        assert put(dead, name, b"1") is None
    alive = store_at(mooncake.url(prefix), "alive", new)
    assert put(alive, "hosts/alive/tail", b"1") is None
    assert sweep(alive, "alive") == 0
    new.advance(2 * AGE_S)
    assert put(alive, "hosts/alive/tail", b"1") is None
    assert {*listed(alive, "hosts")} == {"alive/", "dead/"}, "every pool looks now and then"
    late = store_at(mooncake.url(prefix), "late", ManualClock(1e7))
    assert put(late, "hosts/late/tail", b"1") is None, "it has the time of the others from now on"
    assert sweep(alive, "alive") == 2
    assert {*listed(alive, "hosts")} == {"alive/", "late/"}
    assert read(alive, "packs/00/dead/01", 1) is StoreFailure.ABSENT
    assert read(alive, "hosts/late/tail", 1) == b"1"


def test_what_a_dead_process_held_fails_and_is_absent_when_the_master_knows(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as servers:
        store = store_at(servers.url())
        assert put(store, NAME, BYTES) is None
        servers.end_owners()
        until_true(lambda: read(store, NAME, 100) is StoreFailure.ABSENT)
        assert put(store, "packs/00/host/02", BYTES) is StoreFailure.FULL, "nobody lends memory"
        servers.lend()
        until_true(lambda: put(store, NAME, BYTES) is None)
        assert read(store, NAME, 300_000) == BYTES
        assert {*listed(store, "packs/00/host")} == {"01"}


def test_a_stale_answer_that_something_exists_is_a_failure_to_read_it(tmp_path: Path) -> None:
    """Each failed transfer costs a buffer; of too many, the process asks to be ended."""
    ended: list[bool] = []
    with serving(tmp_path, NEVER_NOTICED) as servers:
        access = MasterAccess((servers.host, servers.port), "tcp", "", servers.host, 1)
        client = MooncakeClient(access, end=lambda: ended.append(True))
        assert client.put("key", [memoryview(BYTES)], pinned=False) is None
        assert put(store_at(servers.url()), NAME, b"1") is None
        servers.end_owners()
        assert client.exist(["key", "another"]) == [True, False]
        assert store_at(servers.url()).listing("packs/00/host") is StoreFailure.FAILED
        buffer = memory.allocate(100)[:100]
        for _ in range(15):
            assert client.get("key", 0, [buffer]) is StoreFailure.FAILED
        assert not ended
        assert client.put("key", [memoryview(BYTES)], pinned=False) is StoreFailure.FAILED
        assert ended == [True]
        client.close()


def test_without_a_master_every_call_fails(tmp_path: Path) -> None:
    with serving(tmp_path) as servers:
        store, unused = store_at(servers.url()), store_at(servers.url())
        assert put(store, NAME, b"1") is None
        servers.stop()
        for each in (store, unused):
            assert put(each, NAME, b"1") is StoreFailure.FAILED
            assert read(each, NAME, 100) is StoreFailure.FAILED
            assert each.listing("packs") is StoreFailure.FAILED
            assert each.delete(NAME) is StoreFailure.FAILED
        servers.start()
        servers.wait_until_lent()
        for each in (store, unused):
            assert read(each, NAME, 100) is StoreFailure.ABSENT, "the master knew nothing any more"
        for each in (store, unused):
            assert put(each, NAME, b"2") is None
            assert read(each, NAME, 100) == b"2"


def test_a_url_means_such_a_store() -> None:
    url = "mooncake://master:50052/ours?cap=1GiB&protocol=rdma&devices=mlx5_0&replicas=2&host=a"
    store = open_store(url, "host")
    assert isinstance(store, MooncakeStore)
    assert str(parse_url(url)).startswith("mooncake://master:50052/ours?cap=1073741824&")
