"""The simulator end to end: the command on both formats, its plot, and the model's book-keeping."""

import json
import random
from pathlib import Path

import pytest

from forebay.cli.main import main
from forebay.sim.replay import NAMES, Sizes, simulate
from forebay.sim.trace import Request, Trace, capped, schedule


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
