"""Bytes of KV: the figures that other sources publish, and every kind of layer."""

import json
from pathlib import Path

import pytest

from forebay.cli.main import build_parser, main
from forebay.errors import SettingsError
from forebay.plan.capacity import GpuMachine, capacity, kv_need
from forebay.plan.model.config import shape_of
from forebay.plan.model.known import MODELS
from forebay.plan.model.shape import LayerKind, Shape, model_dim_shape, plain_shape
from forebay.quantity import parse_count

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "torch_dtype": "bfloat16",
}


def known(name: str, bits: int | None = None) -> Shape:
    return shape_of(name, name, MODELS[name].config, bits)


def read(**fields: object) -> Shape:
    return shape_of("test", "config.json", {**LLAMA, **fields})


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [
        ("Llama-3.1-8B", 131_072),
        ("Llama-3.1-70B", 327_680),
        ("Qwen2.5-32B", 262_144),
        ("Qwen3-8B", 147_456),
        ("Qwen3-30B-A3B", 98_304),
        ("DeepSeek-V3", 70_272),
        ("gpt-oss-20b", 49_152),
        ("gpt-oss-120b", 73_728),
        ("Llama-3.2-1B", 32_768),
        ("Llama-3.1-405B", 516_096),
        ("Qwen2.5-7B", 57_344),
        ("Qwen3-0.6B", 114_688),
        ("Qwen3-32B", 262_144),
        ("Qwen3-235B-A22B", 192_512),
        ("DeepSeek-V2-Lite", 31_104),
        ("Gemma-3-1B", 26_624),
        ("Gemma-3-12B", 393_216),
        ("Mistral-7B-v0.3", 131_072),
        ("Phi-4", 204_800),
    ],
)
def test_bytes_a_token_at_16_bit(name: str, token_bytes: int) -> None:
    assert known(name).token_bytes == token_bytes
    assert known(name, bits=8).token_bytes == token_bytes // 2


def test_qwen_32b_at_792_000_tokens() -> None:
    need = kv_need(known("Qwen2.5-32B"), 1, 792_000)
    assert f"{need.total_bytes / 2**30:.2f}" == "193.36"
    assert f"{need.classic_total_bytes / 2**30:.2f}" == "966.80"
    assert need.classic_factor == 5.0
    assert need.groups[0].formula.endswith("2 x 1 x 792000 x 64 x 8 x 128 x 16/8")


@pytest.mark.parametrize(
    ("text", "count"),
    [("32768", 32_768), ("32k", 32_000), ("32K", 32_000), ("32Ki", 32_768), ("0.6M", 600_000)],
)
def test_tokens_as_people_write_them(
    text: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_count(text) == count
    for words in (
        ("kv", "Qwen3-8B", "--tokens", text),
        ("breakeven", "Qwen3-8B", "--prefill-tps", text, "--tokens", text),
        ("remote", "Qwen3-8B", "--prefill-tps", text, "--prompt-tokens", text),
        ("pool", "Qwen3-8B", "--users", text, "--context", text),
        ("cost", "--clients", text),
        ("gpus", "--target-tps", text, "--measured-tps", text, "--measured-gpus", "1"),
    ):
        assert main(["plan", *words]) == 0
        assert f"{count:,}" in capsys.readouterr().out


def test_a_benchmark_s_tokens_likewise() -> None:
    words = ["--prompt-tokens", "32k", "--workload", "stateless"]
    parsed = build_parser().parse_args(["bench", "serve", "--url", "http://h", *words])
    assert parsed.prompt_tokens == 32_000


def test_mha_gqa_and_mqa() -> None:
    assert read(num_key_value_heads=8).token_bytes == 2 * 4 * 8 * 32 * 2
    assert read(num_key_value_heads=2).token_bytes == 2 * 4 * 2 * 32 * 2
    assert read(num_key_value_heads=1).token_bytes == 2 * 4 * 1 * 32 * 2
    assert read(num_key_value_heads=1).classic_token_bytes == 2 * 4 * 8 * 32 * 2


def test_heads_that_a_file_leaves_out_are_those_of_transformers() -> None:
    without = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    every_head = 2 * 4 * 8 * 32 * 2
    assert shape_of("m", "m", without).token_bytes == every_head
    assert shape_of("m", "m", {**LLAMA, "num_key_value_heads": None}).token_bytes == every_head
    # Mistral's configuration class has a number of its own, which null does not bring back.
    mistral = {**without, "model_type": "mistral", "num_attention_heads": 16, "head_dim": 32}
    assert shape_of("m", "m", mistral).token_bytes == 2 * 4 * 8 * 32 * 2
    null = {**mistral, "num_key_value_heads": None}
    assert shape_of("m", "m", null).token_bytes == 2 * 4 * 16 * 32 * 2


def test_models_from_before_grouping() -> None:
    config = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}
    assert shape_of("gpt2", "config.json", config).token_bytes == 2 * 12 * 768 * 2
    config |= {"model_type": "gpt_bigcode"}
    assert shape_of("starcoder", "config.json", config).token_bytes == 2 * 12 * 64 * 2


def test_latent_attention_keeps_one_vector_and_copies_it_on_every_rank() -> None:
    shape = known("DeepSeek-V3")
    assert [group.kind for group in shape.groups] == [LayerKind.LATENT]
    assert shape.token_bytes == (512 + 64) * 2 * 61
    assert shape.classic_token_bytes == 61 * 128 * (128 + 64 + 128) * 2
    assert shape.rank(8).token_bytes == shape.token_bytes


