"""Rows of the GPU's table: what they refuse, and what their files say when they are run again."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.bench.gpu.results import RowResults


def test_without_a_driver_a_row_says_so_at_once(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a driver")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "forebay.bench.gpu", "dialogs"]
    command += ["--out", str(out), "--dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 2
    assert "forebay: there is no NVIDIA driver here" in ended.stdout
    assert ended.stdout.count("\n") == 1, "one sentence"
    assert not ended.stderr
    assert list(tmp_path.iterdir()) == [], "and leaves nothing"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "row.json"


def repeat(ours: float, theirs: float) -> dict[str, dict[str, float]]:
    return {"ours": {"seconds": ours}, "theirs": {"seconds": theirs}}


def test_a_ratio_is_the_median_of_its_repeats_with_least_and_most(path: Path) -> None:
    results = RowResults(path, "row", "tiny")
    results.ratio("sooner", "seconds", "ours", "theirs")
    for ours in (3.0, 1.0, 4.0):
        results.keep(repeat(ours, 2.0))
    assert json.loads(path.read_text())["ratios"] == {"sooner": [1.5, 0.5, 2.0]}


def test_a_row_that_is_run_again_goes_on(path: Path) -> None:
    first = RowResults(path, "row", "tiny")
    first.keep(repeat(1.0, 2.0))
    first.beside("most", 7)
    again = RowResults(path, "row", "tiny")
    again.ratio("sooner", "seconds", "ours", "theirs")
    again.keep(repeat(3.0, 2.0))
    found = json.loads(path.read_text())
    assert len(found["repeats"]) == 2
    assert found["beside"] == {"most": 7}
    assert found["ratios"] == {"sooner": [1.0, 0.5, 1.5]}


def test_a_rehearsal_is_not_taken_for_the_row(path: Path) -> None:
    RowResults(path, "row", "tiny").keep(repeat(1.0, 2.0))
    assert RowResults(path, "row", "full").repeats == []


def test_a_side_that_has_measured_nothing_is_no_ratio(path: Path) -> None:
    results = RowResults(path, "row", "tiny")
    results.ratio("sooner", "seconds", "ours", "theirs")
    results.keep(repeat(1.0, 0.0))
    results.keep({"ours": {"seconds": 1.0}})
    assert "ratios" not in json.loads(path.read_text())
