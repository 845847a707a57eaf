"""What the report says of a side that is worse, at percentiles, in repeats and in GPU hours."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.bench.report.sample import sample, side
from tests.bench.result.reference import OFF, ON, document

from forebay.bench.load.client import Completion
from forebay.bench.load.clients import ClientsResult, FinishedRequest
from forebay.bench.report.formatting import verdict
from forebay.bench.report.page import page
from forebay.bench.report.sections import failures, headline
from forebay.bench.report.sheet import HEAD, as_csv
from forebay.bench.result.compare import compare
from forebay.bench.result.format import AbResult, LoadResult, PoolFigures, PoolSample
from forebay.bench.result.summary import step_of
from forebay.cli.main import main
from forebay.plan.measured import Sla, operating_point

BETTER = re.compile(r'class="gain">([^<]*)<')
WORSE = re.compile(r'class="loss">([^<]*)<')


def swapped() -> AbResult:
    """The pool makes it worse, at every step."""
    ab = sample()
    return msgspec.structs.replace(ab, off=ab.on, on=ab.off, repeats=())


def test_nothing_is_green_where_the_pool_makes_it_worse() -> None:
    text = page(swapped())
    # But for the TPOT of one client alone, which the reference has 2 % higher with its tier.
    assert BETTER.findall(text) == ["-2 %"]
    assert len(WORSE.findall(text)) >= 3 + 6
    # The witness: the other way round everything is.
    text = page(msgspec.structs.replace(sample(), repeats=()))
    assert WORSE.findall(text) == ["+2 %"]
    assert len(BETTER.findall(text)) >= 3 + 6


def test_what_cannot_be_compared_has_no_colour() -> None:
    assert verdict(None) == verdict(0.004) == verdict(-0.004, is_lower_better=True) == ""
    assert (verdict(0.2), verdict(-0.2)) == ("gain", "loss")
    assert (verdict(0.2, is_lower_better=True), verdict(-0.2, is_lower_better=True)) == (
        "loss",
        "gain",
    )
    off, on = document(OFF), document(ON)
    off["steps"] = off["steps"][:3]
    text = page(AbResult(msgspec.convert(off, LoadResult), msgspec.convert(on, LoadResult)))
    assert ">-<" in text
    assert "-" not in BETTER.findall(text) + WORSE.findall(text)
    assert "<td>-</td>" in text


def test_the_first_token_is_compared_at_one_number_of_clients() -> None:
    off, on = (msgspec.convert(document(each), LoadResult) for each in (OFF, ON))
    card = headline(compare(off, on, Sla()))[2]
    assert card.name.endswith("at 16 clients")
    assert (card.value, card.more, card.kind) == ("82.0 ms", "82.0 ms against 246 ms", "gain")
    # Without a common operating point: at the most that both were asked for.
    card = headline(compare(off, on, Sla(tpot_ms=1)))[2]
    assert card.name.endswith("at 128 clients")


def test_slas_may_be_on_percentiles_and_on_the_whole_time() -> None:
    ab = sample()
    for sla, clients in (
        (Sla(), 64),
        (Sla(at="p50"), 64),
        (Sla(at="p95"), 16),  # of twice the mean
        (Sla(at="p99"), 8),
        (Sla(tpot_ms=200, at="p99", ttft_ms=240), 8),
        (Sla(tpot_ms=200, e2e_ms=9 * 94), 32),
    ):
        assert operating_point("on", ab.on.steps, sla).clients == clients, sla
    assert str(Sla(at="p99", ttft_ms=500)) == "p99 TPOT <= 50 ms and p99 TTFT <= 500 ms"


def test_a_percentile_that_was_not_measured_is_not_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "on.json"
    file.write_text(json.dumps(document(ON)))
    gpus = ["plan", "gpus", "--bench", str(file), "--measured-gpus", "8", "--target-req-s", "1"]
    assert main([*gpus, "--sla-at", "p99"]) == 2
    assert "no p99 of TPOT" in capsys.readouterr().err
    assert main([*gpus, "--sla-at", "p42"]) == 2


def answer(ttft_s: float, tpot_s: float, tokens: int = 11) -> FinishedRequest:
    whole = Completion("x", ttft_s, ttft_s + tpot_s * (tokens - 1), 100, 0, tokens)
    return FinishedRequest("s", 0, whole)


def test_goodput_counts_requests_that_met_every_bound_by_themselves() -> None:
    finished = (answer(0.1, 0.01), answer(0.9, 0.01), answer(0.1, 0.09), answer(0.1, 0.0, 1))
    run = ClientsResult(finished, seconds=2.0)
    assert step_of(1, [run], sla=Sla(tpot_ms=50)).within == 3
    step = step_of(1, [run], sla=Sla(tpot_ms=50, ttft_ms=500))
    assert (step.within, step.good_s, step.req_s) == (2, 1.0, 2.0)
    assert step_of(1, [run], sla=Sla(tpot_ms=50, ttft_ms=500, e2e_ms=150)).within == 1
    assert step_of(1, [run]).good_s is None


def test_goodput_of_another_sla_is_not_shown() -> None:
    ab = sample()
    assert "Goodput" in page(ab)
    assert "Goodput" in page(msgspec.structs.replace(ab, sla=Sla(at="p95")))
    assert "Goodput" not in page(msgspec.structs.replace(ab, sla=Sla(tpot_ms=60)))


def test_error_bars_are_the_least_and_the_most_of_the_runs() -> None:
    text = page(sample())
    bars = re.findall(r'class="span (\w+)" x1="([\d.]+)" x2="([\d.]+)" y1="([\d.]+)" y2', text)
    upright = [bar for bar in bars if bar[1] == bar[2]]
    assert {bar[0] for bar in bars} == {"on"}, "only that side's runs differ"
    assert len(upright) == 6
    assert 'class="span' not in page(msgspec.structs.replace(sample(), repeats=()))


def test_failures_without_a_reason_are_said_so() -> None:
    steps = [{"clients": 1, "req_s": 1, "tpot_ms": {"mean": 1}, "errors": 2, "requests": 9}]
    unnamed = msgspec.convert({"steps": steps, "name": "n"}, LoadResult)
    assert failures(unnamed) == [
        "n, 1 client: 2 failed (for reasons that the result does not name)"
    ]


def test_every_step_of_every_run_is_in_the_sheet() -> None:
    ab = sample()
    rows = list(csv.DictReader(io.StringIO(as_csv(ab))))
    assert len(rows) == 3 * 6 + 2 * 2 * 6
    assert tuple(rows[0]) == HEAD
    first = rows[6]
    assert (first["variant"], first["run"], first["clients"]) == ("with a tier", "all", "1")
    assert float(first["tpot_p99_ms"]) == pytest.approx(3 * ON["tpot_ms"][0])
    assert float(first["good_s"]) == pytest.approx(ON["req_s"][0])
    assert first["pool_stored_bytes"] == str(100 << 20)
    slower = [row for row in rows if row["run"] == "2" and row["variant"] == "with a tier"]
    assert float(slower[0]["req_s"]) == pytest.approx(0.8 * ON["req_s"][0])


def test_gpu_hours_and_their_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = []
    for name, figures in (("off", OFF), ("on", ON)):
        pair.append(str(tmp_path / f"{name}.json"))
        Path(pair[-1]).write_text(json.dumps(side(figures, name)))
    words = ["bench", "compare", *pair]
    assert main(words) == 0
    assert "GPU hours" not in capsys.readouterr().out
    assert main([*words, "--gpus", "8"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "off 16 0.64 22.4" in out, "8 GPUs for 1000 requests at 3.47 a second"
    assert "on 64 0.18 22.4 -72 %" in out
    assert "$" not in out
    sheet, html = tmp_path / "steps.csv", tmp_path / "page.html"
    more = ["--gpus", "8", "--gpu-price", "3", "--csv", str(sheet), "--html", str(html)]
    assert main([*words, *more]) == 0
    assert "$1.92" in capsys.readouterr().out
    assert "$0.54" in html.read_text()
    assert sheet.read_text().startswith("variant,run,clients,")
    assert main([*words, "--gpu-price", "3"]) == 2
    assert "--gpus" in capsys.readouterr().err


def test_steps_of_a_pool_stand_in_a_row_over_time() -> None:
    samples = [PoolSample(at_s, stored_bytes=int(at_s * 10**9)) for at_s in (0.0, 5.0)]
    document_on: dict[str, Any] = document(ON)
    result = msgspec.convert(document_on, LoadResult)
    steps = [
        msgspec.structs.replace(step, pool_samples=tuple(samples), pool=PoolFigures())
        for step in result.steps
    ]
    ab = AbResult(off=result, on=msgspec.structs.replace(result, steps=tuple(steps)))
    text = page(ab)
    assert "stored in DRAM: 30.0 GB, since the start at 30 seconds of load" in text
    assert "Tiers over time" not in page(AbResult(off=result, on=result))
