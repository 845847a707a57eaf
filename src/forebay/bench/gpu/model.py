"""Models by their shape alone: speed does not depend on what the weights say."""

import json
import zlib
from pathlib import Path
from typing import Any, Final

_COMMON: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40_960,
    "vocab_size": 151_936,
}
QWEN3_8B: Final[dict[str, Any]] = {
    **_COMMON,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
# One KV head and blocks of 16 tokens: pages of 8 KiB.
SMALL_PAGES: Final[dict[str, Any]] = {
    **_COMMON,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "head_dim": 128,
}
TINY: Final[dict[str, Any]] = {
    **_COMMON,
    "torch_dtype": "float32",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def write(parent: Path, config: dict[str, Any]) -> str:
    """A model directory; the engine makes up its weights, the same every time.

    Its path stays the same, because vLLM's compile cache goes by it.
    """
    place = parent / f"forebay-model-{zlib.crc32(json.dumps(config).encode()):08x}"
    place.mkdir(mode=0o700, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    # What Forebay hashes to know the weights: these are made of the shape alone.
    (place / "made-up.safetensors").write_text(json.dumps(config), encoding="utf-8")
    return str(place)


def token_bytes(config: dict[str, Any], element_bytes: int) -> int:
    heads = config["num_key_value_heads"] * config["head_dim"]
    return 2 * int(heads) * int(config["num_hidden_layers"]) * element_bytes
