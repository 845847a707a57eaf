"""`forebay demo`, its course and its table, with a server of meaningless words in vLLM's place."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SERVER = f"import runpy; runpy.run_path({str(ROOT / 'tests' / 'talker.py')!r}, run_name='__main__')"


@pytest.fixture
def environment(in_place_of_vllm: Callable[[str], dict[str, str]]) -> dict[str, str]:
    return in_place_of_vllm(SERVER)


def demo(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "forebay.cli", "demo", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=True
    ).stdout


@pytest.mark.slow
def test_it_measures_without_with_and_after_a_restart(
    environment: dict[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "drive"
    home.mkdir(mode=0o700)
    found = json.loads(demo(environment, "--dir", str(home), "--json"))
    assert found["without"]["requests"] == found["with"]["requests"] == 15
    assert found["restarted"]["requests"] == 5
    assert found["answers_equal"] == found["restarted_answers_equal"] == 1.0
    assert found["with"]["stored_chunks"] == found["restarted"]["read_nvme_chunks"] == 0
    assert found["restarted"]["later_ttft_s"] > 0
    assert list(home.iterdir()) == []


@pytest.mark.slow
def test_the_table_has_a_row_for_each_figure(environment: dict[str, str]) -> None:
    table = demo(environment)
    for row in ("first turn", "later turns", "requests a second", "recomputed", "from NVMe"):
        assert row in table
    assert max(map(len, table.splitlines())) <= 100
