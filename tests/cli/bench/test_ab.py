"""`forebay bench ab`: two servers under one load, and a report of whatever was measured.

Servers are stubs in processes of their own; where the command starts them itself they stand in
vLLM's place and are engines of the real pool that it starts for them.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import pool_process
from tests.stub_process import stub

from forebay.bench.result import files
from forebay.bench.result.format import AbResult
from forebay.cli.main import main

ROOT = Path(__file__).parents[3]
STUB = str(ROOT / "tests" / "stub_server.py")
SERVER = f"import runpy; runpy.run_path({STUB!r}, run_name='__main__')"
SMALL = ("--turns", "3", "--first-tokens", "200", "--turn-tokens", "20", "--answer-tokens", "5")


def read(directory: Path) -> AbResult:
    found = files.read(directory / "ab.json")
    assert isinstance(found, AbResult)
    assert (directory / "report.html").read_text().rstrip().endswith("</html>")
    return found


@pytest.mark.long
def test_two_servers_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stub("--tpot-ms", "1600") as slow, stub("--tpot-ms", "1") as fast:
        words = ["--off", slow.url, "--on", fast.url, "--also", f"third={fast.url}", *SMALL]
        words += ["--turns", "2", "--answer-tokens", "2", "--tpot-ms", "800"]
        more = ["--clients", "1,2", "--repeat", "2", "--out", str(tmp_path)]
        assert main(["bench", "ab", *words, *more]) == 0
    out = capsys.readouterr().out
    ab = read(tmp_path)
    assert [step.clients for step in ab.on.steps] == [1, 2]
    assert all(step.requests == 2 * 2 * step.clients for step in ab.on.steps)
    assert [order.sides for order in ab.repeats] == [
        ("off", "on", "third"),
        ("third", "on", "off"),
    ]
    assert [result.name for result in ab.others] == ["third"]
    assert ab.equal is not None
    assert (ab.equal.answers, ab.equal.share) == (12, 1.0)
    assert ab.stateless is not None
    assert ab.stateless.on.steps[0].clients == 2
    assert ab.pool is None
    assert "(2 against no step;" in out
    assert "2 clients with requests that share nothing" in out
    assert str(tmp_path / "report.html") in out
    assert (tmp_path / "third.json").exists()


def test_a_pools_own_counters_are_the_evidence(tmp_path: Path) -> None:
    with pool_process.short_directory() as place, pool_process.serving(place) as service:
        socket = service.address.path
        transfer = json.dumps({"kv_connector_extra_config": {"socket": socket}})
        with stub() as off, stub("--kv-transfer-config", transfer) as on:
            words = ["--off", off.url, "--on", on.url, "--pool", socket, *SMALL]
            more = ["--clients", "1,2", "--stateless", "0", "--out", str(tmp_path)]
            assert main(["bench", "ab", *words, *more]) == 0
    ab = read(tmp_path)
    assert ab.pool is not None
    assert ab.pool.stored_chunks > 0
    assert ab.pool.read_dram_chunks > 0
    assert ab.pool.dram_bytes > 0
    assert ab.stateless is None
    steps = [step.pool for step in ab.on.steps]
    assert sum(pool.stored_chunks for pool in steps if pool) == ab.pool.stored_chunks
    assert all(step.pool is None for step in ab.off.steps)
    assert ab.on.steps[0].cached_tokens
    for step in ab.on.steps:
        assert step.pool is not None
        stored = [sample.stored_bytes for sample in step.pool_samples]
        assert len(stored) >= 2, "at least the beginning and the end"
        assert stored == sorted(stored)
        assert stored[0] <= stored[-1] <= step.pool.stored_bytes
        assert step.within is not None
    assert not any(step.pool_samples for step in ab.off.steps)
    page = (tmp_path / "report.html").read_text()
    assert "Evidence of offload" in page
    assert "Tiers over time" in page
    assert (tmp_path / "steps.csv").read_text().count("\n") == 1 + 2 * 2


@pytest.mark.long
def test_servers_that_it_starts_on_a_pool_that_it_starts(
    in_place_of_vllm: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    environment = in_place_of_vllm(SERVER)
    drive = tmp_path / "drive"
    drive.mkdir(mode=0o700)
    command = [sys.executable, "-m", "forebay.cli", "bench", "ab", "a/model", *SMALL]
    command += ["--dram", "64MiB", "--disk", f"{drive}:256MiB", "--clients", "1,2"]
    command += ["--interleave", "3", "--out", str(tmp_path / "out")]
    command += ["--also", "other=--tpot-ms 3", "--prefill-us", "1000"]  # the last go to the server
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    ab = read(tmp_path / "out")
    assert (ab.off.name, ab.on.name) == ("vLLM alone", "vLLM with Forebay")
    assert ab.pool is not None
    assert ab.pool.read_dram_chunks > 0
    assert "--kv-transfer-config" in ab.on.commands[1]
    assert "--kv-transfer-config" not in ab.off.commands[1]
    assert "--tpot-ms 3" in ab.others[0].commands[0]
    for off, on in zip(ab.off.steps, ab.on.steps, strict=True):
        assert not off.cached_tokens
        assert on.cached_tokens, "what came back was not computed again"
    assert list(drive.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("fault", ["die", "garbage", "500"])
def test_a_side_that_goes_wrong_in_mid_run_is_reported(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stub() as off, stub("--fault", fault, "--fault-from", "7") as on:
        words = ["--off", off.url, "--on", on.url, *SMALL]
        assert main(["bench", "ab", *words, "--clients", "1,2,4", "--out", str(tmp_path)]) == 1
    ab = read(tmp_path)
    assert len(ab.off.steps) == 3
    assert sum(step.errors for step in ab.off.steps) == 0
    assert sum(step.errors for step in ab.on.steps) >= 3
    assert ab.on.ended.startswith("nothing was answered")
    assert ab.stateless is None
    page = (tmp_path / "report.html").read_text()
    assert "Remarks" in page
    for kind in ab.on.steps[-1].errors_by_kind:
        assert kind in page
        assert kind in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a MODEL"),
        (("--off", "http://a"), "name both"),
        (("m", "--off", "http://a", "--on", "http://b"), "'m' has no use"),
        (("--off", "http://a", "--on", "http://b", "--tp", "2"), "'--tp' has no use"),
        (("m", "--pool", "/s"), "--pool is for --on"),
        (("m", "--repeat", "0"), "--repeat"),
        (("m", "--stateless", "some"), "--stateless"),
        (("--off", "http://a", "--on", "http://b", "--also", "x"), "--also 'x'"),
    ],
)
def test_what_cannot_begin_is_one_sentence(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "ab", *words, "--out", str(tmp_path / "none")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("forebay: ")
    assert err.count("\n") == 1
    assert said in err
    assert not (tmp_path / "none").exists()


def test_without_vllm_the_sentence_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert main(["bench", "ab", "m"]) == 2
    assert "make vllm" in capsys.readouterr().err


def test_the_result_is_what_the_planner_reads(tmp_path: Path) -> None:
    with stub("--tpot-ms", "3") as off, stub() as on:
        words = ["--off", off.url, "--on", on.url, *SMALL, "--clients", "1,2", "--stateless", "0"]
        assert main(["bench", "ab", *words, "--out", str(tmp_path)]) == 0
    sla = ("--tpot-ms", "1000")  # of any machine
    document: Any = json.loads((tmp_path / "ab.json").read_text())
    assert {"off", "on"} <= document.keys()
    assert main(["plan", "cost", str(tmp_path / "ab.json"), "--clients", "100", *sla]) == 0
    assert main(["bench", "compare", str(tmp_path / "ab.json")]) == 0
    pair = [str(tmp_path / f"{side}.json") for side in ("off", "on")]
    assert main(["bench", "compare", *pair, "--html", str(tmp_path / "again.html")]) == 0
