"""A rising load on a GPU: what is measured next, what is left out, and what the report says."""

import time
from pathlib import Path

import msgspec
import pytest

from forebay.bench.gpu.results import RowResults
from forebay.bench.gpu.rows import headline
from forebay.bench.gpu.rows.ramp import Ramp
from forebay.bench.gpu.run import ROW_S, RowRun
from forebay.bench.gpu.variants import FOREBAY, FULL, GPU_ONLY, TINY, RowScale
from forebay.bench.result.files import read
from forebay.bench.result.format import AbResult, LoadStep
from forebay.plan.measured import TimeStats

ORDER = (FOREBAY, GPU_ONLY)
ENGINE_S = 120.0  # until an engine of that size answers
DIALOG_TOKENS = 5600
PROMPTS = 6 * 3000 + 500 * sum(range(6))  # of a dialog's requests, one after the other


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "headline.json"


@pytest.fixture
def said() -> list[str]:
    return []


def ramp(
    path: Path,
    said: list[str],
    *,
    left_s: float = ROW_S,
    scale: RowScale = TINY,
    clients: tuple[int, ...] = (1, 2),
    repeats: int = 1,
) -> Ramp:
    run = RowRun(path.parent, time.monotonic() + left_s, said.append, repeats)
    run.begin_row(scale, RowResults(path, "headline", scale.name))
    return Ramp(run, clients, scale.dram_bytes + scale.disk_bytes, ORDER)


def large(path: Path, said: list[str], left_s: float = ROW_S) -> Ramp:
    return ramp(path, said, left_s=left_s, scale=headline._scale(FULL), clients=headline._CLIENTS)


def keep(found: Ramp, variant: str, clients: int, req_s: float, cached_share: float = 0.0) -> None:
    requests = 6 * clients
    step = LoadStep(
        clients,
        req_s,
        TimeStats(10.0),
        TimeStats(100.0),
        TimeStats(1000.0),
        requests=requests,
        seconds=requests / req_s,
        prompt_tokens=clients * PROMPTS,
        cached_tokens=int(clients * PROMPTS * cached_share),
    )
    found.steps(variant, clients).append(msgspec.to_builtins(step))
    found._keep()


def test_what_comes_after_known_figures_fits_a_run(path: Path, said: list[str]) -> None:
    """32 clients of a GPU alone took 100 s with nothing found again, and 64 of them 201 s."""
    known = large(path, said)
    for clients, req_s, cached in ((1, 1.0, 0.8), (8, 4.2, 0.8), (16, 4.55, 0.8), (32, 1.91, 0.0)):
        keep(known, GPU_ONLY, clients, req_s, cached)
    again = large(path, said, ROW_S - ENGINE_S)
    assert again.missing(GPU_ONLY) == [(0, 64)]
    assert 201 < again.expected_s(GPU_ONLY, 64) < ROW_S - ENGINE_S
    assert again.may_begin(GPU_ONLY, 64, is_first=False)


def test_where_dialogs_were_found_again_more_clients_may_have_to_wait(
    path: Path, said: list[str]
) -> None:
    """From 16 to 32 clients a request took 2.4 times as long."""
    known = large(path, said)
    keep(known, GPU_ONLY, 16, 4.55, 0.8)
    assert known.expected_s(GPU_ONLY, 32) > 192 / 1.91
    keep(known, GPU_ONLY, 32, 1.91)
    assert known.expected_s(GPU_ONLY, 64) < 3 * known.expected_s(GPU_ONLY, 32)


def test_what_memory_and_drive_hold_is_found_again_by_more_clients(
    path: Path, said: list[str]
) -> None:
    """With Forebay 32 clients took 39 s, and 64 of them 79 s."""
    known = large(path, said)
    keep(known, FOREBAY, 32, 4.97, 0.8)
    assert 79 < known.expected_s(FOREBAY, 64) < 1.5 * 79


def test_a_load_that_nothing_is_known_of_begins(path: Path, said: list[str]) -> None:
    assert ramp(path, said).expected_s(GPU_ONLY, 1) == 0.0


