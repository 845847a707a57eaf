"""Pools of two hosts on one shared directory: what one has stored the other loads."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pool_process import SMALL, PatientClient, exact, made, serving, wait_until

from forebay.cli.main import main
from forebay.pool.client import Client, Known
from forebay.pool.service import Service
from forebay.settings import Settings
from forebay.urls import RemoteUrl


def sharing(place: Path, host: str) -> Settings:
    (place / "shared").mkdir(mode=0o700, exist_ok=True)
    (place / host).mkdir(mode=0o700, exist_ok=True)
    remote = (RemoteUrl("file", str(place / "shared"), 64 << 20),)
    return replace(SMALL, remote=remote, socket=str(place / host / "pool.sock"))


def stats_of(client: Client, name: str) -> Any:
    stats = client.stats(60)
    assert isinstance(stats, dict)
    return stats[name]


def store_and_wait(service: Service, label: str) -> None:
    chunks, chain = made(label)
    with PatientClient(service.address.path) as client:
        wait_until(lambda: stats_of(client, "remote")["volumes"][0]["is_on"], "the store")
        client.store(chain, [chunk.payload for chunk in chunks])
        wait_until(lambda: stats_of(client, "remote")["records"] == len(chunks), "the chunks")


def load_all(service: Service, label: str) -> None:
    chunks, chain = made(label)

    def is_known() -> bool:
        found = client.lookup(chain, 60)
        return isinstance(found, Known) and found.chunks == len(chunks)

    with PatientClient(service.address.path) as client:
        wait_until(is_known, "the other host's chunks")
        with client.load(chain) as loaded:
            assert exact(loaded, chunks)
        assert stats_of(client, "counters")["remote.loaded"] == len(chunks)


def test_a_new_host_begins_with_what_another_has_stored(place: Path) -> None:
    with serving(place, sharing(place, "a")) as first:
        store_and_wait(first, "dialog")
    with serving(place, sharing(place, "b")) as second:
        load_all(second, "dialog")


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
        assert not (place / "shared").exists()
    (line,) = [
        each.getMessage() for each in caplog.records if "cannot be used" in each.getMessage()
    ]
    assert line.startswith(f"file://{place}/shared cannot be used (absent)")


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
