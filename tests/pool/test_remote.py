"""Pools of two hosts on one shared directory: what one has stored the other loads."""

import itertools
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.pool_process import HANG_S, SMALL, PatientClient, exact, made, serving, wait_until

from forebay.cli.main import main
from forebay.cli.view.text import stats_text
from forebay.metrics.reading import count, tier_of
from forebay.observe.exposition import Exposition
from forebay.observe.health import HealthCheck
from forebay.pool.client import Client, Known
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Describe, Found, Lookup, Outcome, RequestOutcomes
from forebay.pool.service import Service
from forebay.settings import Settings
from forebay.sys.clock import Clock
from forebay.terms import StoreTerms
from forebay.tiers.contract import Miss
from forebay.urls import RemoteUrl

STORES: Final = {"tier": "remote", "direction": "store", "outcome": "ok"}
LONG_S: Final = 600.0  # a store that failed is tried every ten seconds


def sharing(place: Path, host: str) -> Settings:
    (place / "shared").mkdir(mode=0o700, exist_ok=True)
    (place / host).mkdir(mode=0o700, exist_ok=True)
    url = RemoteUrl("file", str(place / "shared"), 64 << 20, terms=StoreTerms(send_all=True))
    return replace(SMALL, remote=(url,), socket=str(place / host / "pool.sock"))


def stats_of(client: Client) -> dict[str, Any]:
    stats = client.stats(60)
    assert isinstance(stats, dict)
    return stats


def remote_of(client: Client) -> dict[str, Any]:
    return tier_of(stats_of(client), "remote")


def store_and_wait(service: Service, label: str) -> None:
    chunks, chain = made(label)
    with PatientClient(service.address.path) as client:
        wait_until(lambda: remote_of(client)["volumes"][0]["is_on"], "the store")
        client.store(chain, [chunk.payload for chunk in chunks])
        wait_until(lambda: remote_of(client)["chunks"] == len(chunks), "the chunks")
        wait_until(lambda: count(stats_of(client), "operations", **STORES) == len(chunks), "counts")


def load_all(service: Service, label: str) -> None:
    chunks, chain = made(label)

    def is_known() -> bool:
        found = client.lookup(chain, 60)
        return isinstance(found, Known) and found.chunks == len(chunks)

    def is_loaded() -> bool:
        with client.load(chain) as loaded:
            return exact(loaded, chunks)

    with PatientClient(service.address.path) as client:
        wait_until(is_known, "the other host's chunks")
        wait_until(is_loaded, "their bytes")
        stats = stats_of(client)
    loads = {"tier": "remote", "direction": "load"}
    assert count(stats, "operations", **loads, outcome="ok") == len(chunks)
    assert count(stats, "operation_bytes", **loads) == len(chunks)
    assert count(stats, "moved_bytes", **loads) == sum(chunk.length for chunk in chunks)
    assert count(stats, "queue_wait_seconds", **loads) >= len(chunks), "they say when they began"
    assert count(stats, "lookup_chunks", found="remote") >= len(chunks)


def test_a_new_host_begins_with_what_another_has_stored(place: Path) -> None:
    with serving(place, sharing(place, "a")) as first:
        store_and_wait(first, "dialog")
    with serving(place, sharing(place, "b")) as second:
        load_all(second, "dialog")
        with PatientClient(second.address.path) as client:
            done = client.clear(None, HANG_S)
            assert not isinstance(done, Miss)
            assert "packs of other hosts are theirs to clear" in done.sentence
            (volume,) = remote_of(client)["volumes"]
            assert volume["use"]["requests"]["get"] >= len(made("dialog")[0])
            text = stats_text(stats_of(client), None)
        assert "Requests to stores" in text
        assert "no limit" in text


