"""Valkey as a store, on real servers and behind a proxy that lies: what was put, or a failure."""

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lying_resp import LyingValkey
from tests.valkey_servers import (
    NEWER_RIGHTS,
    SecureServer,
    Server,
    serving,
    until_true,
    valkey_binary,
)

from forebay.sys import memory
from forebay.sys.clock import Clock
from forebay.tiers.remote.store import StoredObject, StoreFailure
from forebay.tiers.remote.stores.opening import open_store
from forebay.tiers.remote.stores.valkey.store import ValkeyStore
from forebay.urls import parse_url

pytestmark = pytest.mark.stores

NAME = "packs/00/host/01"
BYTES = secrets.token_bytes(300_000)
GUARD = b"\x5a" * 4096
AGES_S = 600.0  # no call takes so long, on a busy machine neither
OPEN: list[ValkeyStore] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def store_at(place: str, options: str = "", timeout_s: float = AGES_S) -> ValkeyStore:
    store = open_store(f"{place}?cap=1GiB&timeout={timeout_s}{options}", "host")
    assert isinstance(store, ValkeyStore)
    OPEN.append(store)
    return store


def put(store: ValkeyStore, name: str, data: bytes) -> StoreFailure | None:
    return store.put(name, [memoryview(data)])


def read(store: ValkeyStore, name: str, size: int, at: int = 0) -> bytes | StoreFailure:
    """Into two buffers, with something behind them that must stay as it is."""
    buffer = memory.allocate(size + len(GUARD))[: size + len(GUARD)]
    buffer[size:] = GUARD
    count = store.get(name, at, [buffer[: size // 3], buffer[size // 3 : size]])
    assert bytes(buffer[size:]) == GUARD
    return count if isinstance(count, StoreFailure) else bytes(buffer[:count])


def listed(store: ValkeyStore, prefix: str) -> dict[str, StoredObject]:
    found = store.listing(prefix)
    assert isinstance(found, list)
    return {each.name: each for each in found}


@pytest.fixture
def store(valkey: Server, prefix: str) -> ValkeyStore:
    return store_at(f"valkey://{valkey.address}/0/{prefix}")


@pytest.fixture(params=["alone", "cluster"])
def any_store(request: pytest.FixtureRequest, prefix: str) -> ValkeyStore:
    if request.param == "alone":
        address = request.getfixturevalue("valkey").address
    else:
        address = request.getfixturevalue("cluster")[1].address
    return store_at(f"redis://{address}/0/{prefix}")


def test_an_object_is_what_was_put_and_may_be_replaced(any_store: ValkeyStore) -> None:
    store = any_store
    parts = [memoryview(BYTES)[at : at + 200] for at in range(0, 300_000, 200)]
    assert store.put(NAME, [memoryview(b""), *parts]) is None
    assert read(store, NAME, 300_000) == BYTES
    assert read(store, NAME, 400_000) == BYTES, "it ends before"
    assert read(store, NAME, 5000, at=7777) == BYTES[7777:12777]
    assert read(store, NAME, 5000, at=298_000) == BYTES[298_000:]
    assert read(store, NAME, 5000, at=300_000) == b""
    assert put(store, NAME, b"other") is None
    assert read(store, NAME, 100) == b"other"
    assert store.put("hosts/host/empty", []) is None
    assert read(store, "hosts/host/empty", 100) == b""


def test_a_pack_is_sent_in_many_parts(store: ValkeyStore) -> None:
    """More than a socket takes at once, and more buffers than a system call."""
    size = len(BYTES) // 10 + 1
    parts = [memoryview(BYTES)[at : at + size] for at in range(0, len(BYTES), size)]
    assert store.put(NAME, parts * 100) is None
    assert read(store, NAME, 100 * len(BYTES)) == BYTES * 100


def test_a_listing_has_one_level(any_store: ValkeyStore) -> None:
    store = any_store
    assert store.listing("packs") == []
    names = [f"packs/00/host/{number:02}" for number in range(40)]
    for name in names:
        assert put(store, name, name.encode()) is None
    put(store, "packs/01/with space", b"1")
    assert {*listed(store, "")} == {"packs/"}
    assert {*listed(store, "packs/")} == {"00/", "01/"}
    assert store.listing("packs/01") == []
    found = listed(store, "packs/00/host")
    assert {*found} == {f"{number:02}" for number in range(40)}
    assert {each.size_bytes for each in found.values()} == {len(names[0])}
    times = [each.modified_s for each in found.values()]
    assert 0.0 < min(times) <= max(times)


def test_a_listing_of_many_keys_is_whole(
    store: ValkeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"{number:04}" for number in range(2500)}
    for name in names:
        assert put(store, f"packs/00/host/{name}", b"1") is None
    found = listed(store, "packs/00/host")
    assert {*found} == names
    assert found["0001"].modified_s > 0.0
    monkeypatch.setattr("forebay.tiers.remote.stores.valkey.store._SCANS_MAX", 1)
    assert store.listing("packs/00/host") is StoreFailure.FAILED, "or not at all"


def test_what_is_deleted_or_evicted_is_absent(any_store: ValkeyStore) -> None:
    put(any_store, NAME, b"1")
    assert any_store.delete(NAME) is None
    assert read(any_store, NAME, 1) is StoreFailure.ABSENT
    assert read(any_store, NAME, 1, at=1) is StoreFailure.ABSENT
    assert any_store.delete(NAME) is None, "it is gone already"


def test_packs_expire_and_the_index_does_not(valkey: Server, prefix: str) -> None:
    store = store_at(f"valkey://{valkey.address}/0/{prefix}", "&ttl=1000")
    for name in (NAME, "hosts/host/tail"):
        assert put(store, name, b"1") is None
    with valkey.client() as client:
        assert 0 < client.ttl(f"{prefix}/{NAME}") <= 1000
        assert client.ttl(f"{prefix}/hosts/host/tail") == -1, "never"


def test_keys_that_are_not_ours_are_not_taken_for_objects(
    store: ValkeyStore, valkey: Server, prefix: str
) -> None:
    with valkey.client() as client:
        client.set(f"{prefix}/packs/short", b"1")
        client.set(f"{prefix}/packs/long", b"x" * 1000)
        client.hset(f"{prefix}/packs/00/hash", "a", "b")
        client.set(b"\xff\xfe", b"1")
    assert store.listing("packs") == [("00/", 0, 0.0)]
    assert read(store, "packs/short", 10) is StoreFailure.FAILED
    assert read(store, "packs/long", 10) is StoreFailure.FAILED
    assert read(store, "packs/00/hash", 10) is StoreFailure.FAILED
    assert read(store, "packs/00/hash", 10, at=5) is StoreFailure.FAILED
    assert store.listing("packs/00") is StoreFailure.FAILED


def test_looking_at_keys_does_not_count_as_using_them(
    store: ValkeyStore, valkey: Server, prefix: str
) -> None:
    put(store, NAME, b"1")
    with valkey.client() as client:
        key = f"{prefix}/{NAME}"
        # The clock of eviction has seconds: what counts is that it goes on while keys are listed.
        while client.object("idletime", key) < 2:
            assert {*listed(store, "packs/00/host")} == {"01"}
        until_true(lambda: read(store, NAME, 1) == b"1" and client.object("idletime", key) < 2)


def test_threads_read_and_put_at_once(any_store: ValkeyStore) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(10):
            name, data = f"packs/00/host/{number}-{turn}", secrets.token_bytes(20_000)
            found = put(any_store, name, data) or read(any_store, name, 20_000)
            wrong.extend([] if found == data else [found])

    threads = [threading.Thread(target=work, args=[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_over_tls_with_certificates_and_few_rights(
    redis_tls: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    place = f"valkeys://{redis_tls.server.tls_address}"
    store = store_at(place, f"&{redis_tls.options}")
    assert put(store, NAME, BYTES) is None
    assert read(store, NAME, 300_000) == BYTES
    assert {*listed(store, "packs/00/host")} == {"01"}
    unknown = redis_tls.options.replace(f"&ca={redis_tls.place}/authority.pem", "")
    assert put(store_at(place, f"&{unknown}"), NAME, b"1") is StoreFailure.FAILED
    monkeypatch.setenv("SSL_CERT_FILE", f"{redis_tls.place}/authority.pem")
    assert put(store_at(place, f"&{unknown}"), NAME, b"1") is None
    nobody = redis_tls.options.partition("&cert=")[0]
    assert put(store_at(place, f"&{nobody}"), NAME, b"1") is StoreFailure.FAILED
    (tmp_path / "wrong").write_text("wrong\n")
    for file in (tmp_path / "wrong", tmp_path / "missing"):
        wrong = f"&{redis_tls.options}".replace(f"{redis_tls.place}/password", str(file))
        assert put(store_at(place, wrong), NAME, b"1") is StoreFailure.DENIED
    other = store_at(f"{place}/0/other", f"&{redis_tls.options}")
    assert put(other, NAME, b"1") is StoreFailure.DENIED, "below another prefix"
    assert read(other, NAME, 1) is StoreFailure.DENIED
    assert store.delete(NAME) is None
    assert store.listing("packs/00") == []


def test_a_password_is_read_anew_and_rights_are_those_of_the_documentation(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first")
    with serving(tmp_path / "valkey", valkey_binary()) as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "pool", "on", ">first", *NEWER_RIGHTS)
        options = f"&user=pool&password_file={password}"
        store = store_at(f"valkey://{server.address}/1", options)
        assert put(store, NAME, BYTES) is None
        client.execute_command("ACL", "SETUSER", "pool", "resetpass", ">second")
        client.execute_command("CLIENT", "KILL", "USER", "pool")
        assert put(store, NAME, BYTES) is StoreFailure.DENIED
        assert store.listing("") is StoreFailure.DENIED
        password.write_text("second")
        assert read(store, NAME, 300_000) == BYTES
        assert {*listed(store, "packs/00/host")} == {"01"}
        client.execute_command("ACL", "SETUSER", "pool", "-scan", "-time", "-getrange")
        assert store.listing("packs") is StoreFailure.DENIED
        assert put(store, NAME, BYTES) is StoreFailure.DENIED
        assert read(store, NAME, 10) is StoreFailure.DENIED
        client.execute_command("ACL", "SETUSER", "pool", "-cluster|slots")
        assert read(store_at(f"valkey://{server.address}/1", options), NAME, 10) is (
            StoreFailure.DENIED
        )
        assert put(store_at(f"valkey://{server.address}/999", ""), NAME, b"1") is (
            StoreFailure.DENIED
        ), "there is no such database"


def test_a_password_may_stand_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "valkey", valkey_binary(), "requirepass hidden") as server:
        store = store_at(f"valkey://{server.address}")
        assert put(store, NAME, b"1") is StoreFailure.DENIED
        monkeypatch.setenv("REDISCLI_AUTH", "hidden")
        assert put(store, NAME, b"1") is None


def test_a_full_server_says_so_and_one_that_evicts_forgets(tmp_path: Path) -> None:
    options = ("maxmemory 8mb", "maxmemory-policy noeviction")
    with serving(tmp_path / "valkey", valkey_binary(), *options) as server:
        store = store_at(f"valkey://{server.address}")
        assert put(store, "hosts/host/tail", b"index") is None
        names = [f"packs/00/host/{number:02}" for number in range(60)]
        assert StoreFailure.FULL in {put(store, name, BYTES) for name in names}
        assert read(store, names[0], 300_000) == BYTES
        assert store.delete(names[0]) is None
        with server.client() as client:
            client.config_set("maxmemory-policy", "volatile-lru")
        assert {put(store, name, BYTES) for name in names} == {None}
        found = [read(store, name, 300_000) for name in names]
        assert {*found} == {BYTES, StoreFailure.ABSENT}
        assert read(store, "hosts/host/tail", 100) == b"index", "it does not expire"
        assert len(listed(store, "packs/00/host")) == found.count(BYTES)


def errors_of(server: Server) -> object:
    with server.client() as client:
        return client.info("errorstats")


def test_a_cluster_keeps_each_key_where_its_slot_is(cluster: list[Server], prefix: str) -> None:
    store = store_at(f"valkey://{cluster[0].address}/0/{prefix}")
    names = [f"packs/00/host/{number:02}" for number in range(60)]
    errors = [errors_of(server) for server in cluster]
    for name in names:
        assert put(store, name, name.encode() * 50) is None
    assert [errors_of(server) for server in cluster] == errors, "nobody was sent elsewhere"
    for server in cluster:
        with server.client() as client:
            assert len(list(client.scan_iter(f"{prefix}/*"))) > 5
    assert {*listed(store, "packs/00/host")} == {name[-2:] for name in names}


def test_a_slot_that_moves_is_followed(cluster: list[Server], prefix: str) -> None:
    store = store_at(f"valkey://{cluster[0].address}/0/{prefix}")
    assert put(store, NAME, BYTES) is None
    key = f"{prefix}/{NAME}"
    with cluster[0].client() as client:
        slot = client.execute_command("CLUSTER", "KEYSLOT", key)
    owner = slot * 3 // 16384
    source, target = cluster[owner], cluster[(owner + 1) % 3]
    with source.client() as old, target.client() as new:
        ids = [each.execute_command("CLUSTER", "MYID").decode() for each in (old, new)]
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        assert read(store, NAME, 300_000) == BYTES, "still there"
        old.execute_command("MIGRATE", target.host, target.port, key, 0, 600_000)
        assert read(store, NAME, 300_000) == BYTES, "on its way: asked for"
        assert read(store, NAME, 10, at=5) == BYTES[5:15]
        assert read(store, NAME, 10, at=300_000) == b""
        assert put(store, NAME, BYTES[::-1]) is None
        for each in (new, old):
            each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        assert read(store, NAME, 300_000) == BYTES[::-1], "moved"
        assert {*listed(store, "packs/00/host")} == {"01"}
        old.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[1])
        new.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[0])
        new.execute_command("MIGRATE", source.host, source.port, key, 0, 600_000)
        for each in (old, new):
            each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[0])
    assert read(store, NAME, 300_000) == BYTES[::-1], "and back"


ERRORS = {
    "loading": StoreFailure.FAILED,
    "full": StoreFailure.FULL,
    "denied": StoreFailure.DENIED,
    "replica": StoreFailure.FAILED,
    "moved_nowhere": StoreFailure.FAILED,
    "moved_in_circles": StoreFailure.FAILED,
    "moved_to_nonsense": StoreFailure.FAILED,
}
NONSENSE = (
    *("number", "no_end", "too_long", "endless", "endless_line", "endless_depth"),
    *("endless_array", "endless_number", "no_resp", "zeros", "reset", "truncated"),
)


@pytest.mark.parametrize("fault", [*ERRORS, *NONSENSE, "nil", "short", "twice"])
def test_every_call_survives_what_is_said(valkey: Server, prefix: str, fault: str) -> None:
    """Each command in turn is answered with it; what is no failure is what was put."""
    with LyingValkey((valkey.host, valkey.port)) as proxy:
        store = store_at(f"valkey://{proxy.address}/0/{prefix}")
        assert put(store, NAME, BYTES) is None
        proxy.fault = fault
        wanted = ERRORS.get(fault, StoreFailure.FAILED)
        for command in (b"GETRANGE", b"SET", b"TIME", b"SCAN", b"UNLINK", b"EXISTS", b"CLUSTER"):
            proxy.commands = {command}
            answers = [
                read(store, NAME, 300_000),
                read(store, NAME, 500, at=500),
                read(store, NAME, 500, at=300_000),
                put(store, "packs/00/host/02", b"2"),
                store.listing("packs/00"),
                store.delete("packs/00/host/03"),
            ]
            sound = [BYTES, BYTES[500:1000], b"", None, [("host/", 0, 0.0)], None]
            for answer, right in zip(answers, sound, strict=True):
                is_short = fault == "short" and isinstance(answer, bytes)
                assert answer in (right, wanted, StoreFailure.FAILED) or is_short
            objects = store.listing("packs/00/host")
            if not isinstance(objects, StoreFailure):
                assert {each.name for each in objects} <= {"01", "02"}
        proxy.fault = ""
        assert read(store, NAME, 300_000) == BYTES
        assert put(store, NAME, BYTES[::-1]) is None
        assert read(store, NAME, 300_000) == BYTES[::-1]


def test_a_cluster_that_is_not_whole_is_not_used(valkey: Server, prefix: str) -> None:
    with LyingValkey((valkey.host, valkey.port)) as proxy:
        store = store_at(f"valkey://{proxy.address}/0/{prefix}")
        proxy.commands = {b"CLUSTER"}
        for fault in ("with_gaps", "of_nonsense", "number"):
            proxy.fault = fault
            assert put(store, NAME, BYTES) is StoreFailure.FAILED
            assert store.listing("") is StoreFailure.FAILED
        proxy.fault = "without_a_host"
        assert put(store, NAME, BYTES) is None
        proxy.commands, proxy.fault = {b"GETRANGE"}, "moved_once"
        assert read(store, NAME, 300_000) == BYTES, "another port of the same host"
        proxy.fault = "moved_once"
        assert {*listed(store, "packs")} == {"00/"}
        assert store.listing("packs/00/host") is StoreFailure.FAILED, "not asked elsewhere"
        assert {*listed(store, "packs/00/host")} == {"01"}


@pytest.mark.parametrize("fault", ["stalled", "silent", "dripping"])
def test_a_call_ends_at_its_deadline(valkey: Server, prefix: str, fault: str) -> None:
    """That it ends at all is shown here: no reply would come before the test is over."""
    with LyingValkey((valkey.host, valkey.port)) as proxy:
        assert put(store_at(f"valkey://{valkey.address}/0/{prefix}"), NAME, BYTES) is None
        store = store_at(f"valkey://{proxy.address}/0/{prefix}", timeout_s=0.5)
        proxy.fault = fault
        assert read(store, NAME, 300_000) is StoreFailure.FAILED
        assert put(store, NAME, BYTES) is StoreFailure.FAILED
        assert store.listing("packs") is StoreFailure.FAILED
        assert store.delete(NAME) is StoreFailure.FAILED


class Hasty(Clock):
    """A second passes whenever somebody looks at it."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_a_deadline_holds_also_where_there_is_always_more_to_read(valkey: Server) -> None:
    url = parse_url(f"valkey://{valkey.address}?cap=1GiB&timeout=3")
    store = ValkeyStore(url, Hasty())
    OPEN.append(store)
    assert read(store, NAME, 10) is StoreFailure.FAILED


def test_a_server_that_takes_nothing_ends_a_put(valkey: Server, prefix: str) -> None:
    with LyingValkey((valkey.host, valkey.port)) as proxy:
        store = store_at(f"valkey://{proxy.address}/0/{prefix}", timeout_s=0.5)
        proxy.commands, proxy.fault = {b"TIME"}, "deaf"
        assert store.put(NAME, [memoryview(BYTES)] * 300) is StoreFailure.FAILED
        assert b"SET" not in proxy.asked
