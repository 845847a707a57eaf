"""URLs of stores: where, how much, and one sentence about what cannot be meant."""

import pytest

from forebay.errors import SettingsError
from forebay.terms import FREE, S3_STANDARD, StorePrices, StoreTerms, WarmLimit
from forebay.tiers.remote.options import RemoteOptions
from forebay.urls import RemoteUrl, parse_url


def test_a_url_says_where_and_how_much() -> None:
    found = parse_url("file:///mnt/a%20b/forebay?cap=1TiB&host=node-7")
    assert found == RemoteUrl("file", "/mnt/a b/forebay", 1 << 40, "node-7")
    assert found.place == "file:///mnt/a%20b/forebay"
    assert parse_url(str(found)) == found


def test_a_url_of_s3_says_which_server_too() -> None:
    text = "s3://bucket/a/b?cap=1GiB&endpoint=http://10.0.0.7:9000/&region=eu-1&timeout=2.5&host=n"
    found = parse_url(text)
    assert found == RemoteUrl("s3", "bucket/a/b", 1 << 30, "n", "http://10.0.0.7:9000", "eu-1", 2.5)
    assert found.place == "s3://bucket/a/b"
    assert parse_url(str(found)) == found
    assert parse_url("s3://bucket?cap=1GiB") == RemoteUrl("s3", "bucket", 1 << 30)


def test_a_url_of_valkey_says_how_to_be_let_in() -> None:
    text = "valkeys://Cache.example:7000/2/ours?cap=1GiB&user=pool&password_file=/run/a%20b&ttl=60"
    found = parse_url(text)
    assert found.path == "cache.example:7000/2/ours"
    assert found.place == "valkeys://cache.example:7000/2/ours"
    assert (found.option("user"), found.option("ttl"), found.option("ca")) == ("pool", "60", "")
    assert found.option("password_file") == "/run/a b"
    assert parse_url(str(found)) == found
    for short in ("redis://[::1]?cap=1GiB", "redis://[::1]:6379/0/forebay?cap=1GiB"):
        assert parse_url(short) == RemoteUrl("redis", "[::1]:6379/0/forebay", 1 << 30)
        assert parse_url(str(parse_url(short))) == parse_url(short)


