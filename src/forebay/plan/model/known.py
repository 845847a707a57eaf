"""Models that are widely served, as the fields of their `config.json` that decide the size of KV.

They are read as a file would be. Weights are the bytes of the published checkpoint, if known. A
model has a short name, and the names that it has on a hub.
"""

from typing import Final, NamedTuple

from forebay.plan.model.reader import Config


class KnownModel(NamedTuple):
    """A model that needs no file."""

    config: Config
    weights_bytes: int | None = None  # None: must be given when it matters


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


def _latent(model_type: str, layers: int, heads: int, context: int) -> Config:
    """A model with MLA, of the widths that all of them have."""
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": context,
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
_GEMMA_3_1B: Final = _windowed(_grouped("gemma3_text", 26, 4, 1, 256, 32_768), 512)
_GEMMA_3_4B: Final = _windowed(_grouped("gemma3_text", 34, 8, 4, 256, 131_072), 1024)
_GEMMA_3_12B: Final = _windowed(_grouped("gemma3_text", 48, 16, 8, 256, 131_072), 1024)
_GEMMA_3_27B: Final = _windowed(_grouped("gemma3_text", 62, 32, 16, 128, 131_072), 1024)
_MISTRAL: Final = _windowed(_grouped("mistral", 32, 32, 8, 128, 32_768), 4096)

MODELS: Final[dict[str, KnownModel]] = {
    "Llama-3.1-8B": KnownModel(_grouped("llama", 32, 32, 8, 128, 131_072), 16_060_522_496),
    "Llama-3.1-70B": KnownModel(_grouped("llama", 80, 64, 8, 128, 131_072), 141_107_412_992),
    "Llama-3.1-405B": KnownModel(_grouped("llama", 126, 128, 8, 128, 131_072), 811_706_777_600),
    "Llama-3.2-1B": KnownModel(_grouped("llama", 16, 32, 8, 64, 131_072), 2_471_628_800),
    "Llama-3.2-3B": KnownModel(_grouped("llama", 28, 24, 8, 128, 131_072), 6_425_499_648),
    "Qwen2.5-7B": KnownModel(_grouped("qwen2", 28, 28, 4, 128, 131_072)),
    "Qwen2.5-14B": KnownModel(_grouped("qwen2", 48, 40, 8, 128, 131_072)),
    "Qwen2.5-32B": KnownModel(_grouped("qwen2", 64, 40, 8, 128, 131_072), 65_527_752_704),
    "Qwen2.5-72B": KnownModel(_grouped("qwen2", 80, 64, 8, 128, 131_072)),
    "Qwen3-0.6B": KnownModel(_grouped("qwen3", 28, 16, 8, 128, 40_960)),
    "Qwen3-1.7B": KnownModel(_grouped("qwen3", 28, 16, 8, 128, 40_960)),
    "Qwen3-4B": KnownModel(_grouped("qwen3", 36, 32, 8, 128, 40_960)),
    "Qwen3-8B": KnownModel(_grouped("qwen3", 36, 32, 8, 128, 40_960), 16_381_470_720),
    "Qwen3-14B": KnownModel(_grouped("qwen3", 40, 40, 8, 128, 40_960)),
    "Qwen3-32B": KnownModel(_grouped("qwen3", 64, 64, 8, 128, 40_960)),
    "Qwen3-30B-A3B": KnownModel(_grouped("qwen3_moe", 48, 32, 4, 128, 40_960), 61_064_245_248),
    "Qwen3-235B-A22B": KnownModel(_grouped("qwen3_moe", 94, 64, 4, 128, 40_960)),
    "Qwen3-Next-80B-A3B": KnownModel(_QWEN3_NEXT, 162_700_000_000),
    "DeepSeek-V2-Lite": KnownModel(_latent("deepseek_v2", 27, 16, 163_840)),
    "DeepSeek-V3": KnownModel(_latent("deepseek_v3", 61, 128, 163_840), 688_600_000_000),
    "Kimi-K2": KnownModel(_latent("kimi_k2", 61, 64, 131_072)),
    "gpt-oss-20b": KnownModel(_GPT_OSS_20B, 13_800_000_000),
    "gpt-oss-120b": KnownModel(_GPT_OSS_120B, 65_300_000_000),
    "Gemma-3-1B": KnownModel(_GEMMA_3_1B),
    "Gemma-3-4B": KnownModel(_GEMMA_3_4B),
    "Gemma-3-12B": KnownModel(_GEMMA_3_12B),
    "Gemma-3-27B": KnownModel(_GEMMA_3_27B, 54_900_000_000),
    "Mistral-7B-v0.1": KnownModel(_MISTRAL, 14_483_464_192),
    "Mistral-7B-v0.3": KnownModel(_grouped("mistral", 32, 32, 8, 128, 32_768)),
    "Mistral-Small-24B": KnownModel(_grouped("mistral", 40, 32, 8, 128, 32_768)),
    "Mixtral-8x7B": KnownModel(_grouped("mixtral", 32, 32, 8, 128, 32_768)),
    "Mixtral-8x22B": KnownModel(_grouped("mixtral", 56, 48, 8, 128, 65_536)),
    "Phi-4": KnownModel(_grouped("phi3", 40, 40, 10, 128, 16_384)),
}