def test_why_names_the_tier_that_a_request_was_served_from(place: Path) -> None:
    with serving(place, sharing(place, "a")) as first:
        store_and_wait(first, "dialog")
    chunks, chain = made("dialog")
    numbers = itertools.count(1)

    def looked_up() -> int:
        number = next(numbers)
        engine.post(Lookup(number, chain.namespace, 0, chain.shorts()))
        while True:
            found = engine.take(time.monotonic() + HANG_S)
            assert isinstance(found, Found)
            if found.request == number:
                return found.known

    with serving(place, sharing(place, "b")) as second:
        engine = PoolSession(second.address.path, Clock(), maps_slab=False)
        assert engine.wait_until_joined(time.monotonic() + HANG_S)
        assert engine.tiers == ("dram", "remote")
        engine.post(Describe("a model", "vLLM", "sharing", "", chain.namespace, 64))
        wait_until(lambda: looked_up() == len(chunks), "the other host's chunks")
        last = next(numbers) - 1
        served = Outcome("r1", "loaded", "", last, 256, 0, 256, [0, 256], 0, 0, 0, 0, 0, False)
        engine.post(RequestOutcomes([served]))
        wait_until(lambda: second.requests(0, 1, HANG_S), "the request")
        told = (second.requests(0, 1, HANG_S) or [])[0].to_builtins()
        assert (told["found_tokens"], told["loaded_tokens"]) == ({"remote": 256}, {"remote": 256})
        stats = second.stats(HANG_S)
        assert stats is not None
        assert count(stats, "request_tokens", source="remote") == 256
        engine.close()


def test_health_goes_through_the_store(place: Path) -> None:
    well = {"socket": "", "dram": "", "remote": ""}
    with serving(place, sharing(place, "a")) as service:
        health = HealthCheck(service, service.address.path, HANG_S, 0.0)
        wait_until(lambda: found_by(health) == well, "the store", LONG_S)
        (place / "shared").chmod(0o777)
        assert found_by(health) in [{**well, "remote": why} for why in ("io_error", "tier_off")]
        (place / "shared").chmod(0o700)
        wait_until(lambda: found_by(health) == well, "a store of our own again", LONG_S)
        stats = service.stats(HANG_S)
    assert not list((place / "shared").glob("hosts/*/probe"))
    assert stats is not None
    stats["metrics"]["healthy"]["values"] = health.series()
    text = Exposition().text(stats).decode()
    assert 'forebay_healthy{tier="remote",volume="0"} 1.0' in text
    assert 'forebay_cap_bytes{tier="remote"} 6.7108864e+07' in text
    assert 'forebay_evictions_total{cause="damaged",tier="remote"} 0.0' in text


def found_by(health: HealthCheck) -> dict[str, str]:
    return {check["tier"]: check["why"] for check in health.report().checks}


@pytest.mark.slow
def test_what_one_host_stores_another_that_runs_finds_soon(place: Path) -> None:
    with serving(place, sharing(place, "a")) as a, serving(place, sharing(place, "b")) as b:
        store_and_wait(a, "dialog")
        load_all(b, "dialog")


def test_a_store_that_is_not_there_is_a_warning(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = sharing(place, "a")
    (place / "shared").rmdir()
    with serving(place, settings) as service, PatientClient(service.address.path) as client:
        chunks, chain = made("alone")
        client.store(chain, [chunk.payload for chunk in chunks])
        assert client.lookup(chain) == Known(len(chunks), len(chunks))
        wait_until(lambda: warnings(caplog), "the warning")
        assert not (place / "shared").exists()
    (line,) = warnings(caplog)
    assert line.startswith(f"file://{place}/shared cannot be used (absent)")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [each.getMessage() for each in list(caplog.records)]
    return [line for line in lines if "cannot be used" in line]


def test_a_stopped_store_holds_up_neither_lookups_nor_the_end(place: Path) -> None:
    with serving(place, sharing(place, "a")) as service:
        shared = str(place / "shared")
        wait_until(lambda: children(shared), "the child")
        (child,) = children(shared)
        os.kill(child, signal.SIGSTOP)
        chunks, chain = made("beside it")
        with PatientClient(service.address.path) as client:
            client.store(chain, [chunk.payload for chunk in chunks])
            assert client.lookup(chain) == Known(len(chunks), len(chunks))
        with suppress(ProcessLookupError):  # killed meanwhile, where this took long
            os.kill(child, signal.SIGCONT)


def children(place: str) -> list[int]:
    """The processes that call the store in this directory."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes() if process.name.isdecimal() else b""
        except OSError:
            continue
        if b"remote.process.child" in words and place.encode() in words:
            found.append(int(process.name))
    return found


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        (["gs://bucket"], "no store that is known"),
        (["file:///mnt/shared"], "no cap"),
        ([f"file:///mnt/{n}?cap=1GiB" for n in range(9)], "9 stores are too many"),
        (["file:///mnt/a?cap=1GiB", "file:///mnt/a?cap=2GiB"], "named twice"),
    ],
)
def test_a_url_that_cannot_be_meant_starts_no_pool(
    urls: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pool", *(f"--remote={url}" for url in urls)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("forebay: --remote: ")
    assert why in said
    assert said.count("\n") == 1
