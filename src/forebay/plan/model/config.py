"""From a model's `config.json` to its shape.

Only architectures whose cache is known are read: a wrong guess would be a wrong purchase. A missing
field is an error that names it, unless the architecture's own default is a fixed number (those are
in the tables below, as in the model's configuration class in Transformers).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.model.shape import LAYERS_MAX, VALUES_MAX, LayerGroup, LayerKind, Shape
from forebay.plan.number import whole

Config = Mapping[str, object]

# K and V a head, the number of KV heads in `num_key_value_heads`.
_GROUPED: Final = frozenset(
    {
        "cohere",
        "cohere2",
        "ernie4_5",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "granitemoe",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "olmoe",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
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
# One compressed latent a token and layer.
_LATENT: Final = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})

_ALIASES: Final = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
}
# Where it is not hidden_size / num_attention_heads when the file leaves it out.
_HEAD_DIM: Final = {
    "gemma": 256,
    "gemma2": 256,
    "gemma3_text": 256,
    "gpt_oss": 64,
    "qwen3": 128,
    "qwen3_next": 256,
}
# KV heads where the file leaves them out; elsewhere, or where it says null, each attention head has
# its own K and V.
_KV_HEADS: Final = {
    "ernie4_5": 2,
    "gemma": 16,
    "gemma2": 4,
    "gemma3_text": 4,
    "glm4": 2,
    "glm4_moe": 8,
    "gpt_oss": 8,
    "mistral": 8,
    "mixtral": 8,
    "phimoe": 8,
    "qwen2": 32,
    "qwen2_moe": 16,
    "qwen3": 32,
    "qwen3_moe": 4,
    "qwen3_next": 2,
    "seed_oss": 8,
    "smollm3": 4,
    "stablelm": 32,
    "starcoder2": 2,
}
# Every n-th layer is a full one, the others have a window (or, in qwen3_next, a recurrent state).
_FULL_EVERY: Final = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "qwen3_next": 4}
_WINDOW_IN_ALL: Final = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
_WINDOW_IF_USED: Final = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
_LAYER_TYPES: Final = {
    "full_attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "linear_attention": LayerKind.LINEAR,
}
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
STATE_VALUE_BYTES: Final = 2  # recurrent states stay in the model's precision
WINDOW_MAX: Final = 10**9


@dataclass(frozen=True, slots=True)
class _Reader:
    """One configuration, read field by field; every complaint names field and file."""

    source: str
    fields: Config

    def whole(
        self, field: str, default: int | None = None, *, least: int = 1, most: int = VALUES_MAX
    ) -> int:
        """A field, its old alias, or the default; an error without any of them."""
        names = (field, _ALIASES.get(field, field))
        value = next((self.fields[n] for n in names if self.fields.get(n) is not None), default)
        if value is None:
            raise SettingsError(f"{field} is missing in {self.source}; add it.")
        return whole(f"{field} in {self.source}", value, least=least, most=most)

    def text(self, field: str, default: str | None = None) -> str:
        value = self.fields.get(field, default)
        if not isinstance(value, str):
            raise SettingsError(f"{field} in {self.source} must be a name, not {value!r:.40}.")
        return value

    def flag(self, field: str, *, default: bool) -> bool:
        value = self.fields.get(field, default)
        if not isinstance(value, bool):
            raise SettingsError(f"{field} in {self.source} must be true or false.")
        return value


def shape_of(name: str, source: str, config: object, bits: int | None = None) -> Shape:
    """The shape that a parsed `config.json` describes; `bits` overrides its cached number."""
    if not isinstance(config, Mapping):
        raise SettingsError(f"{source} is not a model configuration: it holds no JSON object.")
    inner = config.get("text_config")
    # A multimodal model nests its language model; the precision may stand outside.
    fields = {**config, **inner} if isinstance(inner, Mapping) else config
    reader = _Reader(source, fields)
    model_type = reader.text("model_type")
    layers = reader.whole("num_hidden_layers", most=LAYERS_MAX)
    heads = reader.whole("num_attention_heads")
    if model_type in _LATENT:
        groups, classic_values = _latent(reader, layers, heads)
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


def _latent(reader: _Reader, layers: int, heads: int) -> tuple[tuple[LayerGroup, ...], int]:
    rope = reader.whole("qk_rope_head_dim")
    width = reader.whole("kv_lora_rank") + rope
    head_values = reader.whole("qk_nope_head_dim") + rope + reader.whole("v_head_dim")
    group = LayerGroup(LayerKind.LATENT, layers, heads=1, head_values=width)
    return (group,), layers * heads * head_values


def _attention(
    reader: _Reader, model_type: str, layers: int, heads: int
) -> tuple[tuple[LayerGroup, ...], int]:
    head_dim = _head_dim(reader, model_type, heads)
    kv_heads = _kv_heads(reader, model_type, heads)
    kinds = _layer_kinds(reader, model_type, layers)
    groups = []
    if count := kinds.count(LayerKind.FULL):
        groups.append(LayerGroup(LayerKind.FULL, count, kv_heads, 2 * head_dim))
    if count := kinds.count(LayerKind.SLIDING):
        window = reader.whole("sliding_window", most=WINDOW_MAX)
        groups.append(LayerGroup(LayerKind.SLIDING, count, kv_heads, 2 * head_dim, window))
    if count := kinds.count(LayerKind.LINEAR):
        groups.append(_linear(reader, count))
    # Recurrent layers are no attention layers: the classic estimate leaves them out.
    classic_layers = layers - kinds.count(LayerKind.LINEAR)
    return tuple(groups), 2 * classic_layers * heads * head_dim


def _linear(reader: _Reader, layers: int) -> LayerGroup:
    """Gated delta net: a matrix for each value head, and the last inputs of a short convolution."""
    small = 10**4
    value_heads = reader.whole("linear_num_value_heads", most=small)
    key_heads = reader.whole("linear_num_key_heads", most=small)
    key_dim = reader.whole("linear_key_head_dim", most=small)
    value_dim = reader.whole("linear_value_head_dim", most=small)
    kernel = reader.whole("linear_conv_kernel_dim", most=small)
    matrix_values = value_heads * key_dim * value_dim
    conv_values = (2 * key_heads * key_dim + value_heads * value_dim) * (kernel - 1)
    state_bytes = (matrix_values + conv_values) * STATE_VALUE_BYTES
    return LayerGroup(LayerKind.LINEAR, layers, value_heads, head_values=0, state_bytes=state_bytes)


def _head_dim(reader: _Reader, model_type: str, heads: int) -> int:
    if reader.fields.get("head_dim") is not None or model_type in _HEAD_DIM:
        return reader.whole("head_dim", _HEAD_DIM.get(model_type), most=VALUES_MAX // 2)
    width = reader.whole("hidden_size")
    if width % heads:
        raise SettingsError(
            f"hidden_size {width} in {reader.source} is not a multiple of num_attention_heads"
            f" {heads}; add head_dim."
        )
    return width // heads


def _kv_heads(reader: _Reader, model_type: str, heads: int) -> int:
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


def _layer_kinds(reader: _Reader, model_type: str, layers: int) -> list[LayerKind]:
    if reader.fields.get("layer_types") is not None:
        return _listed_kinds(reader, layers)
    if model_type in _FULL_EVERY:
        other = LayerKind.LINEAR if model_type == "qwen3_next" else LayerKind.SLIDING
        field = "full_attention_interval" if other is LayerKind.LINEAR else "sliding_window_pattern"
        every = reader.whole(field, _FULL_EVERY[model_type], most=LAYERS_MAX)
        return [other if (layer + 1) % every else LayerKind.FULL for layer in range(layers)]
    if reader.fields.get("sliding_window") is None:
        return [LayerKind.FULL] * layers
    if model_type in _WINDOW_IN_ALL:
        return [LayerKind.SLIDING] * layers
    if model_type in _WINDOW_IF_USED and reader.flag("use_sliding_window", default=False):
        full = min(layers, reader.whole("max_window_layers", least=0, most=LAYERS_MAX))
        return [LayerKind.FULL] * full + [LayerKind.SLIDING] * (layers - full)
    return [LayerKind.FULL] * layers


def _listed_kinds(reader: _Reader, layers: int) -> list[LayerKind]:
    listed = reader.fields["layer_types"]
    if not isinstance(listed, list) or len(listed) != layers:
        raise SettingsError(
            f"layer_types in {reader.source} must list one kind for each of the"
            f" {layers} num_hidden_layers."
        )
    kinds = [_LAYER_TYPES.get(kind) if isinstance(kind, str) else None for kind in listed]
    known = [kind for kind in kinds if kind is not None]
    if len(known) != layers:
        raise SettingsError(
            f"layer_types in {reader.source} holds a kind of layer that is not known; known are"
            f" {', '.join(_LAYER_TYPES)}."
        )
    return known


def _model_bits(reader: _Reader) -> int:
    field = "dtype" if "dtype" in reader.fields else "torch_dtype"
    if reader.fields.get(field) is None:
        return 16
    dtype = reader.text(field).removeprefix("torch.")
    if dtype not in _DTYPE_BITS:
        raise SettingsError(
            f"{field} {dtype!r:.40} in {reader.source} is not known; give --kv-dtype or --bits."
        )
    return _DTYPE_BITS[dtype]


def _context_tokens(reader: _Reader) -> int | None:
    if reader.fields.get("max_position_embeddings") is None:
        return None
    return reader.whole("max_position_embeddings", most=WINDOW_MAX)
