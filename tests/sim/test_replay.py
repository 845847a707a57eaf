"""The simulator end to end: the command on both formats, its plot, and the model's book-keeping."""

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from forebay.cli.main import main
from forebay.sim.replay import NAMES, Sizes, simulate
from forebay.sim.trace import Request, Trace, capped, schedule

ROOT = Path(__file__).parents[2]
LETTER, LINE = 6.7, 12.0  # of a label, in the plot's units: a digit's width and a line's height


@pytest.fixture
def conversation(tmp_path: Path) -> Path:
    draw, path = random.Random(3), tmp_path / "conversation.jsonl"
    rows = []
    for number in range(300):
        dialog = draw.randrange(30)
        blocks = [0, *range(dialog * 100 + 1, dialog * 100 + 3 + number // 40)]
        rows.append(
            {
                "timestamp": number * 700,
                "input_length": 512 * len(blocks) + 7,
                "output_length": 9,
                "hash_ids": [*blocks, 10_000 + number],
            }
        )
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_command_compares_all_policies(
    conversation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "sim",
        "--trace",
        str(conversation),
        "--dram-tokens",
        "20k",
        "--disk-tokens",
        "50k",
    ]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["requests"] == 300
    by_name = {each["policy"]: each for each in facts["policies"]}
    assert tuple(by_name) == NAMES
    for each in facts["policies"]:
        assert each["hit_rate"] <= by_name["optimum"]["hit_rate"] + 0.01
        hit = each["dram_hit_rate"] + each["disk_hit_rate"]
        assert each["hit_rate"] == pytest.approx(hit, abs=0.001)
        assert each["disk_written_bytes"] > 0
    assert main([*arguments, "--policy", "lru"]) == 0
    assert "lru" in capsys.readouterr().out


def test_plot_is_one_file_that_needs_nothing(conversation: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.html"
    arguments = ["sim", "--trace", str(conversation), "--dram-tokens", "20k"]
    assert main([*arguments, "--policy", "forebay", "--policy", "lru", "--plot", str(plot)]) == 0
    text = plot.read_text()
    assert text.count("<polyline") == 2
    assert "http" not in text
    assert "<script" not in text
    body = text[text.index("<body") :] if "<body" in text else text
    for name in ("forebay", "lru"):
        assert re.search(rf'class="key[^"]*"></\w+>{name}, \d+ % at most', body), "the legend"
    axes = re.findall(r'<text class="axis"[^>]*>([^<]*)</text>', text)
    assert axes == ["million tokens", "% of all prompt tokens"]


@pytest.mark.parametrize("dram", ["512", "20k", "123456", "99999999"])
def test_labels_of_a_plot_do_not_overlap(conversation: Path, tmp_path: Path, dram: str) -> None:
    plot = tmp_path / "plot.html"
    arguments = ["sim", "--trace", str(conversation), "--dram-tokens", dram, "--policy", "lru"]
    assert main([*arguments, "--plot", str(plot)]) == 0
    labels = r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(middle|end)">([^<]*)</text>'
    boxes = []
    for x, y, anchor, label in re.findall(labels, plot.read_text()):
        width = LETTER * len(label)
        left = float(x) - (width / 2 if anchor == "middle" else width)
        boxes.append((left, left + width, float(y) - LINE, float(y)))
    assert len(boxes) > 2
    for one, other in itertools.combinations(boxes, 2):
        beside = one[1] <= other[0] or other[1] <= one[0]
        assert beside or one[3] <= other[2] or other[3] <= one[2], (one, other)


def printed() -> list[str]:
    """The commands of `forebay sim` that the page of the samples prints."""
    page = (ROOT / "traces" / "README.md").read_text()
    return re.findall(r"^    forebay (sim .*)$", page, re.MULTILINE)


def test_the_page_of_the_samples_prints_a_command_for_each() -> None:
    for sample in ("agent", "chat"):
        assert any(f"{sample}-sample" in command for command in printed())


@pytest.mark.long
@pytest.mark.parametrize("command", printed())
def test_the_samples_are_simulated_as_printed(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*command.split(), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["requests"] > 0
    rates = {each["policy"]: each["hit_rate"] for each in facts["policies"]}
    assert rates["forebay"] > rates["lru"] > 0


@pytest.mark.parametrize(
    "wrong",
    [
        ["--dram-tokens", "many"],
        ["--dram-tokens", "1"],
        ["--dram-tokens", "1M", "--users", "-1"],
        ["--dram-tokens", "1M", "--token-bytes", "x"],
        ["--dram-tokens", "1M", "--plot", "/proc/nowhere/all.html"],
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    conversation: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--trace", str(conversation), "--policy", "lru", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_fits_is_missed_once(name: str) -> None:
    chains = [[(d * 10 + i).to_bytes(16, "big") for i in range(5)] for d in range(4)]
    requests = [Request(float(n), chains[n % 4], 5 * 512) for n in range(40)]
    result = simulate(name, requests, Sizes(20))
    assert result.dram_tokens == 36 * 5 * 512
    assert result.recomputed_tokens == 4 * 5 * 512
    assert result.written_bytes == 0


def test_gaps_are_capped_within_a_session() -> None:
    trace = Trace([[Request(at_s, [], 1) for at_s in (0.0, 5.0, 1000.0)]], open_loop=False)
    assert [r.at_s for r in schedule(capped(trace, 100))] == [0.0, 5.0, 105.0]
