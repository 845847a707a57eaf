"""Rows of the GPU's table: what they refuse, and what their files say when they are run again."""

import asyncio
import ctypes
import importlib.util
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import msgspec
import pytest

from forebay.bench.gpu.results import RowResults
from forebay.bench.gpu.rows import headline, shaping, swap
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import (
    FOREBAY,
    FULL,
    GPU_ONLY,
    MLA,
    TINY,
    VLLM_CPU,
    WINDOWS,
    RowScale,
)
from forebay.bench.result.files import read
from forebay.bench.result.format import AbResult, LoadStep
from forebay.gateway.config import parse_config
from forebay.gateway.swap.plan import Rest, rests
from forebay.plan.measured import TimeStats


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


def test_another_kind_of_model_has_its_own_caches_and_the_same_work() -> None:
    for scale in (FULL, TINY):
        for name in (MLA, WINDOWS):
            other = scale.of_model(name)
            assert other.arguments.keys() == scale.arguments.keys()
            assert other.arguments["kv_cache_memory_bytes"] == scale.shapes[name].kv_bytes
            assert (other.clients, other.long_tokens) == (scale.clients, scale.long_tokens)
            assert len(other.config.get("layer_types", ())) in {
                0,
                other.config["num_hidden_layers"],
            }


def test_with_mla_an_engine_holds_as_many_tokens_as_without() -> None:
    latent = FULL.of_model(MLA)
    rank, rope = latent.config["kv_lora_rank"], latent.config["qk_rope_head_dim"]
    token_bytes = 2 * (rank + rope) * latent.config["num_hidden_layers"]
    held = latent.arguments["kv_cache_memory_bytes"] // token_bytes
    assert held == FULL.arguments["kv_cache_memory_bytes"] // FULL.token_bytes


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="engines would start")
def test_a_row_goes_on_without_a_tier_of_vllms_that_does_not_start(
    path: Path, tmp_path: Path
) -> None:
    said: list[str] = []

    async def work() -> None:
        run = RowRun(tmp_path, time.monotonic() + 300, said.append)
        run.begin_row(TINY, RowResults(path, "row", "tiny"))
        try:
            assert await run.stage((VLLM_CPU,), 64 << 20) == {}
        finally:
            await run.clear_stage()

    asyncio.run(work())
    why = json.loads(path.read_text())["beside"]["did_not_start"][VLLM_CPU]
    assert "the engine could not begin" in why
    assert said[-1].startswith(f"{VLLM_CPU} did not start")


def headline_run(path: Path) -> RowRun:
    run = RowRun(path.parent, 0.0, lambda _: None)
    run.begin_row(TINY, RowResults(path, "headline", "tiny"))
    return run


def test_the_headline_is_reported_over_the_loads_that_both_variants_have(path: Path) -> None:
    run = headline_run(path)
    for variant, clients in ((FOREBAY, (1, 2)), (GPU_ONLY, (1,))):
        for count in clients:
            step = LoadStep(count, 2.0 * count, TimeStats(10.0), requests=6, seconds=3.0)
            headline._steps(run, variant)[str(count)] = msgspec.to_builtins(step)
            run.results.beside("part", count)
    headline._report(headline_run(path), (1, 2))  # a run that goes on behind the last
    found = read(path.with_suffix("") / "ab.json")
    assert isinstance(found, AbResult)
    assert [step.clients for step in found.on.steps] == [1] == [s.clients for s in found.off.steps]
    assert "vLLM with Forebay" in (path.with_suffix("") / "report.html").read_text()


def test_a_headline_without_its_other_half_has_no_report(path: Path) -> None:
    run = headline_run(path)
    step = LoadStep(1, 2.0, TimeStats(10.0))
    headline._steps(run, FOREBAY)["1"] = msgspec.to_builtins(step)
    headline._report(run, (1,))
    assert not path.with_suffix("").exists()


@pytest.mark.parametrize("scale", [FULL, TINY], ids=lambda scale: scale.name)
@pytest.mark.parametrize("variant", [swap.SLEEP, swap.STOP])
def test_the_gateway_of_a_row_has_two_engines_that_share_a_gpu(
    tmp_path: Path, scale: RowScale, variant: str
) -> None:
    run = RowRun(tmp_path, time.monotonic() + 60, print)
    run.begin_row(scale, RowResults(tmp_path / "row.json", "swap", scale.name))
    found = parse_config(tomllib.loads(swap._config(run, variant, "/pool.sock", 8000)))
    assert [engine.model for engine in found.engines] == ["one", "two"]
    for engine in found.engines:
        assert ("--enable-sleep-mode" in engine.command) == (scale is FULL and variant == "sleep")
        assert "/pool.sock" in engine.command[engine.command.index("--kv-transfer-config") + 1]
    wanted = Rest.LEVEL_1 if variant == swap.SLEEP else Rest.STOP
    assert set(rests(found.gpus[0], found.engines).values()) == {wanted}


@pytest.mark.parametrize("scale", [FULL, TINY], ids=lambda scale: scale.name)
def test_long_prompts_wait_for_each_other_only_where_batches_are_shaped(
    tmp_path: Path, scale: RowScale
) -> None:
    run = RowRun(tmp_path, time.monotonic() + 60, print)
    run.begin_row(scale, RowResults(tmp_path / "row.json", "long-and-short", scale.name))
    for variant, is_long in ((shaping.SHAPED, True), (shaping.UNSHAPED, False)):
        text = shaping.config(run, variant, "http://127.0.0.1:8001", 8000)
        found = parse_config(tomllib.loads(text))
        tokens = shaping._LONG_TOKENS[scale.name]
        assert (tokens >= found.long_prompt_tokens) is is_long
        assert shaping._SHORT_TOKENS[scale.name] < found.long_prompt_tokens
        assert found.engines[0].long_prefills == 1
        room = shaping._KV_BYTES[scale.name] // scale.token_bytes
        assert room > 2 * tokens, "else long prompts wait for each other in the engine"
