"""The commands of a running pool: what they print, and one sentence for what cannot be meant."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.clocks import waiting_in_vain
from tests.pool_process import (
    HANG_S,
    NO_NAMESPACES,
    PatientClient,
    made,
    serving,
    wait_until,
    with_disk,
)
from tests.terminal import Terminal

from forebay.cli.main import main
from forebay.metrics.reading import count
from forebay.pool.address import find_address, take_lock
from forebay.pool.client import Client, Known
from forebay.pool.service import Service
from forebay.sys.processes import is_locked
from forebay.testing.clock import ManualClock


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_SEED", raising=False)


def run(*words: str) -> int:
    return main(list(words))


def test_stats(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stats", "--socket", service.address.path) == 0
    out = capsys.readouterr().out
    assert "shares and rates since the pool began" in out
    assert "16 MiB" in out
    assert run("stats", "--json", "--socket", service.address.path) == 0
    assert count(json.loads(capsys.readouterr().out), "chunks", tier="dram") == 0


def test_stats_do_not_count_themselves_as_an_engine(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    def engines() -> int:
        assert run("stats", "--json", "--socket", service.address.path) == 0
        return len(json.loads(capsys.readouterr().out)["engines"])

    assert engines() == 0
    with Client(service.address.path) as client:
        assert client.join()
        assert engines() == 1


def test_stats_show_each_namespace_as_clear_takes_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(place, with_disk(place)) as service, PatientClient(service.address.path) as client:
        chunks, chain = made("a")
        client.store(chain, [chunk.payload for chunk in chunks])
        size_bytes = sum(len(chunk.payload) for chunk in chunks)
        path = service.address.path

        def namespaces() -> list[dict[str, Any]]:
            assert run("stats", "--json", "--socket", path) == 0
            found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["namespaces"]
            return found

        (row,) = namespaces()
        name = row["namespace"]
        assert chain.namespace.hex().startswith(name)
        size, chunks_of = {"dram": size_bytes, "disk": size_bytes}, {"dram": 4, "disk": 4}
        everywhere = {"namespace": name, "model": "", "chunks": chunks_of, "bytes": size}
        wait_until(lambda: namespaces() == [everywhere], "the chunks to be on disk")
        assert run("clear", "--namespace", name, "--socket", path) == 0
        capsys.readouterr()
        assert namespaces() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pool", "--dram", "1KiB"), "--dram: '1KiB' is too small; write 4MiB or more."),
        (("pool", "--disk", "/d:9MB"), "--disk: '/d:9MB' is too small; write 64MiB or more."),
        (("set", "dram=0"), "'0' is too small; write 4MiB or more."),
    ],
)
def test_too_small_a_size_is_refused_with_the_smallest(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert one_sentence(capsys) == f"forebay: {said}\n"


def test_set_and_clear(
    service: Service, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    path = service.address.path
    assert run("set", "dram=8MiB", "--socket", path) == 0
    assert run("clear", "--namespace", "ffffffff", "--socket", path) == 0
    assert client.lookup(chain) == Known(4, 4)
    assert run("clear", "--all", "--socket", path) == 0
    wait_until(lambda: client.lookup(chain) == Known(0, 0), "everything to be gone")
    assert run("stats", "--json", "--socket", path) == 0
    stats = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert count(stats, "cap_bytes", tier="dram") == 8 << 20


def test_clear_says_what_it_will_remove_and_a_dry_run_removes_nothing(
    service: Service, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks, chain = made("a")
    client.store(chain, [chunk.payload for chunk in chunks])
    name, path = chain.namespace.hex()[:16], service.address.path
    assert run("clear", "--all", "--dry-run", "--socket", path) == 0
    out = capsys.readouterr().out
    assert out.startswith("Would be deleted: 390.6 KiB in 4 chunks\n")
    assert name in out
    assert out.endswith("nothing was deleted: this was a dry run.\n")
    assert run("clear", "--model", "", "--socket", path) == 2  # though no engine named its model
    assert "this one is empty" in one_sentence(capsys)
    assert client.lookup(chain) == Known(4, 4)
    assert run("clear", "--namespace", chain.namespace.hex(), "--json", "--socket", path) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["deleted"], said["namespaces"][0]["namespace"]) == (True, name)
    assert said["said"].startswith("removed 4 chunks (390.6 KiB) from DRAM")
    assert client.lookup(chain) == Known(0, 0)
    assert run("clear", "--model", "no/such", "--socket", path) == 2
    assert "no namespace is of model 'no/such'; forebay stats lists them." in one_sentence(capsys)


@pytest.mark.parametrize(("answer", "status", "known"), [("n", 1, 4), ("y", 0, 0)])
def test_clear_asks_on_a_terminal(
    place: Path, answer: str, status: int, known: int, tmp_path: Path
) -> None:
    with serving(place) as service, PatientClient(service.address.path) as client:
        chunks, chain = made("a")
        client.store(chain, [chunk.payload for chunk in chunks])
        words = [sys.executable, "-m", "forebay.cli", "clear", "--all"]
        with Terminal(*words, "--socket", service.address.path, place=tmp_path) as terminal:
            terminal.wait_for("To be deleted: 390.6 KiB in 4 chunks", "Delete this? [y/N]")
            assert client.lookup(chain) == Known(4, 4)
            terminal.type(answer)
            terminal.wait_for(f"ended {status}")
        assert client.lookup(chain) == Known(known, known)


WRONG = [
    ("set",),
    ("set", "dram"),
    ("set", "dram=much"),
    ("set", "dram=1GiB", "dram=2GiB"),
    ("set", "disk=/d"),
    ("set", "disk=/d:1GiB", "disk=/d:2GiB"),
    ("set", "colour=red"),
    ("clear",),
    ("clear", "--all", "--namespace", "3fa94c1d"),
    *(("clear", "--namespace", text) for text in NO_NAMESPACES),
    ("stats", "--colour"),
    ("pool", "--linger", "long"),
    ("pool", "--linger", "-1"),
    ("pool", "--linger", "nan"),
    ("pool", "--dram", "much"),
    ("pool", "--dram", "1EiB"),
    ("pool", "--disk", "/nowhere/at/all:1GiB"),
    ("pool", "--fault", "read:errno=EIO"),
    ("pool", "--socket", "/" + "x" * 200),
    ("pool", "--trace", "/nowhere/at/all/trace"),
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = () if "--socket" in words else ("--socket", str(place / "none.sock"))
    dram = ("--dram", "16MiB") if words[0] == "pool" and "--dram" not in words else ()
    assert run(*words, *dram, *socket) == 2
    one_sentence(capsys)


@pytest.mark.parametrize("words", [("stats",), ("set", "dram=1GiB"), ("clear", "--all")])
def test_no_pool_is_one_sentence(
    words: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(place / "none.sock")
    assert run(*words, "--socket", path) == 2
    assert one_sentence(capsys).endswith(f"start one with: forebay pool --socket {path}\n")


def test_a_pool_that_starts_is_not_taken_for_none(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(place / "pool.sock")
    lock = take_lock(find_address(path))
    assert lock is not None
    assert run("stats", "--socket", path) == 2
    assert "a pool is starting or ending at" in one_sentence(capsys)
    os.close(lock)
    assert run("stats", "--socket", path) == 2
    assert "start one with" in one_sentence(capsys)


def test_a_pool_that_does_not_answer_is_not_taken_for_none(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, clock = str(place / "pool.sock"), ManualClock()
    with socket.socket(socket.AF_UNIX) as deaf, waiting_in_vain(clock):
        deaf.bind(path)
        deaf.listen(1)
        with patch("forebay.pool.client.client.Clock", lambda: clock):
            assert run("stats", "--socket", path) == 2
    said = f"forebay: the pool at {path} did not answer within 10 s; it is busy or stopped.\n"
    assert one_sentence(capsys) == said
    assert clock.monotonic() == pytest.approx(10.0)


def test_a_cap_larger_than_the_file_system_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(place, with_disk(place)) as service:
        path = service.address.path
        assert run("set", f"disk={place}/disk:900TiB", "--socket", path) == 2
        assert "is on a file system of" in one_sentence(capsys)
        assert run("set", f"disk={place}/disk:65MiB", "--socket", path) == 0
        assert capsys.readouterr().out == "caps changed.\n"


def test_more_dram_than_the_machine_has_names_what_it_has(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("set", "dram=1000TiB", "--socket", service.address.path) == 2
    assert "of DRAM are asked for and this machine has" in one_sentence(capsys)


def test_a_directory_that_cannot_be_used_is_told_before_dram_is_taken(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("--dram", "16MiB", "--socket", str(place / "none.sock"))
    with caplog.at_level(logging.INFO):
        assert run("pool", "--disk", "/nowhere/at/all:1GiB", *words) == 2
    assert "of DRAM taken" not in caplog.text


def test_a_signal_while_a_pool_starts_ends_it_as_asked(place: Path) -> None:
    (place / "disk").mkdir(mode=0o700)
    path = place / "pool.sock"
    words = ["pool", "--socket", str(path), "--disk", f"{place}/disk:64MiB", "--dram", "16MiB"]
    words += ["--fault", "open_directory:latency=60s"]
    pool = subprocess.Popen([sys.executable, "-m", "forebay.testing", *words])
    try:
        wait_until(lambda: is_locked(f"{path}.lock"), "the pool to hold its lock")
        pool.send_signal(signal.SIGTERM)
        assert pool.wait(HANG_S) == 0
    finally:
        pool.kill()
        pool.wait()


@pytest.mark.parametrize(
    "words",
    [
        ("set", "dram=1000TiB"),
        ("set", "disk=/nowhere:1GiB"),
    ],
    ids=" ".join,
)
def test_what_the_pool_will_not_do_is_one_sentence(
    words: tuple[str, ...], service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words, "--socket", service.address.path) == 2
    one_sentence(capsys)


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("forebay: ")
    assert said.err.count("\n") == 1
    return said.err