# Their names on a hub. Models of the same shape with another context length are in _HUB_CONTEXTS.
_HUB_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "Llama-3.1-8B": (
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3.1-8B",
        "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    ),
    "Llama-3.1-70B": (
        "meta-llama/Llama-3.1-70B",
        "meta-llama/Llama-3.1-70B-Instruct",
        "meta-llama/Meta-Llama-3.1-70B",
        "meta-llama/Meta-Llama-3.1-70B-Instruct",
        "meta-llama/Llama-3.3-70B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    ),
    "Llama-3.1-405B": (
        "meta-llama/Llama-3.1-405B",
        "meta-llama/Llama-3.1-405B-Instruct",
    ),
    "Llama-3.2-1B": (
        "meta-llama/Llama-3.2-1B",
        "meta-llama/Llama-3.2-1B-Instruct",
    ),
    "Llama-3.2-3B": (
        "meta-llama/Llama-3.2-3B",
        "meta-llama/Llama-3.2-3B-Instruct",
    ),
    "Qwen2.5-7B": ("Qwen/Qwen2.5-7B",),
    "Qwen2.5-14B": ("Qwen/Qwen2.5-14B",),
    "Qwen2.5-32B": ("Qwen/Qwen2.5-32B",),
    "Qwen2.5-72B": ("Qwen/Qwen2.5-72B",),
    "Qwen3-0.6B": ("Qwen/Qwen3-0.6B",),
    "Qwen3-1.7B": ("Qwen/Qwen3-1.7B",),
    "Qwen3-4B": ("Qwen/Qwen3-4B",),
    "Qwen3-8B": ("Qwen/Qwen3-8B",),
    "Qwen3-14B": ("Qwen/Qwen3-14B",),
    "Qwen3-32B": ("Qwen/Qwen3-32B",),
    "Qwen3-30B-A3B": ("Qwen/Qwen3-30B-A3B",),
    "Qwen3-235B-A22B": ("Qwen/Qwen3-235B-A22B",),
    "Qwen3-Next-80B-A3B": (
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "Qwen/Qwen3-Next-80B-A3B-Thinking",
    ),
    "DeepSeek-V2-Lite": (
        "deepseek-ai/DeepSeek-V2-Lite",
        "deepseek-ai/DeepSeek-V2-Lite-Chat",
    ),
    "DeepSeek-V3": (
        "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/DeepSeek-V3-0324",
        "deepseek-ai/DeepSeek-V3.1",
        "deepseek-ai/DeepSeek-R1",
        "deepseek-ai/DeepSeek-R1-0528",
    ),
    "Kimi-K2": ("moonshotai/Kimi-K2-Instruct",),
    "gpt-oss-20b": ("openai/gpt-oss-20b",),
    "gpt-oss-120b": ("openai/gpt-oss-120b",),
    "Gemma-3-1B": (
        "google/gemma-3-1b-it",
        "google/gemma-3-1b-pt",
    ),
    "Gemma-3-4B": (
        "google/gemma-3-4b-it",
        "google/gemma-3-4b-pt",
    ),
    "Gemma-3-12B": (
        "google/gemma-3-12b-it",
        "google/gemma-3-12b-pt",
    ),
    "Gemma-3-27B": (
        "google/gemma-3-27b-it",
        "google/gemma-3-27b-pt",
    ),
    "Mistral-7B-v0.1": (
        "mistralai/Mistral-7B-v0.1",
        "mistralai/Mistral-7B-Instruct-v0.1",
    ),
    "Mistral-7B-v0.3": (
        "mistralai/Mistral-7B-v0.3",
        "mistralai/Mistral-7B-Instruct-v0.3",
        "mistralai/Mistral-7B-Instruct-v0.2",
    ),
    "Mistral-Small-24B": (
        "mistralai/Mistral-Small-24B-Base-2501",
        "mistralai/Mistral-Small-24B-Instruct-2501",
    ),
    "Mixtral-8x7B": (
        "mistralai/Mixtral-8x7B-v0.1",
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
    ),
    "Mixtral-8x22B": (
        "mistralai/Mixtral-8x22B-v0.1",
        "mistralai/Mixtral-8x22B-Instruct-v0.1",
    ),
    "Phi-4": ("microsoft/phi-4",),
}
_HUB_CONTEXTS: Final[dict[int, dict[str, tuple[str, ...]]]] = {
    32_768: {
        "Qwen2.5-7B": ("Qwen/Qwen2.5-7B-Instruct",),
        "Qwen2.5-14B": ("Qwen/Qwen2.5-14B-Instruct",),
        "Qwen2.5-32B": ("Qwen/Qwen2.5-32B-Instruct",),
        "Qwen2.5-72B": ("Qwen/Qwen2.5-72B-Instruct",),
    },
    262_144: {
        "Qwen3-4B": (
            "Qwen/Qwen3-4B-Instruct-2507",
            "Qwen/Qwen3-4B-Thinking-2507",
        ),
        "Qwen3-30B-A3B": (
            "Qwen/Qwen3-30B-A3B-Instruct-2507",
            "Qwen/Qwen3-30B-A3B-Thinking-2507",
        ),
        "Qwen3-235B-A22B": (
            "Qwen/Qwen3-235B-A22B-Instruct-2507",
            "Qwen/Qwen3-235B-A22B-Thinking-2507",
        ),
    },
}


def _hub_models() -> dict[str, KnownModel]:
    found = {hub: MODELS[name] for name, hubs in _HUB_NAMES.items() for hub in hubs}
    for context, families in _HUB_CONTEXTS.items():
        for name, hubs in families.items():
            config = {**MODELS[name].config, "max_position_embeddings": context}
            found |= dict.fromkeys(hubs, MODELS[name]._replace(config=config))
    return found


HUB: Final = _hub_models()


def known_model(name: str) -> tuple[str, KnownModel] | None:
    """Find a model by its short name or its name on a hub, ignoring case; with the exact name."""
    for table in (MODELS, HUB):
        for known, model in table.items():
            if known.lower() == name.lower():
                return known, model
    return None
