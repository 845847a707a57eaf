"""The planner's bytes per token are what vLLM allocates."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real.engine import Engine

from forebay.plan.model.config import shape_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "gqa": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "window": {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 256,
    },
    "mla": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_key_value_heads": 8,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
    },
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_block_has_the_planned_bytes(
    tmp_path: Path, kind: str, start_engine: Callable[..., Engine]
) -> None:
    config = {**COMMON, **MODELS[kind]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = start_engine(
        tmp_path,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=2,
        kv_cache_memory_bytes=32 << 20,
    )
    block_bytes, block_tokens = engine.do("block_size")
    assert shape_of(kind, "test", config).token_bytes * block_tokens == block_bytes