def test_a_url_of_mooncake_says_how_bytes_are_moved() -> None:
    text = "mooncake://Master.example/ours?cap=1GiB&protocol=rdma&devices=mlx5_0,mlx5_1&replicas=2"
    found = parse_url(text)
    assert found.place == "mooncake://master.example:50051/ours"
    assert (found.option("protocol"), found.option("replicas")) == ("rdma", "2")
    assert found.option("devices") == "mlx5_0,mlx5_1"
    assert parse_url(str(found)) == found
    assert parse_url("mooncake://[::1]:7?cap=1GiB").path == "[::1]:7/forebay"


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hidden@bucket?cap=1GiB",
        "valkey://:hidden@cache?cap=1GiB",
        "redis://cache?cap=1GiB&password=hidden",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="credentials") as raised:
        parse_url(url)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("gs://bucket", "no store that is known"),
        ("s3:/bucket?cap=1GiB", "no bucket"),
        ("s3://b?cap=1GiB", "no bucket"),
        ("s3://bucket/../x?cap=1GiB", "no bucket"),
        ("s3://bucket?cap=1GiB&endpoint=10.0.0.7", "endpoint"),
        ("s3://bucket?cap=1GiB&region=eu/1", "region"),
        ("s3://bucket?cap=1GiB&timeout=soon", "timeout"),
        ("s3://bucket?cap=1GiB&timeout=0", "timeout"),
        ("valkey://?cap=1GiB", "no server"),
        ("valkey://cache:99999?cap=1GiB", "no server"),
        ("valkey://cache/forebay?cap=1GiB", "no server"),
        ("valkey://cache/0/a/b?cap=1GiB", "no server"),
        ("valkey://cache/0/a*?cap=1GiB", "no server"),
        ("valkey://cache?cap=1GiB&ca=/ca.pem", "unknown"),
        ("valkeys://cache?cap=1GiB&ca=ca.pem", "ca that is no absolute path"),
        ("valkeys://cache?cap=1GiB&cert=/c.pem", "only one of cert and key"),
        ("valkey://cache?cap=1GiB&ttl=1h", "ttl"),
        ("valkey://cache?cap=1GiB&user=a%20b", "no user"),
        ("mooncake://?cap=1GiB", "no master"),
        ("mooncake://master:0?cap=1GiB", "no master"),
        ("mooncake://master/a/b?cap=1GiB", "no master"),
        ("mooncake://master?cap=1GiB&timeout=8", "unknown"),
        ("mooncake://master?cap=1GiB&protocol=udp", "protocol"),
        ("mooncake://master?cap=1GiB&devices=a%20b", "no devices"),
        ("mooncake://master?cap=1GiB&address=a/b", "address"),
        ("mooncake://master?cap=1GiB&replicas=0", "replicas"),
        ("file:///mnt?cap=1GiB&region=eu-1", "unknown"),
        ("/mnt/shared", "no store that is known"),
        ("file://[/mnt?cap=1GiB", "not a URL"),
        ("file:///mnt?cap", "not a URL"),
        ("file:///?cap=1GiB", "no directory"),
        ("file://server/mnt?cap=1GiB", "no directory"),
        ("file:///mnt#x?cap=1GiB", "no directory"),
        ("file:///mnt", "no cap"),
        ("file:///mnt?cap=1KiB", "too small"),
        ("file:///mnt?cap=much", "not a size"),
        ("file:///mnt?cap=1GiB&cap=2GiB", "given twice"),
        ("file:///mnt?cap=1GiB&ttl=1", "unknown"),
        ("file:///mnt?cap=1GiB&host=a/b", "other characters"),
    ],
)
def test_a_url_that_means_nothing_is_one_sentence(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as raised:
        parse_url(url)
    assert "\n" not in str(raised.value)


def test_a_timeout_is_as_long_as_calls_may_take() -> None:
    """The process that calls a store is not killed before the store's own patience is over."""
    with pytest.raises(SettingsError, match="up to 3600 s"):
        parse_url("s3://bucket?cap=1GiB&timeout=3601")
    for timeout_s in (0.5, 8.0, 3600.0):
        found = parse_url(f"s3://bucket?cap=1GiB&timeout={timeout_s}")
        options = RemoteOptions().for_timeout(found.timeout_s)
        assert options.call_s > timeout_s
        assert options.put_s > 3 * timeout_s, "of a pack"
        assert options.maintenance_s > 4 * timeout_s, "of a listing"
    assert RemoteOptions().for_timeout(0.5) == RemoteOptions()


def test_a_url_says_on_what_terms_a_store_is_used() -> None:
    terms = "send=all&requests=5000&prices=0.005:0.0004:0.023&warm=2GiB:1MiB"
    found = parse_url(f"file:///mnt/a?cap=1GiB&{terms}")
    prices, warm = StorePrices(0.005, 0.0004, 0.023), WarmLimit(2 << 30, 1 << 20)
    assert found.terms == StoreTerms(send_all=True, requests_a_day=5000, prices=prices, warm=warm)
    slowly = parse_url("file:///mnt/a?cap=1GiB&warm=2GiB").terms.warm
    assert slowly == WarmLimit(2 << 30, 100 << 20), "unless told how fast"
    assert found.prices == prices
    assert parse_url(str(found)) == found
    plain = parse_url("file:///mnt/a?cap=1GiB")
    assert plain.terms == StoreTerms(), "what is reused, as many requests as it takes"
    assert plain.prices == FREE
    assert parse_url("s3://bucket?cap=1GiB").prices == S3_STANDARD
    assert parse_url("s3://bucket?cap=1GiB&endpoint=http://minio:9000").prices == FREE


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("send=some", "send=reused or send=all"),
        ("requests=10", "1000 or more"),
        ("requests=many", "1000 or more"),
        ("prices=1:2", "are no prices"),
        ("prices=1:2:3:4:5", "are no prices"),
        ("prices=1:2:nan", "are no prices"),
        ("prices=1:-2:3", "are no prices"),
        ("warm=much", "is not a size"),
        ("warm=1GiB:fast", "is not a size"),
        ("warm=1GiB:0", "is no warm start"),
    ],
)
def test_terms_that_mean_nothing_are_one_sentence(option: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as raised:
        parse_url(f"file:///mnt?cap=1GiB&{option}")
    assert "\n" not in str(raised.value)
