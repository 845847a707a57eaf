"""From a model's `config.json` to its shape.

Only architectures whose cache is known are read: a wrong guess could cause a wrong purchase. A
missing field is an error that names it, unless the architecture's own default is a fixed number
(these are in the tables below, as in the model's configuration class in Transformers).
"""

from collections.abc import Mapping
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.model.layers import count_of, kinds_of
from forebay.plan.model.reader import ConfigReader
from forebay.plan.model.recurrent import recurrent_group
from forebay.plan.model.shape import LAYERS_MAX, VALUES_MAX, LayerGroup, LayerKind, Shape

# K and V for each KV head, whose number is `num_key_value_heads`.
_GROUPED: Final = frozenset(
    {
        "cohere",
        "cohere2",
        "ernie4_5",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "granitemoe",
        "llama",
        "llama4_text",
        "minimax_m2",
        "minimax_m3_text",
        "mistral",
        "mixtral",
        "nemotron_h",
        "olmo2",
        "olmoe",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
# Older ones, without grouping: one K and V for each attention head, or one for all of them.
_UNGROUPED: Final = frozenset({"gpt2", "gpt_bigcode", "gpt_neox", "gptj", "opt", "phi"})
_SAME: Final = {"gemma4_unified_text": "gemma4_text", "minimax_m3_vl_text": "minimax_m3_text"}
# One compressed latent per token and layer.
_LATENT: Final = frozenset(
    {
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "kimi_k2",
        "kimi_linear",
    }
)
# Those of them with an indexer beside the latent: one key of fewer numbers, with its scales.
_INDEXED: Final = frozenset({"deepseek_v32", "glm_moe_dsa"})
_SCALED: Final = 128  # numbers of 8 bits that have a scale of 4 bytes

# The head dimension if the file leaves it out and it is not hidden_size / num_attention_heads.
_HEAD_DIM: Final = {
    "gemma": 256,
    "gemma2": 256,
    "gemma3_text": 256,
    "gemma4_text": 256,
    "gpt_oss": 64,
    "llama4_text": 128,
    "minimax_m2": 128,
    "minimax_m3_text": 128,
    "nemotron_h": 128,
    "qwen3": 128,
    "qwen3_5_moe_text": 256,
    "qwen3_5_text": 256,
    "qwen3_next": 256,
}
# KV heads if the file leaves them out; for other architectures, or if it says null, each attention
# head has its own K and V.
_KV_HEADS: Final = {
    "ernie4_5": 2,
    "gemma": 16,
    "gemma2": 4,
    "gemma3_text": 4,
    "gemma4_text": 4,
    "glm4": 2,
    "glm4_moe": 8,
    "gpt_oss": 8,
    "llama4_text": 8,
    "minimax_m2": 8,
    "minimax_m3_text": 4,
    "mistral": 8,
    "mixtral": 8,
    "nemotron_h": 8,
    "phimoe": 8,
    "qwen2": 32,
    "qwen2_moe": 16,
    "qwen3": 32,
    "qwen3_5_moe_text": 2,
    "qwen3_5_text": 4,
    "qwen3_moe": 4,
    "qwen3_next": 2,
    "seed_oss": 8,
    "smollm3": 4,
    "stablelm": 32,
    "starcoder2": 2,
}
_CHUNK: Final = 8192  # tokens, for Llama 4 if the file leaves it out
_DTYPE_BITS: Final = {
    "bfloat16": 16,
    "float16": 16,
    "float32": 16,  # engines serve such a checkpoint in half precision unless told otherwise
}
KV_BITS: Final = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
}
WINDOW_MAX: Final = 10**9


def shape_of(name: str, source: str, config: object, bits: int | None = None) -> Shape:
    """The shape that a parsed `config.json` describes; `bits` overrides the size of a number."""
    if not isinstance(config, Mapping):
        raise SettingsError(f"{source} is not a model configuration: it holds no JSON object.")
    inner = config.get("text_config")
    # A multimodal model nests its language model's fields; the precision may be outside them.
    fields = {**config, **inner} if isinstance(inner, Mapping) else config
    reader = ConfigReader(source, fields)
    model_type = reader.text("model_type")
    model_type = _SAME.get(model_type, model_type)
    layers = count_of(reader, model_type)
    heads = reader.whole("num_attention_heads")
    if model_type in _LATENT:
        groups, classic_values = _latent(reader, model_type, layers, heads)
    elif model_type in _GROUPED or model_type in _UNGROUPED:
        groups, classic_values = _attention(reader, model_type, layers, heads)
    else:
        known = ", ".join(sorted(_GROUPED | _UNGROUPED | _LATENT))
        raise SettingsError(
            f"model_type {model_type!r:.40} in {source} is not a known architecture; known are"
            f" {known}; for another give --layers, --heads and --head-dim."
        )
    return Shape(
        name=name,
        groups=groups,
        attention_heads=heads,
        classic_values=classic_values,
        bits=_model_bits(reader) if bits is None else bits,
        context_tokens_max=_context_tokens(reader),
    )


def _latent(
    reader: ConfigReader, model_type: str, layers: int, heads: int
) -> tuple[tuple[LayerGroup, ...], int]:
    rope = reader.whole("qk_rope_head_dim")
    width = reader.whole("kv_lora_rank") + rope
    head_values = reader.whole("qk_nope_head_dim") + rope + reader.whole("v_head_dim")
    has_states = model_type == "kimi_linear"
    kinds = kinds_of(reader, model_type, layers) if has_states else [LayerKind.LATENT] * layers
    latent = kinds.count(LayerKind.LATENT)
    groups = [LayerGroup(LayerKind.LATENT, latent, heads=1, head_values=width)]
    if count := kinds.count(LayerKind.LINEAR):
        groups.append(recurrent_group(reader, model_type, count))
    if model_type in _INDEXED and (count := _indexed_layers(reader, layers)):
        width = reader.whole("index_head_dim", 128, most=10**4)
        width += width // _SCALED * 4
        groups.append(LayerGroup(LayerKind.INDEX, count, heads=1, head_values=width, bits=8))
    return tuple(groups), latent * heads * head_values


def _indexed_layers(reader: ConfigReader, layers: int) -> int:
    """How many layers have an indexer; the others use the result of the one before."""
    pattern = reader.fields.get("index_topk_pattern")
    if pattern is not None:
        letters = "".join(map(str, pattern)) if isinstance(pattern, list) else pattern
        if not isinstance(letters, str):
            raise SettingsError(f"index_topk_pattern in {reader.source} must be of letters.")
        return layers - letters[:layers].count("S")
    every = reader.whole("index_topk_freq", 1, most=LAYERS_MAX)
    first = reader.whole("index_skip_topk_offset", 2, least=0, most=LAYERS_MAX)
    return sum(max(layer - first + 1, 0) % every == 0 for layer in range(layers))


def _attention(
    reader: ConfigReader, model_type: str, layers: int, heads: int
) -> tuple[tuple[LayerGroup, ...], int]:
    kinds = kinds_of(reader, model_type, layers)
    sizes: dict[tuple[LayerKind, int, int], int] = {}
    base = _head_dim(reader, model_type, heads), _kv_heads(reader, model_type, heads)
    for layer, kind in enumerate(kinds):
        if kind is not None and kind is not LayerKind.LINEAR:
            size = _own_size(reader, kind, layer, base) if model_type == "gemma4_text" else base
            sizes[kind, *size] = sizes.get((kind, *size), 0) + 1
    groups = []
    for (kind, head_dim, kv_heads), count in sorted(sizes.items(), key=_full_first):
        window = _window(reader, kind)
        groups.append(LayerGroup(kind, count, kv_heads, 2 * head_dim, window))
    if count := kinds.count(LayerKind.LINEAR):
        groups.append(recurrent_group(reader, model_type, count))
    if model_type == "minimax_m3_text" and (index := _minimax_index(reader, layers)):
        groups.append(index)
    if not groups:
        raise SettingsError(f"No layer of {reader.source} keeps anything of a token.")
    # Recurrent layers are no attention layers: the classic estimate leaves them out.
    classic = sum(count * head_dim for (_, head_dim, _), count in sizes.items())
    return tuple(groups), 2 * heads * classic


def _full_first(size: tuple[tuple[LayerKind, int, int], int]) -> tuple[bool, tuple[str, int, int]]:
    return size[0][0] is not LayerKind.FULL, size[0]


def _window(reader: ConfigReader, kind: LayerKind) -> int | None:
    """How many tokens a layer of this kind keeps at most; None: all."""
    if kind is LayerKind.SLIDING:
        return reader.whole("sliding_window", most=WINDOW_MAX)
    if kind is LayerKind.CHUNKED:
        return reader.whole("attention_chunk_size", _CHUNK, most=WINDOW_MAX)
    return None


def _own_size(
    reader: ConfigReader, kind: LayerKind, layer: int, base: tuple[int, int]
) -> tuple[int, int]:
    """Width and number of heads of a layer of Gemma 4, whose full layers differ from others."""
    told = reader.fields.get("per_layer_config")
    if isinstance(told, Mapping):
        inner = reader.inner("per_layer_config")
        if told.get(str(layer)) is None:
            return base
        inner = inner.inner(str(layer))
        return inner.whole("head_dim", base[0]), inner.whole("num_key_value_heads", base[1])
    if kind is not LayerKind.FULL:
        return base
    width = reader.whole("global_head_dim", 512, most=VALUES_MAX // 2)
    is_one = reader.flag("attention_k_eq_v", default=False)
    heads = reader.whole("num_global_key_value_heads", base[1]) if is_one else base[1]
    return width, heads


def _minimax_index(reader: ConfigReader, layers: int) -> LayerGroup | None:
    """MiniMax-M3's indexers: one key in addition to K and V, in the layers that the file lists."""
    if not reader.fields.get("sparse_attention_config"):
        return None
    inner = reader.inner("sparse_attention_config")
    count = sum(bool(each) for each in inner.listed("sparse_attention_freq", layers))
    width = inner.whole("sparse_index_dim", 128, most=10**4)
    return LayerGroup(LayerKind.INDEX, count, 1, width, bits=16) if count else None


def _head_dim(reader: ConfigReader, model_type: str, heads: int) -> int:
    if reader.fields.get("head_dim") is not None or model_type in _HEAD_DIM:
        return reader.whole("head_dim", _HEAD_DIM.get(model_type), most=VALUES_MAX // 2)
    width = reader.whole("hidden_size")
    if width % heads:
        raise SettingsError(
            f"hidden_size {width} in {reader.source} is not a multiple of num_attention_heads"
            f" {heads}; add head_dim."
        )
    return width // heads


def _kv_heads(reader: ConfigReader, model_type: str, heads: int) -> int:
    if model_type in _UNGROUPED:
        return 1 if reader.flag("multi_query", default=model_type == "gpt_bigcode") else heads
    is_null = "num_key_value_heads" in reader.fields
    default = heads if is_null else _KV_HEADS.get(model_type, heads)
    kv_heads = reader.whole("num_key_value_heads", default)
    if heads % kv_heads:
        raise SettingsError(
            f"num_key_value_heads {kv_heads} in {reader.source} does not divide"
            f" num_attention_heads {heads}."
        )
    return kv_heads


def _model_bits(reader: ConfigReader) -> int:
    field = "dtype" if "dtype" in reader.fields else "torch_dtype"
    if reader.fields.get(field) is None:
        return 16
    dtype = reader.text(field).removeprefix("torch.")
    if dtype not in _DTYPE_BITS:
        raise SettingsError(
            f"{field} {dtype!r:.40} in {reader.source} is not known; give --kv-dtype or --bits."
        )
    return _DTYPE_BITS[dtype]


def _context_tokens(reader: ConfigReader) -> int | None:
    if reader.fields.get("max_position_embeddings") is None:
        return None
    return reader.whole("max_position_embeddings", most=WINDOW_MAX)
