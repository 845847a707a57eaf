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

import pytest
from tests.pool_process import PatientClient, made, serving, short_directory

from forebay.bench.gpu import variants
from forebay.bench.gpu.results import RowResults
from forebay.bench.gpu.rows import cold, memory, shaping, swap
from forebay.bench.gpu.rows.catalog import ROWS
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import (
    FOREBAY,
    FULL,
    MLA,
    TINY,
    VLLM_CPU,
    WINDOWS,
    RowScale,
)
from forebay.bench.processes import settled
from forebay.bench.result.machine import has_bfloat16
from forebay.errors import StartupError
from forebay.gateway.config import parse_config
from forebay.gateway.swap.plan import Rest, rests


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


def test_a_row_counts_what_a_pool_stored() -> None:
    chunks, chain = made("stored", 3, 4000)
    with (
        short_directory() as place,
        serving(place) as service,
        PatientClient(service.address.path) as client,
    ):
        before = settled(client, 0.05)
        client.store(chain, [chunk.payload for chunk in chunks])
        found = memory.stored_between(before, settled(client, 0.05))
    assert found == {"stored_chunks": 3, "stored_bytes": 3 * 4000}


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


def test_a_model_with_weights_has_caches_for_as_many_tokens(tmp_path: Path) -> None:
    shape = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    shape |= {"num_hidden_layers": 30, "vocab_size": 49_152, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    scale = FULL.with_weights(str(tmp_path))
    assert scale.token_bytes == 2 * 3 * 64 * 30 * 2
    for name in ("dram_bytes", "small_dram_bytes"):
        held = getattr(scale, name) // scale.token_bytes
        assert held == getattr(FULL, name) // FULL.token_bytes
    assert scale.arguments["load_format"] == "auto"
    assert scale.arguments["max_model_len"] == 8192
    assert scale.long_tokens + scale.answer_tokens == 8192
    told = variants.arguments(FOREBAY, scale, scale.directory, "pool.sock")
    extra = told["kv_transfer_config"]["kv_connector_extra_config"]
    assert "weights_id" not in extra, "its weights are hashed"


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no model that rows can run"):
        FULL.with_weights(str(tmp_path))


def test_a_side_that_failed_is_no_ratio(path: Path) -> None:
    results = RowResults(path, "row", "tiny")
    results.ratio("sooner", "seconds", "ours", "theirs")
    results.ratio("later", "seconds", "theirs", "ours")
    results.keep({"ours": {"seconds": 1.0}, "theirs": {"failed": "its drive is full"}})
    assert "ratios" not in json.loads(path.read_text())


def test_energy_is_counted_from_when_an_engine_is_up(path: Path) -> None:
    used, found = [0.0], {}
    run = RowRun(path.parent, time.monotonic() + 60, lambda _: None, energy=lambda: used[0])
    run.begin_row(TINY, RowResults(path, "row", "tiny"))

    async def ask() -> dict[str, int]:
        used[0] += 30.0
        return {"requests": 6}

    async def start_and_ask(_variant: str, _engine: None, _number: int) -> dict[str, int]:
        used[0] += 1000.0  # what starting an engine takes
        found.update(await run.measured(ask()))
        return found

    asyncio.run(run.repeat({"ours": None}, start_and_ask, 1))
    assert run.results.repeats[0]["ours"]["joules_a_request"] == 5.0


def test_nothing_is_said_of_energy_that_nobody_counts(tmp_path: Path) -> None:
    async def ask() -> dict[str, int]:
        return {"requests": 6}

    run = RowRun(tmp_path, 0.0, print, energy=lambda: None)
    assert asyncio.run(run.measured(ask())) == {"requests": 6}


def test_what_is_to_be_encoded_is_bfloat16_at_every_scale() -> None:
    if not has_bfloat16():
        with pytest.raises(StartupError, match="no kernels"):
            TINY.in_bfloat16()
        return
    for scale in (FULL, TINY):
        encodable = scale.in_bfloat16()
        assert encodable.config["torch_dtype"] == encodable.arguments["dtype"] == "bfloat16"
        held = [
            each.arguments["kv_cache_memory_bytes"] // each.token_bytes
            for each in (scale, encodable)
        ]
        assert held[0] == held[1], "the GPU holds as many tokens"


@pytest.mark.skipif(not has_bfloat16(), reason="no such KV on this processor")
@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="engines would start")
@pytest.mark.parametrize("name", [name for name in ROWS if name.endswith("-compress")])
def test_a_row_with_kv_encoded_wants_engines_that_can_encode_it(
    path: Path, tmp_path: Path, name: str
) -> None:
    """Without vLLM no engine starts; by then the row has said what it wants."""
    run = RowRun(tmp_path, time.monotonic() - 1, lambda _: None)
    run.begin_row(TINY, RowResults(path, name, "tiny"))

    async def work() -> None:
        try:
            await ROWS[name](run)
        finally:
            await run.clear_stage()

    with pytest.raises(StartupError):
        asyncio.run(work())
    assert run.scale.settings["compress"]
    assert run.scale.config["torch_dtype"] == "bfloat16"


def test_a_tier_without_a_cap_is_stopped_when_it_has_written_so_much() -> None:
    used, ended = [100], []

    async def fill() -> dict[str, int]:
        try:
            for _ in range(100):
                used[0] += 10
                await asyncio.sleep(0)
            await asyncio.sleep(300)
        finally:
            ended.append(used[0])
        return {"requests": 1}

    found = asyncio.run(cold._until_full(fill(), lambda: used[0], 500))
    assert found["failed"].startswith("it was stopped: 1000 bytes on the drive")
    assert ended, "and does not go on"


def test_a_tier_that_ends_in_time_says_what_it_has_written() -> None:
    used = [100]

    async def fill() -> dict[str, int]:
        used[0] += 50
        return {"requests": 1}

    found = asyncio.run(cold._until_full(fill(), lambda: used[0], 500))
    assert found == {"requests": 1, "disk_bytes": 50}


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