def test_the_first_load_of_a_run_begins_whatever_it_takes(path: Path, said: list[str]) -> None:
    """No run has more time, so putting it off again would be for ever."""
    found = ramp(path, said, left_s=60.0)
    keep(found, GPU_ONLY, 1, 0.05)
    assert not found.may_begin(GPU_ONLY, 2, is_first=False)
    assert said == ["no time for 2 clients; run the row again"]
    assert found.may_begin(GPU_ONLY, 2, is_first=True)


def test_a_first_load_that_did_not_end_is_left_out_until_there_is_more_time(
    path: Path, said: list[str]
) -> None:
    first = ramp(path, said, left_s=60.0)
    keep(first, GPU_ONLY, 1, 0.05)
    assert first.may_begin(GPU_ONLY, 2, is_first=True)  # and the time is up before it ends
    again = ramp(path, said, left_s=60.0)
    assert again.missing(GPU_ONLY) == []
    assert again.missing(FOREBAY) == [(0, 1), (0, 2)]
    assert said[-1] == "2 clients are left out: gpu_only did not end within 60 s"
    longer = ramp(path, said, left_s=120.0)
    assert longer.missing(GPU_ONLY) == [(0, 2)]
    assert longer.run.results.found["left_out"] == {}


def test_what_memory_and_drive_cannot_hold_is_left_out_and_named(
    path: Path, said: list[str]
) -> None:
    found = large(path, said)
    assert list(found.clients) == [1, 8, 16, 32, 64]
    wanted_gb = 128 * DIALOG_TOKENS * found.run.scale.token_bytes / 1e9
    (why,) = said
    assert why.startswith(f"128 clients are left out: their KV is {wanted_gb:.1f} GB")
    assert found.run.results.found["left_out"].keys() == {"128"}
    for variant in ORDER:
        keep(found, variant, 1, 2.0)
    found.report()
    written = read(path.with_suffix("") / "ab.json")
    assert isinstance(written, AbResult)
    assert written.on.notes == (why,)


def test_the_report_is_over_the_loads_that_both_variants_have(path: Path, said: list[str]) -> None:
    found = ramp(path, said)
    keep(found, FOREBAY, 1, 2.0)
    keep(found, FOREBAY, 2, 4.0)
    keep(found, GPU_ONLY, 1, 1.0)
    again = ramp(path, said)  # a run that goes on behind the last
    again.report()
    written = read(path.with_suffix("") / "ab.json")
    assert isinstance(written, AbResult)
    assert [step.clients for step in written.on.steps] == [1]
    assert [step.clients for step in written.off.steps] == [1]
    assert written.repeats == ()
    assert "vLLM with Forebay" in (path.with_suffix("") / "report.html").read_text()
    assert again.run.results.found["ratios"]["requests_per_s_1_clients"] == [2.0, 2.0, 2.0]


def test_without_its_other_half_there_is_no_report(path: Path, said: list[str]) -> None:
    found = ramp(path, said)
    keep(found, FOREBAY, 1, 2.0)
    found.report()
    assert not path.with_suffix("").exists()


def test_loads_that_are_repeated_have_bars_from_the_least_to_the_most(
    path: Path, said: list[str]
) -> None:
    found = ramp(path, said, clients=(1,), repeats=3)
    assert found.missing(FOREBAY) == [(0, 1), (1, 1), (2, 1)]
    for req_s in (2.0, 6.0, 4.0):
        keep(found, FOREBAY, 1, req_s)
        keep(found, GPU_ONLY, 1, 1.0)
    assert found.missing(FOREBAY) == []
    found.report()
    written = read(path.with_suffix("") / "ab.json")
    assert isinstance(written, AbResult)
    assert written.on.steps[0].req_s == 4.0
    assert [each.results["on"].steps[0].req_s for each in written.repeats] == [2.0, 6.0, 4.0]
    assert "least and most of the runs" in (path.with_suffix("") / "report.html").read_text()
    assert found.run.results.found["ratios"]["requests_per_s_1_clients"] == [4.0, 2.0, 6.0]
