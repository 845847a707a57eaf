"""`forebay demo`, its course and its table: a server of meaningless words as vLLM, a real pool."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.bench.result import files
from forebay.bench.result.format import AbResult

ROOT = Path(__file__).parents[3]
STUB = str(ROOT / "tests" / "stub_server.py")
SERVER = f"import runpy; runpy.run_path({STUB!r}, run_name='__main__')"


@pytest.fixture
def environment(in_place_of_vllm: Callable[[str], dict[str, str]]) -> dict[str, str]:
    return in_place_of_vllm(SERVER)


def demo(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "forebay.cli", "demo", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.long
def test_it_measures_without_with_and_after_a_restart(
    environment: dict[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "drive"
    home.mkdir(mode=0o700)
    out = tmp_path / "report"
    # So little time that the dialogs are the least there are, however fast this machine is.
    words = ("--dir", str(home), "--out", str(out), "--json", "--minutes", "0.01")
    ended = demo(environment, *words)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["dialogs"], found["turns"]) == (3, 3)
    before, after = found["before_restart"], found["after_restart"]
    assert before["off"]["requests"] == before["on"]["requests"] == 6
    assert after["on"]["requests"] == 3
    assert before["answers_equal"] == after["answers_equal"] == 1.0
    assert before["on"]["pool"]["stored_chunks"] > 0
    assert before["on"]["pool"]["read_dram_chunks"] > 0
    assert after["on"]["pool"]["read_nvme_chunks"] > 0
    assert before["on"]["cached_tokens"] > before["off"].get("cached_tokens", 0)
    spread = before["ttft_speedup"]
    assert spread["low"] <= spread["median"] <= spread["high"]
    assert 0 < found["ready_s"] <= found["first_comparison_s"] <= found["seconds"]
    assert "the least that shows anything" in " ".join(found["notes"])
    ab = files.read(out / "ab.json")
    assert isinstance(ab, AbResult)
    assert ab.on.steps[0].requests == ab.off.steps[0].requests == 6
    assert len(ab.on.steps[0].turns) == 2
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert list(home.iterdir()) == []


@pytest.mark.long
def test_it_tells_what_it_does_and_what_it_found(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ended = demo(environment, "--out", str(tmp_path / "report"), "--minutes", "0.01")
    assert ended.returncode == 0, ended.stderr
    table, told = ended.stdout, ended.stderr
    assert f"The report: {tmp_path}/report/report.html" in table
    for row in ("first turn", "later turns", "requests per second", "recomputed", "from NVMe"):
        assert row in table
    assert max(len(line) for line in table.splitlines() if "report.html" not in line) <= 100
    # There is no terminal here, and every comparison is a line all the same, in their order.
    lines = [line for line in told.splitlines() if " without, " in line]
    places = [line.split(":")[1].strip() for line in lines]
    assert places == [f"turn {t} of dialog {d}" for t in (1, 2, 3) for d in (1, 2, 3)]
    restart = told.index("Restarting the engine with Forebay")
    assert told.index("turn 2 of dialog 3:") < restart < told.index("turn 3 of dialog 1:")


def test_its_time_is_a_number(environment: dict[str, str]) -> None:
    ended = demo(environment, "--minutes", "soon")
    assert ended.returncode == 2
    assert "--minutes: 'soon' is not a number up to 60" in ended.stderr
