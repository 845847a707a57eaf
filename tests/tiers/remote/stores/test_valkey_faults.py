"""Pools' tiers on Valkey, whatever it does: exact or a miss, and they come back by themselves."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from tests.lying_resp import LyingValkey
from tests.remote_harness import SHARING
from tests.store_faults import (
    AGES_S,
    LOOKING,
    SLOW,
    check_fault,
    check_warm_start,
    is_loaded,
    is_stored,
    opened,
    until_true,
)
from tests.valkey_servers import (
    PASSWORD,
    USER,
    SecureServer,
    Server,
    serving,
    serving_cluster,
    serving_tls,
    valkey_binary,
    write_certificate,
)

from forebay.cli.main import main
from forebay.testing.conformance import keys, load, store
from forebay.testing.samples import chain, single
from forebay.tiers.contract import Dropped, DropReason, Stored

pytestmark = pytest.mark.stores

SLOW_S = 2.0
AUDITING = replace(LOOKING, audit_s=0.05)


def url_of(address: str, prefix: str = "forebay", timeout_s: float = AGES_S) -> str:
    return f"valkey://{address}/0/{prefix}?cap=3MiB&timeout={timeout_s}"


@pytest.mark.parametrize(
    "fault",
    [
        *("loading", "full", "denied", "replica", "moved_nowhere", "moved_in_circles", "nil"),
        *("empty", "number", "flipped", "stuffed", "another", "short", "twice", "no_end"),
        *("too_long", "endless", "endless_line", "endless_depth", "endless_array", "no_resp"),
        *("reset", "truncated", "stalled", "silent", "dripping"),
    ],
)
def test_t25_t26_t27_t61_whatever_it_says_it_is_exact_or_a_miss(
    valkey: Server, prefix: str, fault: str
) -> None:
    timeout_s = SLOW_S if fault in SLOW else AGES_S
    with (
        LyingValkey((valkey.host, valkey.port)) as proxy,
        opened(url_of(proxy.address, prefix, timeout_s)) as tier,
    ):
        check_fault(
            tier, lambda: setattr(proxy, "fault", fault), lambda: setattr(proxy, "fault", "")
        )


def test_lies_about_the_index_alone_cost_nothing(valkey: Server, prefix: str) -> None:
    sample = single("beside it")
    with (
        LyingValkey((valkey.host, valkey.port)) as proxy,
        opened(url_of(proxy.address, prefix), options=AUDITING) as tier,
    ):
        until_true(lambda: is_stored(tier, sample))
        for fault in ("endless_array", "empty", "nil"):
            asked, proxy.commands, proxy.fault = len(proxy.asked), {b"SCAN"}, fault
            until_true(lambda asked=asked: b"SCAN" in proxy.asked[asked:])  # type: ignore[misc]
            proxy.fault = ""
            until_true(lambda: is_loaded(tier, sample))


@pytest.mark.parametrize("how", ["restarted", "stopped", "paused"])
def test_t25_t61_a_server_that_goes_away_costs_misses(tmp_path: Path, how: str) -> None:
    """Restarted, it is empty: what it had is a miss, is learnt to be gone, and is stored again."""
    with serving(tmp_path / "valkey", valkey_binary()) as server:
        begin: dict[str, Callable[[], object]] = {"paused": server.pause, "stopped": server.stop}
        end: dict[str, Callable[[], object]] = {"paused": server.resume, "stopped": server.start}
        timeout_s = SLOW_S if how == "paused" else AGES_S
        with opened(url_of(server.address, timeout_s=timeout_s), options=AUDITING) as tier:
            check_fault(
                tier, begin.get(how, server.restart), end.get(how, lambda: None), length=20_000
            )


def test_what_a_restarted_server_had_is_learnt_to_be_gone(tmp_path: Path) -> None:
    samples = [single(f"chunk {number}") for number in range(5)]
    with (
        serving(tmp_path / "valkey", valkey_binary()) as server,
        opened(url_of(server.address), options=AUDITING) as a,
        opened(url_of(server.address), "b", AUDITING) as b,
    ):
        assert [store(a, each) for each in samples] == [Stored()] * 5
        until_true(lambda: all(b.has(each.name.key) for each in samples))
        server.restart()
        until_true(lambda: a.usage().records == 0 and a.usage().used_bytes == 0)
        until_true(lambda: not any(b.has(each.name.key) for each in samples))
        until_true(lambda: all(is_stored(a, each) for each in samples))
        until_true(lambda: all(is_loaded(b, each) for each in samples))


def test_what_a_server_evicts_is_learnt_and_the_rest_goes_on(tmp_path: Path) -> None:
    """The caps of hosts are far above what it may hold."""
    options = ("maxmemory 6mb", "maxmemory-policy volatile-lru", "maxmemory-samples 20")
    with serving(tmp_path / "valkey", valkey_binary(), *options) as server:
        url = f"valkey://{server.address}?cap=1GiB&timeout={AGES_S}"
        with opened(url, options=AUDITING) as a, opened(url, "b", AUDITING) as b:
            samples = [single(f"chunk {number}", 100_000) for number in range(100)]
            assert [store(a, each) for each in samples].count(Stored()) > 60
            until_true(lambda: a.usage().used_bytes < 6 << 20)  # what was evicted counts no more
            assert 0 < sum(is_loaded(a, each) for each in samples) < 60
            until_true(lambda: any(is_loaded(b, each) for each in samples))
            until_true(
                lambda: (
                    {each.name.key for each in samples if b.has(each.name.key)}
                    == {each.name.key for each in samples if a.has(each.name.key)}
                )
            )


def test_a_full_server_drops_stores_and_loads_go_on(tmp_path: Path) -> None:
    options = ("maxmemory 6mb", "maxmemory-policy noeviction")
    with (
        serving(tmp_path / "valkey", valkey_binary(), *options) as server,
        opened(f"valkey://{server.address}?cap=1GiB&timeout={AGES_S}") as tier,
    ):
        samples = [single(f"chunk {number}", 100_000) for number in range(100)]
        outcomes = [store(tier, each) for each in samples]
        assert {type(each) for each in outcomes} == {Stored, Dropped}
        reasons = {each.reason for each in outcomes if isinstance(each, Dropped)}
        assert reasons == {DropReason.NO_SPACE}
        assert tier.volumes()[0].is_on
        for outcome, sample in zip(outcomes, samples, strict=True):
            assert is_loaded(tier, sample) == isinstance(outcome, Stored)
        with server.client() as client:
            client.config_set("maxmemory", "0")
        until_true(lambda: all(is_stored(tier, each) for each in samples))


def test_a_node_of_a_cluster_goes_and_comes_back(tmp_path: Path) -> None:
    samples = [single(f"chunk {number}") for number in range(12)]
    with (
        serving_cluster(tmp_path) as servers,
        opened(url_of(servers[0].address), options=LOOKING) as tier,
    ):
        until_true(lambda: all(is_stored(tier, each) for each in samples))
        for server in servers:  # the one that the URL names is among them
            server.stop()
            for sample in samples:
                is_loaded(tier, sample)
            server.start()
            until_true(lambda: all(is_stored(tier, each) for each in samples))
            until_true(lambda: all(is_loaded(tier, each) for each in samples))


@pytest.fixture
def own_tls(tmp_path: Path) -> Iterator[SecureServer]:
    with serving_tls(tmp_path) as server:
        yield server


def secure_url(server: SecureServer) -> str:
    return f"valkeys://{server.server.tls_address}?cap=3MiB&timeout={AGES_S}&{server.options}"


def test_a_password_that_was_changed(own_tls: SecureServer) -> None:
    def change() -> None:
        with own_tls.client() as client:
            client.execute_command("ACL", "SETUSER", USER, "resetpass", ">another")
            client.execute_command("CLIENT", "KILL", "USER", USER)

    with opened(secure_url(own_tls)) as tier:
        check_fault(tier, change, lambda: (own_tls.place / "password").write_text("another"))
    assert PASSWORD != "another"


def test_a_certificate_that_expires(own_tls: SecureServer) -> None:
    authority = trustme.CA.from_pem(
        (own_tls.place / "authority.pem").read_bytes(),
        (own_tls.place / "authority.key").read_bytes(),
    )
    host, place = own_tls.server.host, own_tls.place / "server"

    def serve_with(not_after: datetime | None) -> None:
        write_certificate(authority.issue_cert(host, not_after=not_after), place, "server")
        with own_tls.client(verify=False) as client:
            client.config_set("tls-cert-file", str(place / "server.pem"))
            client.execute_command("CLIENT", "KILL", "USER", USER)

    yesterday = datetime.now(UTC) - timedelta(days=1)
    with opened(secure_url(own_tls)) as tier:
        check_fault(tier, lambda: serve_with(yesterday), lambda: serve_with(None))


def test_hosts_find_each_others_chunks(cluster: list[Server], prefix: str) -> None:
    dialog = chain("dialog", [5000, 6000, 7000])
    urls = [url_of(server.address, prefix) for server in cluster]
    with opened(urls[0], "a", SHARING) as a, opened(urls[1], "b", SHARING) as b:
        assert [store(a, each) for each in dialog] == [Stored()] * 3
        until_true(lambda: b.prefix(keys(dialog)).chunks == 3)
        assert [load(b, each)[1] for each in dialog] == [each.payload for each in dialog]
    with opened(urls[2], "c", SHARING) as late:
        until_true(lambda: late.prefix(keys(dialog)).chunks == 3)
        assert [load(late, each)[1] for each in dialog] == [each.payload for each in dialog]


def test_a_host_that_starts_hears_what_is_used(valkey: Server, prefix: str) -> None:
    check_warm_start(url_of(valkey.address, prefix))


def test_a_store_can_be_tried_from_the_command_line(
    valkey: Server, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://{valkey.address}/0/{prefix}?cap=1GiB&timeout={AGES_S}"
    assert main(["remote", "check", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stored"], found["loaded"], found["deleted"]) == (16, 16, 16)
    assert found["store"] == f"redis://{valkey.address}/0/{prefix}"
