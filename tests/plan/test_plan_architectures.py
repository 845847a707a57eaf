"""What models of today keep, as vLLM's own specifications of their layers have it."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import main
from forebay.engines.vllm.kinds import KINDS
from forebay.errors import SettingsError
from forebay.plan.model.config import shape_of
from forebay.plan.model.shape import LayerKind
from forebay.plan.model.support import outlook

LATENT = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
# By name: the fields of the file, the kind in the table, and of each kind of layer: how many, what
# one keeps of a token in bytes, what it keeps of a sequence, and of how many tokens at most.
MODELS: dict[str, tuple[dict[str, Any], str, dict[str, tuple[int, int, int, int | None]]]] = {
    "Llama 4 Scout": (
        {
            "model_type": "llama4",
            "text_config": {
                "model_type": "llama4_text",
                "num_hidden_layers": 48,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "attention_chunk_size": 8192,
                "no_rope_layers": [],
            },
        },
        "ChunkedLocalAttentionSpec",
        {"full": (12, 4096, 0, None), "chunked": (36, 4096, 0, 8192)},
    ),
    "Gemma 4, heads of two sizes, the last layers without KV of their own": (
        {
            "model_type": "gemma4_text",
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "global_head_dim": 512,
            "sliding_window": 512,
            "num_kv_shared_layers": 4,
        },
        "SlidingWindowSpec",
        {"full": (1, 4096, 0, None), "sliding": (7, 2048, 0, 512)},
    ),
    "Gemma 4, as Transformers writes it": (
        {
            "model_type": "gemma4_unified_text",
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 1024,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "per_layer_config": {"2": {"head_dim": 512, "num_key_value_heads": 1}},
        },
        "SlidingWindowSpec",
        {"full": (1, 2048, 0, None), "sliding": (2, 4096, 0, 1024)},
    ),
    "DeepSeek-V3.2": (
        {
            **LATENT,
            "model_type": "deepseek_v32",
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "index_topk": 2048,
            "index_head_dim": 128,
        },
        "unequal layers",
        {"latent": (61, 1152, 0, None), "index": (61, 132, 0, None)},
    ),
    "GLM-5 with an indexer in every fourth layer": (
        {
            **LATENT,
            "model_type": "glm_moe_dsa",
            "num_hidden_layers": 10,
            "num_attention_heads": 64,
            "index_topk_freq": 4,
            "index_head_dim": 128,
        },
        "unequal layers",
        {"latent": (10, 1152, 0, None), "index": (4, 132, 0, None)},
    ),
    "an indexer by a pattern": (
        {
            **LATENT,
            "model_type": "glm_moe_dsa",
            "num_hidden_layers": 4,
            "num_attention_heads": 64,
            "index_topk_pattern": "FSSF",
        },
        "unequal layers",
        {"latent": (4, 1152, 0, None), "index": (2, 132, 0, None)},
    ),
    "MiniMax-M2": (
        {
            "model_type": "minimax_m2",
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "hidden_size": 3072,
        },
        "FullAttentionSpec",
        {"full": (62, 4096, 0, None)},
    ),
    "MiniMax-M3": (
        {
            "model_type": "minimax_m3_vl",
            "text_config": {
                "model_type": "minimax_m3_vl_text",
                "num_hidden_layers": 5,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "sparse_attention_config": {
                    "sparse_index_dim": 128,
                    "sparse_attention_freq": [0, 0, 0, 1, 1],
                },
            },
        },
        "unequal layers",
        {"full": (5, 2048, 0, None), "index": (2, 256, 0, None)},
    ),
    "Qwen3.5": (
        {
            "model_type": "qwen3_5",
            "text_config": {
                "model_type": "qwen3_5_text",
                "num_hidden_layers": 32,
                "num_attention_heads": 16,
                "mamba_ssm_dtype": "float32",
            },
        },
        "states",
        {
            "full": (8, 4096, 0, None),
            "linear": (24, 0, 4 * 32 * 128 * 128 + 2 * 3 * 8192, None),
        },
    ),
    "Kimi-Linear": (
        {
            **LATENT,
            "model_type": "kimi_linear",
            "num_hidden_layers": 4,
            "num_attention_heads": 32,
            "linear_attn_config": {
                "kda_layers": [1, 2, 3],
                "full_attn_layers": [4],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        },
        "states",
        {
            "latent": (1, 1152, 0, None),
            "linear": (3, 0, 4 * 32 * 128 * 128 + 2 * 3 * 3 * 4096, None),
        },
    ),
    "Nemotron-H": (
        {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": "M-M*-ME",
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
        },
        "states",
        {
            "full": (1, 4096, 0, None),
            "linear": (3, 0, 4 * 128 * 64 * 128 + 2 * 3 * (8192 + 2048), None),
        },
    ),
    "Nemotron-H, as Transformers writes it": (
        {
            "model_type": "nemotron_h",
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "num_attention_heads": 32,
            "mamba_ssm_cache_dtype": "bfloat16",
        },
        "states",
        {
            "full": (1, 4096, 0, None),
            "linear": (1, 0, 2 * 128 * 64 * 128 + 2 * 3 * (8192 + 2048), None),
        },
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_keeps(name: str) -> None:
    fields, kind, wanted = MODELS[name]
    shape = shape_of(name, "config.json", fields)
    found = {
        str(group.kind): (
            group.layers,
            shape.group_bytes(group, 1) // group.layers - group.state_bytes,
            group.state_bytes,
            group.window_tokens,
        )
        for group in shape.groups
    }
    assert found == wanted
    assert outlook(shape).kind == KINDS[kind]
    assert shape.token_bytes == sum(layers * size for layers, size, _, _ in wanted.values())
    assert shape.rank(2).sequence_bytes(100) <= shape.sequence_bytes(100)


@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_asked_for(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields, kind, wanted = MODELS[name]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(fields))
    assert main(["plan", "kv", str(config), "--tokens", "10k"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert KINDS[kind].what in said
    for layers_kind, (layers, *_) in wanted.items():
        assert f"{layers} {layers_kind} layers: " in said


def test_llama_4_without_chunks_is_full() -> None:
    fields, *_ = MODELS["Llama 4 Scout"]
    text = {**fields["text_config"], "attention_chunk_size": None}
    assert [group.kind for group in shape_of("m", "m", text).groups] == [LayerKind.FULL]
    by_layer = {**fields["text_config"], "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]}
    assert [group.layers for group in shape_of("m", "m", by_layer).groups] == [1, 2]


def test_an_indexer_has_its_own_precision() -> None:
    fields, *_ = MODELS["DeepSeek-V3.2"]
    assert shape_of("m", "m", fields, bits=8).token_bytes == 61 * (576 + 132)
    with pytest.raises(SettingsError, match="layers with indexers"):
        shape_of("m", "m", fields).encoded()


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("Nemotron-H", {"hybrid_override_pattern": "M?"}, "hybrid_override_pattern"),
        ("Nemotron-H", {"hybrid_override_pattern": 7}, "num_hidden_layers"),
        ("Nemotron-H", {"hybrid_override_pattern": "--"}, "keeps anything"),
        ("Nemotron-H", {"mamba_ssm_cache_dtype": "float8"}, "mamba_ssm_cache_dtype"),
        ("Kimi-Linear", {"linear_attn_config": None}, "linear_attn_config"),
        ("Kimi-Linear", {"linear_attn_config": {"kda_layers": [9]}}, "full_attn_layers"),
        ("Gemma 4, as Transformers writes it", {"per_layer_config": {"2": 7}}, "per_layer_config"),
        ("DeepSeek-V3.2", {"index_head_dim": -1}, "index_head_dim"),
        ("DeepSeek-V3.2", {"index_topk_pattern": 7}, "index_topk_pattern"),
    ],
)
def test_a_field_that_cannot_be_meant(name: str, change: dict[str, Any], named: str) -> None:
    fields, *_ = MODELS[name]
    with pytest.raises(SettingsError, match=named):
        shape_of("m", "config.json", {**fields, **change})
