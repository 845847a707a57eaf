"""Curves of the planner: the figures of its tables, in one page that a browser draws offline."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.bench.report import browser
from tests.bench.report.browser import needs_chromium

from forebay.cli.main import main
from forebay.cli.plan import plots
from forebay.plan.breakeven import SOURCES
from forebay.report.charts import Chart, ChartLine, svg

BREAKEVEN = ("breakeven", "Llama-3.1-8B", "--prefill-tps", "38k", "--tokens", "8192")
COST = ("cost", "--clients", "64")
LINE = re.compile(r'class="(?:curve) ([a-z ]+)" points="([^"]+)"')


def trace(path: Path) -> tuple[str, ...]:
    rows = [
        {"timestamp": 1000 * n, "input_length": 1024, "output_length": 1, "hash_ids": [0, n % 4]}
        for n in range(1, 9)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return ("pool", "Llama-3.1-8B", "--trace", str(path))


def drawn(words: tuple[str, ...], path: Path) -> str:
    assert main(["plan", *words, "--plot", str(path)]) == 0
    return path.read_text()


def test_every_tier_has_a_curve_of_its_own(tmp_path: Path) -> None:
    text = drawn(BREAKEVEN, tmp_path / "page.html")
    kinds = [kind for kind, _ in LINE.findall(text)]
    times = len(SOURCES) + 1  # and that of recomputing
    assert kinds[: len(SOURCES)] == kinds[len(SOURCES) : -1]
    assert len(set(kinds)) == times, "no two lines of a chart look the same"
    for name in [*SOURCES, "recomputing"]:
        assert f"</i>{name}</span>" in text, name
    assert "as fast as recomputing" in text
    assert "1.30 \N{MULTIPLICATION SIGN}" in text, "the table stands below"


def test_points_are_the_answers_at_other_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = drawn((*BREAKEVEN, "--tier", "nvme-gen4"), tmp_path / "page.html")
    capsys.readouterr()
    lengths = plots.lengths(8192)
    assert (lengths[0], lengths[-1], len(lengths)) == (64, 32_768, plots.POINTS)
    for tokens in (lengths[0], lengths[-1]):
        words = ["plan", *BREAKEVEN[:-1], str(tokens), "--tier", "nvme-gen4", "--json"]
        assert main(words) == 0
        speedup = json.loads(capsys.readouterr().out)["contests"][0]["speedup"]
        assert f"nvme-gen4: {speedup:.2f} times faster at {tokens:g} tokens" in text


def test_each_power_of_ten_takes_the_same_room() -> None:
    points = [(1.0, 0.1), (2.0, 1.0), (3.0, 10.0), (4.0, 100.0)]
    drawn = svg(Chart("t", "u", "x", [ChartLine("l", "on", points)], is_log_y=True))
    heights = [float(y) for y in re.findall(r'class="dot on" cx="[\d.]+" cy="([\d.]+)"', drawn)]
    steps = [one - two for one, two in pairwise(heights)]
    assert len(steps) == 3
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert steps[0] > 50


def test_hit_rates_by_size(tmp_path: Path) -> None:
    words = (*trace(tmp_path / "trace.jsonl"), "--sizes", "128MiB,256MiB,1GiB")
    text = drawn(words, tmp_path / "page.html")
    assert [kind for kind, _ in LINE.findall(text)] == ["on", "off"]
    assert "LRU: " in text
    assert "at 0.125 GiB of pool" in text


def test_cost_by_clients(tmp_path: Path) -> None:
    text = drawn(COST, tmp_path / "page.html")
    assert "GPU only: 2.00 million dollars at 64 clients" in text
    assert "with a pool: 8.00 GPUs at 64 clients" in text
    assert "GPU only: 8.00 million dollars at 256 clients" in text


@pytest.mark.parametrize("words", [BREAKEVEN, COST], ids=lambda words: words[0])
def test_a_plot_that_cannot_be_written_is_one_sentence(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words, "--plot", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert str(tmp_path) in said
    assert "\n" not in said


@needs_chromium
@pytest.mark.slow
def test_a_browser_draws_them_without_a_network_and_without_complaint(tmp_path: Path) -> None:
    charts = {BREAKEVEN: 17, COST: 4, trace(tmp_path / "trace.jsonl"): 2}
    for number, (words, curves) in enumerate(charts.items()):
        path = tmp_path / f"{number}.html"
        drawn(words, path)
        seen = browser.look(path)
        assert seen.said == []
        assert seen.asked == []
        assert seen.dom.count("<polyline") == curves
