"""S3 as a store, on a real server and behind a proxy that lies: what was put, or a failure."""

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lying_http import LyingProxy
from tests.seaweed import BUCKET, KEY, SECRET, S3Server

from forebay.sys import memory
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.opening import open_store
from forebay.tiers.remote.stores.s3 import S3Store
from forebay.urls import parse_url

pytestmark = pytest.mark.stores

NAME = "packs/00/host/01"
BYTES = secrets.token_bytes(300_000)
GUARD = b"\x5a" * 4096
AGES_S = 600.0  # no call takes so long, on a busy machine neither


OPEN: list[S3Store] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def store_at(url: str, prefix: str, timeout_s: float = AGES_S) -> S3Store:
    options = f"cap=1GiB&endpoint={url}&region=us-east-1&timeout={timeout_s}"
    store = S3Store(parse_url(f"s3://{BUCKET}/{prefix}?{options}"))
    OPEN.append(store)
    return store


def put(store: S3Store, name: str, data: bytes) -> StoreFailure | None:
    return store.put(name, [memoryview(data)])


def read(store: S3Store, name: str, size: int, at: int = 0) -> bytes | StoreFailure:
    """Into two buffers, with something behind them that must stay as it is."""
    buffer = memory.allocate(size + len(GUARD))[: size + len(GUARD)]
    buffer[size:] = GUARD
    count = store.get(name, at, [buffer[: size // 3], buffer[size // 3 : size]])
    assert bytes(buffer[size:]) == GUARD
    return count if isinstance(count, StoreFailure) else bytes(buffer[:count])


@pytest.fixture
def store(s3: S3Server, prefix: str) -> S3Store:
    return store_at(s3.url, prefix)


def test_an_object_is_what_was_put_and_may_be_replaced(store: S3Store) -> None:
    assert (
        store.put(NAME, [memoryview(BYTES)[at : at + 1000] for at in range(0, 300_000, 1000)])
        is None
    )
    assert read(store, NAME, 300_000) == BYTES
    assert read(store, NAME, 400_000) == BYTES, "it ends before"
    assert read(store, NAME, 5000, at=7777) == BYTES[7777:12777]
    assert read(store, NAME, 5000, at=298_000) == BYTES[298_000:]
    assert read(store, NAME, 5000, at=300_000) == b""
    assert put(store, NAME, b"other") is None
    assert read(store, NAME, 100) == b"other"
    assert (store.requests, store.sent_bytes) == (8, 300_005)
    assert store.received_bytes == 300_000 + 300_000 + 5000 + 2000 + 5


def test_a_listing_has_one_level(store: S3Store) -> None:
    assert store.listing("packs") == []
    put(store, NAME, b"12345")
    put(store, "packs/00/host/02", b"1")
    put(store, "packs/00/with space", b"1")
    assert [each.name for each in store.listing("")] == ["packs/"]  # type: ignore[union-attr]
    assert [each.name for each in store.listing("packs/00/")] == ["host/"]  # type: ignore[union-attr]
    first, second = store.listing("packs/00/host")
    assert [first[:2], second[:2]] == [("01", 5), ("02", 1)]
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert 0.0 < first.modified_s <= second.modified_s, "on the store's own clock"


def test_a_listing_of_more_than_a_page_is_whole(store: S3Store) -> None:
    names = {f"{number:04}" for number in range(1100)}
    for name in names:
        assert put(store, f"packs/00/host/{name}", b"1") is None
    assert {each.name for each in store.listing("packs/00/host")} == names  # type: ignore[union-attr]


def test_what_is_deleted_is_absent(store: S3Store) -> None:
    put(store, NAME, b"1")
    assert store.delete(NAME) is None
    assert read(store, NAME, 1) is StoreFailure.ABSENT
    assert store.delete(NAME) is None, "it is gone already"


def test_threads_read_and_put_at_once(store: S3Store) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(10):
            name, data = f"packs/00/host/{number}-{turn}", secrets.token_bytes(20_000)
            found = put(store, name, data) or read(store, name, 20_000)
            wrong.extend([] if found == data else [found])

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_over_tls_by_an_authority_that_is_named(
    s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    stranger = store_at(s3.tls_url, prefix)
    assert put(stranger, NAME, b"1") is StoreFailure.FAILED, "nobody vouches for it"
    monkeypatch.setenv("AWS_CA_BUNDLE", s3.authority)
    known = store_at(s3.tls_url, prefix)
    assert put(known, NAME, BYTES) is None
    assert read(known, NAME, 300_000) == BYTES
    assert read(stranger, NAME, 300_000) is StoreFailure.FAILED


def test_payloads_are_signed_unless_tls_protects_them(s3: S3Server, prefix: str) -> None:
    with LyingProxy(s3.url) as proxy:
        assert put(store_at(proxy.url, prefix), NAME, BYTES) is None
        signed = dict(proxy.requests[0].headers)["x-amz-content-sha256"]
    assert signed not in {"", "UNSIGNED-PAYLOAD"}
    tls = store_at("https://127.0.0.1:1", prefix)
    assert tls._client(1.0).config["unsigned_payload"] in {True, "true"}


def test_plain_http_is_used_only_where_the_url_says_so(
    s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    found = S3Store(parse_url(f"s3://{BUCKET}/{prefix}?cap=1GiB&region=us-east-1"))
    assert put(found, NAME, b"1") is StoreFailure.FAILED


def test_credentials_are_looked_for_again_after_a_refusal(
    s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    text = f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = "
    file.write_text(text + "expired")
    store = store_at(s3.url, prefix)
    assert put(store, NAME, b"1") is StoreFailure.DENIED
    assert store.listing("") is StoreFailure.DENIED
    assert read(store, NAME, 1) is StoreFailure.DENIED
    file.write_text(text + SECRET)
    assert put(store, NAME, b"1") is None
    assert read(store, NAME, 1) == b"1"


def test_a_bucket_that_is_not_there(prefix: str, s3: S3Server) -> None:
    with LyingProxy(s3.url) as proxy:
        store = store_at(proxy.url, prefix)
        proxy.fault = "unknown"
        assert put(store, NAME, b"1") is StoreFailure.ABSENT
        assert read(store, NAME, 1) is StoreFailure.FAILED, "not in S3's words"
        assert isinstance(store.delete(NAME), StoreFailure)
        assert isinstance(store.listing(""), StoreFailure)


def test_the_store_of_a_url_needs_its_region_from_somewhere(
    s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    store = open_store(f"s3://{BUCKET}/{prefix}?cap=1GiB&endpoint={s3.url}", "host")
    assert isinstance(store, S3Store)
    assert store._client(1.0).config["region"] == "eu-north-1"


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[LyingProxy]:
    with LyingProxy(s3.url) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("busy", StoreFailure.FAILED),
        ("expired", StoreFailure.DENIED),
        ("gone", StoreFailure.ABSENT),
        ("unknown", StoreFailure.FAILED),
        ("redirected", StoreFailure.FAILED),
        ("no_http", StoreFailure.FAILED),
        ("reset", StoreFailure.FAILED),
        ("truncated", StoreFailure.FAILED),
        ("short", StoreFailure.FAILED),
        ("shifted", StoreFailure.FAILED),
        ("whole_object", StoreFailure.FAILED),
        ("too_long", None),
        ("endless", None),
    ],
)
def test_t61_a_reply_that_lies_is_a_failure_or_exact(
    proxy: LyingProxy, prefix: str, fault: str, outcome: StoreFailure | None
) -> None:
    store = store_at(proxy.url, prefix)
    put(store, NAME, BYTES)
    assert read(store, NAME, 100_000, at=1000) == BYTES[1000:101_000]
    proxy.fault, before = fault, len(proxy.requests)
    wanted = BYTES[1000:101_000] if outcome is None else outcome
    assert read(store, NAME, 100_000, at=1000) == wanted
    assert len(proxy.requests) == before + 1, "nothing is tried again"
    proxy.fault = ""
    assert read(store, NAME, 100_000, at=1000) == BYTES[1000:101_000]


@pytest.mark.parametrize("fault", ["endless_chunked", "flipped", "stuffed"])
def test_t26_t61_bytes_that_lie_fill_the_buffers_and_no_more(
    proxy: LyingProxy, prefix: str, fault: str
) -> None:
    store = store_at(proxy.url, prefix)
    put(store, NAME, BYTES)
    proxy.fault = fault
    found = read(store, NAME, 100_000)
    assert isinstance(found, bytes)
    assert len(found) == 100_000
    assert found != BYTES[:100_000], "the tier's hashes are there for it"


@pytest.mark.parametrize("fault", ["stalled", "silent", "dripping"])
def test_one_deadline_holds_for_all_of_a_call(proxy: LyingProxy, prefix: str, fault: str) -> None:
    patient, hasty = store_at(proxy.url, prefix), store_at(proxy.url, prefix, 0.5)
    put(patient, NAME, BYTES)
    proxy.fault = fault
    assert read(hasty, NAME, 100_000) is StoreFailure.FAILED
    assert hasty.listing("packs/00/host") is StoreFailure.FAILED
    if fault != "stalled":
        assert put(hasty, "packs/00/host/02", b"1") is StoreFailure.FAILED
        assert hasty.delete("packs/00/host/02") is StoreFailure.FAILED
    proxy.fault = ""
    assert read(patient, NAME, 100_000) == BYTES[:100_000]


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("busy", StoreFailure.FAILED),
        ("expired", StoreFailure.DENIED),
        ("quota", StoreFailure.FULL),
        ("reset", StoreFailure.FAILED),
    ],
)
def test_what_a_store_refuses_to_do(
    proxy: LyingProxy, prefix: str, fault: str, outcome: StoreFailure
) -> None:
    store = store_at(proxy.url, prefix)
    assert put(store, NAME, b"1") is None
    proxy.fault = fault
    before = len(proxy.requests)
    assert put(store, NAME, b"2") is outcome
    assert store.listing("packs/00/host") is outcome
    assert store.delete(NAME) is outcome
    assert len(proxy.requests) == before + 3, "nothing is tried again"
    proxy.fault = ""
    assert put(store, NAME, b"3") is None
    assert read(store, NAME, 1) == b"3"


def test_what_is_gone_is_deleted_and_a_listing_that_lies_fails(
    proxy: LyingProxy, prefix: str
) -> None:
    store = store_at(proxy.url, prefix)
    proxy.fault = "gone"
    assert store.delete(NAME) is None
    for fault in ("truncated", "stuffed", "no_http"):
        put(store, NAME, b"1")
        proxy.methods, proxy.fault = {"GET"}, fault
        assert isinstance(store.listing("packs/00/host"), StoreFailure), fault


def test_connections_are_kept(proxy: LyingProxy, prefix: str) -> None:
    store = store_at(proxy.url, prefix)
    put(store, NAME, BYTES)
    before = proxy.connections
    for _ in range(5):
        assert read(store, NAME, 10_000) == BYTES[:10_000]
    assert proxy.connections == before + 1


def test_without_options_it_is_aws_over_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = S3Store(parse_url("s3://bucket?cap=1GiB"))
    config = store._client(1.0).config
    assert config["bucket"] == "bucket"
    assert "endpoint" not in config
    assert store._is_tls


def test_credentials_that_have_gone_are_a_failure(
    s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    store = store_at(s3.url, prefix)
    store._client(AGES_S)
    file.unlink()
    assert read(store, NAME, 1) is StoreFailure.FAILED
