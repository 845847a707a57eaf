"""The demo's page has every turn of both engines, what they come to, and how they were measured."""

from pathlib import Path

from forebay.bench.ab import demo_engine, demo_page
from forebay.bench.ab.demo_report import ComparedTurn, DemoPhase, DemoReport, RepeatedTurn
from forebay.bench.ab.demo_size import EngineSpeed
from forebay.bench.load.client import Completion
from forebay.bench.load.workloads import Dialogs
from forebay.bench.result import files
from forebay.bench.result.format import AbResult, PoolFigures


def completion(ttft_s: float, cached: int, text: str = "yes") -> Completion:
    return Completion(text, ttft_s, ttft_s + 0.5, 1000, cached, 16)


def turn(number: int, with_pool_s: float, text: str = "yes") -> ComparedTurn:
    alone = completion(6.0, 0)
    cached = 900 if number else 0
    return ComparedTurn("dialog 1", number, alone, completion(with_pool_s, cached, text))


def report() -> DemoReport:
    return DemoReport(
        dialogs=Dialogs(hold=1, turns=4, first_tokens=1000, turn_tokens=32, answer_tokens=16),
        cache_bytes=64 << 20,
        speed=EngineSpeed(180.0, 0.03, 30.0),
        before=DemoPhase(
            (turn(0, 6.0), turn(1, 1.0), turn(2, 0.5, text="<no>")),
            PoolFigures(stored_chunks=7, stored_bytes=7 << 20),
        ),
        again=RepeatedTurn(0.4, 0.2),
        restarted=DemoPhase(
            (turn(3, 2.0),), PoolFigures(read_nvme_chunks=5, read_nvme_bytes=5 << 20)
        ),
        ready_s=30.0,
        first_s=70.0,
        seconds=170.0,
        notes=("The machine has become slower.",),
        commands=(("vllm serve",), ("vllm serve --kv-transfer-config",)),
    )


def test_every_turn_is_on_the_page(tmp_path: Path) -> None:
    path = demo_page.write(tmp_path, report())
    text = path.read_text(encoding="utf-8")
    assert text.count("dialog\N{NO-BREAK SPACE}1") == 4
    for words in ("after the restart", "3 of 4", "5 MiB", "become slower", "--kv-transfer-config"):
        assert words in text
    ab = files.read(tmp_path / "ab.json")
    assert isinstance(ab, AbResult)
    assert ab.equal is not None
    assert (ab.equal.answers, ab.equal.equal) == (3, 2)


def test_speedups_are_of_returning_turns_pair_by_pair() -> None:
    found = report()
    assert found.before.speedups == (9.0, 6.0, 12.0)
    assert found.restarted.speedups == (3.0, 3.0, 3.0)


def test_the_terminal_has_the_same_figures() -> None:
    text = demo_page.text(report())
    assert max(map(len, text.splitlines())) <= 100
    for words in ("9.0 \N{MULTIPLICATION SIGN} faster", "3 of 4 answers", "3,000 of 3,000"):
        assert words in text
    for words in ("1,200 of 3,000", "100 of 1,000", "5 MiB", "become slower"):
        assert words in text


def test_an_engine_that_starts_says_how_far_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    assert demo_engine.stage_of(log) == "importing vLLM"
    log.write_text("INFO Starting to load model m...\n")
    assert demo_engine.stage_of(log) == "loading weights"
    log.write_text("INFO Starting to load model m...\nINFO Loading weights took 1.9 seconds\n")
    assert demo_engine.stage_of(log) == "allocating its KV cache"