def test_a_window_bounds_what_is_kept() -> None:
    shape = known("Mistral-7B-v0.1")
    assert shape.sequence_bytes(4096) == shape.sequence_bytes(32_768) == 4096 * 131_072
    assert shape.growing_token_bytes == 0


def test_a_hybrid_grows_in_its_full_layers_only() -> None:
    shape = known("gpt-oss-20b")
    assert shape.growing_token_bytes == 24_576
    assert shape.sequence_bytes(1000) == 1000 * 24_576 + 128 * 24_576
    gemma = known("Gemma-3-27B")
    assert [(group.kind, group.layers) for group in gemma.groups] == [
        (LayerKind.FULL, 10),
        (LayerKind.SLIDING, 52),
    ]


def test_layer_types_say_it_best() -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention", "full_attention"]
    shape = read(layer_types=kinds, sliding_window=64)
    assert [(g.kind, g.layers, g.window_tokens) for g in shape.groups] == [
        (LayerKind.FULL, 3, None),
        (LayerKind.SLIDING, 1, 64),
    ]


def test_a_window_that_is_not_used_is_none() -> None:
    window = {"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 1}
    assert [g.kind for g in read(**window).groups] == [LayerKind.FULL]
    used = read(**window, use_sliding_window=True)
    assert [(g.kind, g.layers) for g in used.groups] == [
        (LayerKind.FULL, 1),
        (LayerKind.SLIDING, 3),
    ]
    assert [g.kind for g in read(model_type="mistral", sliding_window=None).groups] == [
        LayerKind.FULL
    ]


def test_recurrent_layers_keep_a_state_whatever_the_length() -> None:
    shape = known("Qwen3-Next-80B-A3B")
    state_bytes = 36 * 2 * (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 3)
    assert shape.token_bytes == shape.growing_token_bytes == 12 * 2 * 2 * 256 * 2
    assert shape.sequence_bytes(1000) == 1000 * shape.token_bytes + state_bytes
    assert shape.sequence_bytes(0) == 0


def test_a_multimodal_model_nests_its_language_model() -> None:
    text = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "hidden_size": 3840,
        "sliding_window": 1024,
    }
    config = {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}
    # head_dim is 256 by the model's class, not hidden_size / heads.
    assert shape_of("gemma", "config.json", config).token_bytes == 2 * 48 * 8 * 256 * 2


def test_tensor_parallel_ranks_split_heads_and_copy_the_last_one() -> None:
    shape = known("Llama-3.1-8B")
    assert shape.rank(4).token_bytes == 131_072 // 4
    assert shape.rank(8).token_bytes == shape.rank(16).token_bytes == 131_072 // 8
    with pytest.raises(SettingsError, match="tp 3"):
        shape.rank(3)
    with pytest.raises(SettingsError, match="tp 4 neither divides"):
        read(num_attention_heads=24, num_key_value_heads=6, head_dim=8).rank(4)


def test_without_a_model() -> None:
    assert plain_shape(32, 8, 128, 16).token_bytes == 131_072
    assert model_dim_shape(32, 1024, 16).token_bytes == 131_072
    assert kv_need(plain_shape(2, 3, 5, 4), 7, 11).total_bytes == 2 * 7 * 11 * 2 * 3 * 5 * 4 // 8


def test_what_fits_on_gpus() -> None:
    machine = GpuMachine(
        gpus=2,
        gpu_memory_bytes=80 << 30,
        weights_bytes=16 << 30,
        pool_bytes=1 << 40,
        tp=1,
        utilization=0.5,
        reserve_bytes=8 << 30,
    )
    found = capacity(known("Llama-3.1-8B"), machine, 8192)
    assert found.context_bytes == found.pool_context_bytes == 1 << 30
    assert found.room_bytes == 2 * (16 << 30)
    assert (found.users_running, found.users_kept) == (32, 32 + 1024)
    assert found.longest_context_tokens == 131_072


def test_the_longest_context_is_the_last_that_fits() -> None:
    shape = plain_shape(1, 1, 1, 16)  # 4 bytes a token
    machine = GpuMachine(
        gpus=1,
        gpu_memory_bytes=1003,
        weights_bytes=0,
        pool_bytes=0,
        tp=1,
        utilization=1.0,
        reserve_bytes=0,
    )
    assert capacity(shape, machine, 1).longest_context_tokens == 250


def test_weights_that_do_not_fit_leave_no_room() -> None:
    machine = GpuMachine(
        gpus=1, gpu_memory_bytes=80 << 30, weights_bytes=80 << 30, pool_bytes=0, tp=1
    )
    found = capacity(known("Llama-3.1-8B"), machine, 8192)
    assert (found.room_bytes, found.longest_context_tokens, found.users_kept) == (0, 0, 0)


def test_a_directory_and_its_config_are_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model-1.safetensors").write_bytes(bytes(1000))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(234))
    fits = ["--gpu-memory", "4GiB", "--json"]
    assert main(["plan", "kv", str(tmp_path), *fits]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["token_bytes"] == 2 * 4 * 2 * 32 * 2
    assert answer["capacity"]["weights_bytes"] == 1234
    config = str(tmp_path / "config.json")
    assert main(["plan", "kv", config, *fits, "--weights", "1GiB"]) == 0
    assert json.loads(capsys.readouterr().out)["capacity"]["weights_bytes"] == 1 << 30
    assert main(["plan", "kv", config, *fits]) == 2
    assert "weights" in capsys.readouterr().err


def test_a_name_need_not_be_printable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "[bold]\udcff:smile:"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(LLAMA))
    assert main(["plan", "kv", str(directory)]) == 0
    assert r"[bold]\udcff:smile:" in capsys.readouterr().out
