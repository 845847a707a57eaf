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
    "max_position_embeddings": 40_960,
}


def _shape(  # noqa: PLR0917 - as a model's card lists them
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head_dim: int
) -> dict[str, Any]:
    return {
        **_COMMON,
        "torch_dtype": "bfloat16",
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


QWEN2_5_32B: Final = _shape(5120, 27_648, 64, 40, 8, 128)
QWEN3_8B: Final = _shape(4096, 12_288, 36, 32, 8, 128)
# One KV head and blocks of 16 tokens: pages of 8 KiB.
SMALL_PAGES: Final = _shape(2048, 6144, 48, 16, 1, 128)
TINY: Final = {**_shape(128, 256, 3, 4, 2, 32), "torch_dtype": "float32", "vocab_size": 2048}


def write(parent: Path, config: dict[str, Any]) -> str:
    """A model directory; the engine makes up its weights, the same every time.

    Its path stays the same, because vLLM's compile cache goes by it.
    """
    place = parent / f"forebay-model-{zlib.crc32(json.dumps(config).encode()):08x}"
    place.mkdir(mode=0o700, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(place)


def token_bytes(config: dict[str, Any]) -> int:
    """KV a token."""
    heads = config["num_key_value_heads"] * config["head_dim"]
    element_bytes = 4 if config["torch_dtype"] == "float32" else 2
    return 2 * int(heads) * int(config["num_hidden_layers"]) * element_bytes
