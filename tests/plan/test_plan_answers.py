"""GPUs, pool, break-even, SSD life and cost: the formulas, and the commands around them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.cli.main import main
from forebay.plan.breakeven import SOURCES, KvSource, breakeven
from forebay.plan.fleet import FleetLoad, ServerSpec, cost, gpus_required
from forebay.plan.measured import MeasuredStep, Sla, TimeStats, operating_point
from forebay.plan.model.config import shape_of
from forebay.plan.model.known import MODELS
from forebay.plan.model.shape import plain_shape
from forebay.plan.pool import Demand, pool_size
from forebay.plan.ssd import DRIVES, TB, SsdModel, rated_bytes, wear

CLIENTS = (1, 8, 16, 32, 64, 128)
REFERENCE = {
    "off": (
        (0.74, 2.74, 3.47, 4.08, 4.74, 5.33),
        (189, 221, 246, 303, 433, 752),
        (10.3, 23.9, 38.8, 66.0, 114.5, 204.1),
    ),
    "on": (
        (0.80, 4.22, 6.14, 8.82, 12.27, 16.31),
        (66, 72, 82, 94, 129, 189),
        (10.5, 16.1, 22.3, 31.0, 44.5, 66.0),
    ),
}


def result(side: str) -> dict[str, Any]:
    steps = [
        {"clients": n, "req_s": rate, "ttft_ms": {"mean": ttft}, "tpot_ms": {"mean": tpot}}
        for n, rate, ttft, tpot in zip(CLIENTS, *REFERENCE[side], strict=True)
    ]
    return {"steps": steps}


def steps(side: str) -> list[MeasuredStep]:
    return msgspec.convert(result(side)["steps"], list[MeasuredStep])


def written(path: Path, document: object) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_gpus_from_a_measured_rate() -> None:
    assert gpus_required(100_000, 12_000, 8, 0.8).gpus == 84
    assert gpus_required(10, 5, 8, 0.8).gpus == 20  # exactly: no GPU for a float's last digit
    assert gpus_required(0.001, 5, 8, 0.8).gpus == 1


def test_gpus_from_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "on.json", result("on"))
    gpus = ("gpus", "--bench", file, "--measured-gpus", "8", "--utilization", "1")
    found = answer(capsys, *gpus, "--target-req-s", "24.54")
    assert (found["measured_rate"], found["gpus"]) == (12.27, 16)
    assert main(["plan", *gpus, "--target-tps", "100"]) == 2
    assert "output_tok_s is missing" in capsys.readouterr().err
    document = result("on")
    document["steps"][4]["output_tok_s"] = 1000.0
    written(tmp_path / "on.json", document)
    assert answer(capsys, *gpus, "--target-tps", "2000")["gpus"] == 16


def test_the_operating_point_is_the_last_step_before_the_first_violation() -> None:
    assert operating_point("off", steps("off"), Sla()).clients == 16
    assert operating_point("on", steps("on"), Sla()).clients == 64
    assert operating_point("on", steps("on"), Sla(ttft_ms=90)).clients == 16
    found = steps("on")
    # Later steps are within again: they do not count.
    found[2] = msgspec.structs.replace(found[2], tpot_ms=TimeStats(51.0))
    assert operating_point("on", found[::-1], Sla()).clients == 8


def test_a_step_that_refuses_more_than_one_request_in_a_hundred_is_a_violation() -> None:
    def clients(**change: object) -> int:
        found = steps("on")
        found[3] = msgspec.structs.replace(found[3], **change)
        return operating_point("on", found, Sla()).clients

    assert clients(requests=990, errors=10) == 64
    assert clients(requests=980, errors=20) == 16
    assert clients(requests=0, errors=20, tpot_ms=None) == 16


def test_pool_size_follows_littles_law() -> None:
    shape = plain_shape(1, 1, 50, 16)  # 200 bytes a token
    demand = Demand(100, 1000, live_hours=5, session_minutes=60, dram_minutes=30, headroom=0)
    found = pool_size(shape, demand)
    assert found.context_bytes == 200_000
    assert (found.contexts_in_dram, found.contexts_in_nvme) == (150, 600)
    assert (found.dram_bytes, found.nvme_bytes) == (150 * 200_000, 600 * 200_000)
    assert found.writes_per_day_bytes == 2400 * 200_000


def test_loading_wins_above_rate_times_bytes() -> None:
    shape = shape_of("m", "m", MODELS["Llama-3.1-8B"].config)
    even_bytes_s = 38_000 * 131_072
    fast = KvSource("fast", even_bytes_s * 2, 1000.0)
    slow = KvSource("slow", even_bytes_s, 1000.0)
    found = breakeven(shape, 38_000, 8192, [fast, slow])
    assert found.even_bytes_s == pytest.approx(even_bytes_s)
    # At twice the bandwidth half of the time is saved: 1 ms is paid for after 2 ms of computing.
    assert found.contests[0].wins_from_tokens == 77
    assert found.contests[1].wins_from_tokens is None
    assert found.contests[0].speedup == pytest.approx(215.58 / (1 + 215.58 / 2), rel=1e-3)


def test_ranks_load_through_links_of_their_own_and_share_drives() -> None:
    sources = [KvSource("link", 1e9, 0.0, is_per_gpu=True), KvSource("drive", 1e9, 0.0)]
    grouped = shape_of("m", "m", MODELS["Llama-3.1-70B"].config)
    one, eight = (breakeven(grouped, 1000, 8192, sources, tp) for tp in (1, 8))
    assert eight.contests[0].load_ms == pytest.approx(one.contests[0].load_ms / 8)
    assert eight.contests[1].load_ms == one.contests[1].load_ms
    assert eight.even_gpu_bytes_s == pytest.approx(eight.even_bytes_s / 8)
    # A latent is one head: every rank has all of it, and a drive brings it once.
    latent = shape_of("m", "m", MODELS["DeepSeek-V3"].config)
    one, eight = (breakeven(latent, 1000, 8192, sources, tp) for tp in (1, 8))
    assert eight.contests == one.contests
    # Of 8 KV heads, 16 ranks hold copies.
    assert (
        breakeven(grouped, 1000, 8192, sources, 16).contests[0]
        == breakeven(grouped, 1000, 8192, sources, 8).contests[0]
    )


def test_a_window_makes_a_slow_tier_win_in_the_end() -> None:
    shape = shape_of("m", "m", MODELS["gpt-oss-20b"].config)
    even_bytes_s = 10_000 * shape.growing_token_bytes
    found = breakeven(shape, 10_000, 8192, [KvSource("slow", even_bytes_s * 1.5, 0.0)])
    # load(n) = (n + 128) g / (1.5 P g) beats n / P from n = 256 on.
    assert found.contests[0].wins_from_tokens in {256, 257}


def test_presets_are_those_that_people_buy() -> None:
    wanted = {"nvme-gen4", "nvme-gen5", "nvme-245tb", "pcie5-x16", "25gbe", "100gbe"}
    assert wanted <= set(SOURCES)
    assert DRIVES["nvme-245tb"].capacity_bytes == round(245.76 * TB)


def test_ssd_life_at_both_endurances() -> None:
    found = wear(DRIVES["nvme-gen5"], 4, 60 * TB)
    assert found.dwpd == pytest.approx(60 / 4 / 6.4)
    assert found.random_dwpd == pytest.approx(3.0)
    assert found.random_years == pytest.approx(35_040 / 15 / 365)
    assert found.sequential_years == pytest.approx(74_200 / 15 / 365)
    assert wear(DRIVES["nvme-gen4"], 1, TB).sequential_years is None
    own = SsdModel("own", TB, rated_bytes(TB, 1.0, 3.0), warranty_years=3.0)
    assert wear(own, 1, TB).random_years == pytest.approx(3.0)
    assert wear(own, 1, TB).random_dwpd == pytest.approx(1.0)


def test_cost_of_the_reference_result(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "cost", "--clients", "64")
    assert (found["without"]["servers"], found["pooled"]["servers"]) == (4, 1)
    found = answer(capsys, "cost", "--clients", "64", "--baseline-servers", "2")
    pairs = {name: (found["without"][name], found["pooled"][name]) for name in found["without"]}
    assert pairs["gpus"] == (16, 8)
    assert pairs["rack_units"] == (14, 7)
    assert (pairs["power_kw_min"], pairs["power_kw_max"]) == ((20, 10), (24, 12))
    assert pairs["price"] == (1_000_000, 500_000 + 1024 * 10 + 30.72 * 200)
    assert main(["plan", "cost", "--clients", "64", "--baseline-servers", "2"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    for row in ("16 8", "14U 7U", "20 - 24 kW 10 - 12 kW", "$1.0M $0.52M", "$0 $16,384"):
        assert row in table


def test_a_pool_is_priced_by_its_parts_or_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("cost", "--baseline-servers", "8")
    parts = ("--pool-dram", "2TiB", "--pool-nvme", "10TB", "--dram-gib-price", "5")
    found = answer(capsys, *load, *parts, "--nvme-tb-price", "100")
    assert found["pooled"]["servers"] == 2
    assert found["pooled"]["pool_price"] == 2 * (2048 * 5 + 10 * 100)
    assert found["pooled"]["price"] == 2 * (500_000 + 11_240)
    assert found["without"]["pool_price"] == 0
    found = answer(capsys, *load, "--pool-price", "7")
    assert found["pooled"]["price"] == 2 * 500_007
    assert main(["plan", *load, "--pool-price", "7", "--pool-dram", "1TiB"]) == 2
    assert "--pool-dram" in capsys.readouterr().err


def test_the_first_line_says_whose_measurement_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def first_line(*results: str) -> str:
        assert main(["plan", "cost", *results, "--clients", "65"]) == 0
        return capsys.readouterr().out.splitlines()[0]

    both = written(tmp_path / "ab.json", {side: result(side) for side in REFERENCE})
    assert "reference table" in first_line()
    assert answer(capsys, "cost", "--clients", "65")["is_measured"] is False
    assert first_line(both) == "65 clients"
    assert answer(capsys, "cost", both, "--clients", "65")["is_measured"] is True


def test_cost_from_an_ab_result_and_from_two_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = written(tmp_path / "ab.json", {side: result(side) for side in REFERENCE})
    off = written(tmp_path / "off.json", result("off"))
    on = written(tmp_path / "on.json", result("on"))
    for files in ((both,), (off, on)):
        found = answer(capsys, "cost", *files, "--clients", "65")
        assert (found["without"]["servers"], found["pooled"]["servers"]) == (5, 2)
    found = answer(capsys, "cost", both, "--clients", "64", "--tpot-ms", "25")
    assert (found["without"]["servers"], found["pooled"]["servers"]) == (8, 4)


def test_the_load_may_be_given_as_servers() -> None:
    found = cost(FleetLoad(baseline_servers=3), 16, 64, ServerSpec(pool_price=1000.0))
    assert (found.clients, found.without.servers, found.pooled.servers) == (48, 3, 1)
    assert (found.without.price, found.pooled.price) == (1_500_000, 501_000)


QUESTIONS = [
    ("kv", "Gemma-3-27B", "--tp", "2", "--gpu-memory", "80GiB", "--gpus", "4"),
    ("kv", "--layers", "2", "--model-dim", "64", "--bits", "4"),
    ("gpus", "--target-tps", "9", "--measured-tps", "3", "--measured-gpus", "1"),
    ("pool", "qwen3-8b", "--users", "5", "--context", "100", "--kv-dtype", "fp8"),
    ("breakeven", "Qwen3-8B", "--prefill-tps", "9", "--tier", "25gbe", "--bandwidth", "x=1GB/s"),
    ("breakeven", "Qwen/Qwen3-8B", "--prefill-tps", "9k", "--tp", "4", "--tokens", "32k"),
    ("ssd", "--writes-per-day", "1TB", "--drive", "nvme-245tb"),
    ("ssd", "--writes-per-day", "1TB", "--capacity", "1TB", "--dwpd", "0.5"),
    ("cost", "--clients", "1000", "--price", "320000", "--power-kw-max", "10"),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_every_question_has_a_table_and_json(
    question: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *question]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 5
    assert answer(capsys, *question)


@pytest.mark.parametrize("name", ["kv", "gpus", "pool", "breakeven", "remote", "ssd", "cost"])
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["plan", name, "--help"])
    assert stop.value.code == 0
    assert f"examples:\n  forebay plan {name} " in capsys.readouterr().out


def test_encoded_kv_takes_less_of_a_pool_and_of_drives(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-8B has pages of 64 KiB: of 65,536 bytes 49,872 are left."""
    pool = ("pool", "Qwen3-8B", "--users", "10", "--context", "1000")
    raw, encoded = answer(capsys, *pool), answer(capsys, *pool, "--compress")
    assert raw["context_bytes"] == 147_456_000
    assert encoded["context_bytes"] == 147_456_000 * 49_872 // 65_536
    assert encoded["writes_per_day_bytes"] * 65_536 == raw["writes_per_day_bytes"] * 49_872
    kv = ("kv", "Qwen3-8B", "--tokens", "1000", "--gpu-memory", "141GB", "--compress")
    found = answer(capsys, *kv)
    assert found["total_bytes"] == 147_456_000, "on the GPU it is what it was"
    assert found["stored_bytes"] == encoded["context_bytes"]
    assert found["capacity"]["pool_context_bytes"] == encoded["context_bytes"]
    ssd = ("ssd", "--writes-per-day", "65536GB", "--drive", "nvme-gen5")
    found = answer(capsys, *ssd, "--compress")
    assert found["writes_per_day_bytes"] == 49_872 * 10**9


@pytest.mark.parametrize("dtype", ["fp8", "float16", "float32"])
def test_what_is_not_bfloat16_is_not_encoded(
    dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "kv", "Qwen3-8B", "--kv-dtype", dtype, "--compress"]) == 2
    assert "compress encodes KV in bfloat16 only" in capsys.readouterr().err
