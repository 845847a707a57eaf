"""Models defined by their shape alone: speed does not depend on the values of weights."""

import json
import zlib
from pathlib import Path
from typing import Any, Final

from forebay.errors import StartupError

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
# DeepSeek's second "Lite" model, with the feed-forward of its first layer in all: no experts.
DEEPSEEK_V2_LITE: Final[dict[str, Any]] = {
    **_COMMON,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "torch_dtype": "bfloat16",
    "vocab_size": 102_400,
    "hidden_size": 2048,
    "intermediate_size": 10_944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 27,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "rope_theta": 1e4,
}
TINY_MLA: Final = {
    **DEEPSEEK_V2_LITE,
    "torch_dtype": "float32",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "first_k_dense_replace": 2,
}


def _with_windows(shape: dict[str, Any], window: int, full_every: int) -> dict[str, Any]:
    """The same with the layers of Gemma 3: every so many one of full attention, else windows."""
    kinds = ("full_attention", "sliding_attention")
    layers = range(1, shape["num_hidden_layers"] + 1)
    rope = {"rope_type": "default", "rope_theta": 1e6}
    return {
        **{
            name: value for name, value in shape.items() if name not in {"hidden_act", "rope_theta"}
        },
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": shape["head_dim"],
        "sliding_window": window,
        "layer_types": [kinds[bool(number % full_every)] for number in layers],
        "rope_parameters": dict(zip(kinds, (rope, {**rope, "rope_theta": 1e4}), strict=True)),
        "tie_word_embeddings": True,
    }


GEMMA3_4B: Final = _with_windows(
    {**_shape(2560, 10_240, 34, 8, 4, 256), "vocab_size": 262_208}, window=1024, full_every=6
)
TINY_WINDOWS: Final = _with_windows(
    {**TINY, "num_hidden_layers": 7}, window=200, full_every=3
)  # its windows fill two groups of vLLM's and half of one, as in the large one


def write(parent: Path, config: dict[str, Any]) -> str:
    """A model directory; the engine makes up its weights, the same every time.

    Its path stays the same, because vLLM's compile cache goes by it.
    """
    place = parent / f"forebay-model-{zlib.crc32(json.dumps(config).encode()):08x}"
    place.mkdir(mode=0o700, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(place)


def read(directory: str) -> dict[str, Any]:
    """What the configuration of a model says that rows must know; a StartupError if it does not."""
    try:
        found = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
        heads = found["num_attention_heads"]
        return {
            "head_dim": found["hidden_size"] // heads,
            "num_key_value_heads": heads,
            **found,
            "vocab_size": int(found["vocab_size"]),
            "max_position_embeddings": int(found["max_position_embeddings"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartupError(f"{directory} has no model that rows can run: {error}.") from None


def token_bytes(config: dict[str, Any]) -> int:
    """KV a token."""
    heads = config["num_key_value_heads"] * config["head_dim"]
    element_bytes = 4 if config["torch_dtype"] == "float32" else 2
    return 2 * int(heads) * int(config["num_hidden_layers"]) * element_bytes
