"""A few well-known models, as the fields of their `config.json` that decide the size of their KV.

They go through the same reader as a file. Weights are the bytes of the published checkpoint.
"""

from typing import Final, NamedTuple

from forebay.plan.model.config import Config


class KnownModel(NamedTuple):
    """A model that needs no file."""

    config: Config
    weights_bytes: int


def _grouped(  # noqa: PLR0917 - as a model's card lists them
    model_type: str, layers: int, heads: int, kv_heads: int, head_dim: int, context: int
) -> dict[str, object]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
    }


def _windowed(config: dict[str, object], window_tokens: int) -> dict[str, object]:
    return {**config, "sliding_window": window_tokens}


_DEEPSEEK_V3: Final[Config] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163_840,
    "torch_dtype": "bfloat16",
}
_QWEN3_NEXT: Final[Config] = {
    **_grouped("qwen3_next", 48, 16, 2, 256, 262_144),
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_GPT_OSS_20B: Final = _windowed(_grouped("gpt_oss", 24, 64, 8, 64, 131_072), 128)
_GPT_OSS_120B: Final = _windowed(_grouped("gpt_oss", 36, 64, 8, 64, 131_072), 128)
_GEMMA_3: Final = _windowed(_grouped("gemma3_text", 62, 32, 16, 128, 131_072), 1024)
_MISTRAL: Final = _windowed(_grouped("mistral", 32, 32, 8, 128, 32_768), 4096)

MODELS: Final[dict[str, KnownModel]] = {
    "Llama-3.1-8B": KnownModel(_grouped("llama", 32, 32, 8, 128, 131_072), 16_060_522_496),
    "Llama-3.1-70B": KnownModel(_grouped("llama", 80, 64, 8, 128, 131_072), 141_107_412_992),
    "Qwen2.5-32B": KnownModel(_grouped("qwen2", 64, 40, 8, 128, 131_072), 65_527_752_704),
    "Qwen3-8B": KnownModel(_grouped("qwen3", 36, 32, 8, 128, 40_960), 16_381_470_720),
    "Qwen3-30B-A3B": KnownModel(_grouped("qwen3_moe", 48, 32, 4, 128, 40_960), 61_064_245_248),
    "Qwen3-Next-80B-A3B": KnownModel(_QWEN3_NEXT, 162_700_000_000),
    "DeepSeek-V3": KnownModel(_DEEPSEEK_V3, 688_600_000_000),
    "gpt-oss-20b": KnownModel(_GPT_OSS_20B, 13_800_000_000),
    "gpt-oss-120b": KnownModel(_GPT_OSS_120B, 65_300_000_000),
    "Gemma-3-27B": KnownModel(_GEMMA_3, 54_900_000_000),
    "Mistral-7B-v0.1": KnownModel(_MISTRAL, 14_483_464_192),
}
