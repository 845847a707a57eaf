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


def demo(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "forebay.cli", "demo", *words]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_it_measures_without_with_and_after_a_restart(
    environment: dict[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "drive"
    home.mkdir(mode=0o700)
    out = tmp_path / "report"
    found = json.loads(demo(environment, "--dir", str(home), "--out", str(out), "--json"))
    assert found["without"]["requests"] == found["with"]["requests"] == 15
    assert found["restarted"]["requests"] == 5
    assert found["answers_equal"] == found["restarted_answers_equal"] == 1.0
    assert found["with"]["stored_chunks"] > 0
    assert found["with"]["read_dram_chunks"] > 0
    assert found["restarted"]["read_nvme_chunks"] > 0
    assert found["restarted"]["later_ttft_s"] > 0
    assert found["with"]["recomputed_tokens"] < found["without"]["recomputed_tokens"]
    ab = files.read(out / "ab.json")
    assert isinstance(ab, AbResult)
    assert ab.on.steps[0].requests == ab.off.steps[0].requests == 15
    assert len(ab.on.steps[0].turns) == 3
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert list(home.iterdir()) == []


@pytest.mark.slow
def test_the_table_has_a_row_for_each_figure(environment: dict[str, str], tmp_path: Path) -> None:
    table = demo(environment, "--out", str(tmp_path / "report"))
    assert f"The report: {tmp_path}/report/report.html" in table
    for row in ("first turn", "later turns", "requests a second", "recomputed", "from NVMe"):
        assert row in table
    assert max(len(line) for line in table.splitlines() if "report.html" not in line) <= 100
