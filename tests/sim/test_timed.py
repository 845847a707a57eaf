"""A drive that takes time: what is read ahead, and that what is asked for goes first."""

import json
from pathlib import Path

import pytest

from forebay.cli.main import main
from forebay.identity.endings import EndingClass
from forebay.pool.policy.contract import Ending
from forebay.settings import PrefetchMode
from forebay.sim.replay import Sizes
from forebay.sim.timed import TimedResult, simulate_timed, with_hints
from forebay.sim.trace import Request, TracedAnswer

DEPTH, CHUNK_BYTES, GAP_S = 10, 1 << 20, 100.0
SIZES = Sizes(DEPTH, (40 * DEPTH,), CHUNK_BYTES)
FAST = 1000.0 * CHUNK_BYTES


def in_turn(rounds: int) -> list[Request]:
    """Two dialogs that alternate, each as large as DRAM."""
    ending, answer = Ending(EndingClass.TOOL_CALL), TracedAnswer(duration_s=1.0)
    chains = [[(name << 16 | at).to_bytes(16, "big") for at in range(DEPTH)] for name in (0, 1)]
    return [Request(at * GAP_S, chains[at % 2], 512, ending, answer) for at in range(2 * rounds)]


def simulated(mode: PrefetchMode, bytes_a_s: float = FAST) -> TimedResult:
    return simulate_timed(with_hints(in_turn(40), 0.0), SIZES, bytes_a_s, mode)


def test_nothing_is_read_ahead_where_it_is_off() -> None:
    found = simulated(PrefetchMode.OFF)
    assert found.reads.made == 0
    assert found.reads.wasted_share == 0.0


def test_hints_bring_dialogs_back_in_time_and_write_no_more() -> None:
    off, hints = simulated(PrefetchMode.OFF), simulated(PrefetchMode.HINTS)
    assert hints.dram_share > off.dram_share + 0.3
    assert hints.reads.used <= hints.reads.made
    assert hints.written == off.written
    assert hints.dram + hints.lower == off.dram + off.lower


def test_a_drive_that_is_busy_with_what_is_asked_reads_nothing_ahead() -> None:
    found = simulated(PrefetchMode.HINTS, bytes_a_s=CHUNK_BYTES / (2 * GAP_S))
    assert found.reads.made == 0


def test_hints_say_when_a_dialog_returns_and_nothing_of_those_that_do_not() -> None:
    hinted = with_hints(in_turn(3), 0.0)
    said = [each.ending.returns_in_s for each in hinted if each.ending is not None]
    assert said == pytest.approx([2 * GAP_S - 1.0] * 4 + [0.0] * 2)


def test_who_does_not_return_says_something_wrong_where_all_do() -> None:
    hinted = with_hints(in_turn(3), 0.0, wrong_share=1.0)
    said = [each.ending.returns_in_s for each in hinted if each.ending is not None]
    assert said == pytest.approx([2 * GAP_S - 1.0] * 6)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--drive-gbps", "0", "--disk-tokens", "1M"],
        ["--drive-gbps", "7"],
        ["--drive-gbps", "7", "--disk-tokens", "1M", "--hint-error", "-1"],
        ["--drive-gbps", "7", "--disk-tokens", "1M", "--policy", "lru"],
        ["--drive-gbps", "7", "--disk-tokens", "1M", "--plot", "curves.html"],
        ["--drive-gbps", "7", "--disk-tokens", "1M", "--hosts", "2"],
        ["--hint-error", "0.2", "--disk-tokens", "1M"],
    ],
)
def test_words_that_say_nothing_are_refused_in_a_sentence(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--trace", str(written(tmp_path)), "--dram-tokens", "2k", *wrong]) == 2
    assert capsys.readouterr().err.startswith("forebay: --")


def written(place: Path) -> Path:
    """A trace of a few requests."""
    rows = [
        {"timestamp": 1000 * at, "input_length": 1024, "output_length": 1, "hash_ids": [at % 3, 9]}
        for at in range(9)
    ]
    path = place / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_compares_all_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "--trace", str(written(tmp_path)), "--dram-tokens", "2k", "--disk-tokens", "9k"]
    words += ["--drive-gbps", "6.5", "--hint-error", "0.2"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("%") == 2 * len(PrefetchMode)
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["prefetch"]
    assert [row["prefetch"] for row in found] == list(PrefetchMode)
