"""Which layers of a model keep what: by its lists of layers, or by its architecture's pattern."""

from typing import Final

from forebay.errors import SettingsError
from forebay.plan.model.reader import ConfigReader
from forebay.plan.model.shape import LAYERS_MAX, LayerKind

Kinds = list[LayerKind | None]  # of each layer; None: it keeps nothing of a token

# By architecture, n: every n-th layer is a full one, others have a window, chunks or a state.
_FULL_EVERY: Final = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "llama4_text": 4,
    "qwen3_5_moe_text": 4,
    "qwen3_5_text": 4,
    "qwen3_next": 4,
}
# The kind of the other layers, and the field that overrides n.
_OTHERS: Final = {
    "llama4_text": (LayerKind.CHUNKED, "no_rope_layer_interval"),
    "qwen3_5_moe_text": (LayerKind.LINEAR, "full_attention_interval"),
    "qwen3_5_text": (LayerKind.LINEAR, "full_attention_interval"),
    "qwen3_next": (LayerKind.LINEAR, "full_attention_interval"),
}
_SLIDING: Final = (LayerKind.SLIDING, "sliding_window_pattern")
_WINDOW_IN_ALL: Final = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
_WINDOW_IF_USED: Final = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
_LAYER_TYPES: Final[dict[str, LayerKind | None]] = {
    "full_attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.CHUNKED,
    "linear_attention": LayerKind.LINEAR,
    "minimax_m3_sparse": LayerKind.FULL,
    "moe": None,
    "mlp": None,
}
# Nemotron-H's letters for its layers.
_LETTERS: Final[dict[str, LayerKind | None]] = {
    "M": LayerKind.LINEAR,
    "*": LayerKind.FULL,
    "E": None,
    "-": None,
}


def count_of(reader: ConfigReader, model_type: str) -> int:
    """How many layers a model has, of all kinds."""
    pattern = reader.fields.get("hybrid_override_pattern")
    listed = reader.fields.get("layers_block_type")
    if model_type == "nemotron_h" and isinstance(pattern, str) and pattern:
        return min(len(pattern), LAYERS_MAX)
    if model_type == "nemotron_h" and isinstance(listed, list) and listed:
        return min(len(listed), LAYERS_MAX)
    return reader.whole("num_hidden_layers", most=LAYERS_MAX)


def kinds_of(reader: ConfigReader, model_type: str, layers: int) -> Kinds:
    """What each layer keeps."""
    if model_type == "nemotron_h":
        return _of_letters(reader, layers)
    if model_type == "kimi_linear":
        return _of_numbers(reader, layers)
    if reader.fields.get("layer_types") is not None:
        found = _listed(reader, "layer_types", layers)
    elif reader.fields.get("no_rope_layers") and model_type == "llama4_text":
        rotated = reader.listed("no_rope_layers", layers)
        found = [LayerKind.CHUNKED if each else LayerKind.FULL for each in rotated]
    else:
        found = _by_pattern(reader, model_type, layers)
    if model_type == "gemma4_text":
        return _without_shared(reader, found)
    # Without a chunk size, these layers are full ones.
    is_chunked = reader.fields.get("attention_chunk_size", True) is not None
    return found if is_chunked else [_or_full(kind) for kind in found]


def _or_full(kind: LayerKind | None) -> LayerKind | None:
    return LayerKind.FULL if kind is LayerKind.CHUNKED else kind


def _by_pattern(reader: ConfigReader, model_type: str, layers: int) -> Kinds:
    numbers = range(1, layers + 1)
    others: LayerKind | None = LayerKind.SLIDING
    if model_type in _FULL_EVERY:
        others, field = _OTHERS.get(model_type, _SLIDING)
        every = reader.whole(field, _FULL_EVERY[model_type], most=LAYERS_MAX)
        return [LayerKind.FULL if number % every == 0 else others for number in numbers]
    full = layers
    if reader.fields.get("sliding_window") is None:
        pass
    elif model_type in _WINDOW_IN_ALL:
        full = 0
    elif model_type in _WINDOW_IF_USED and reader.flag("use_sliding_window", default=False):
        full = reader.whole("max_window_layers", least=0, most=LAYERS_MAX)
    return [LayerKind.FULL if number <= full else others for number in numbers]


def _listed(reader: ConfigReader, field: str, layers: int) -> Kinds:
    listed = reader.listed(field, layers)
    if not all(isinstance(kind, str) and kind in _LAYER_TYPES for kind in listed):
        raise SettingsError(
            f"{field} in {reader.source} holds a kind of layer that is not known; known are"
            f" {', '.join(_LAYER_TYPES)}."
        )
    return [_LAYER_TYPES[str(kind)] for kind in listed]


def _of_letters(reader: ConfigReader, layers: int) -> Kinds:
    if reader.fields.get("hybrid_override_pattern") is None:
        return _listed(reader, "layers_block_type", layers)
    pattern = reader.text("hybrid_override_pattern")
    if len(pattern) != layers or not set(pattern) <= set(_LETTERS):
        raise SettingsError(
            f"hybrid_override_pattern in {reader.source} must have one of {' '.join(_LETTERS)} for"
            f" each of the {layers} layers."
        )
    return [_LETTERS[letter] for letter in pattern]


def _of_numbers(reader: ConfigReader, layers: int) -> Kinds:
    """Kimi-Linear lists the layers of either kind by number, from 1."""
    inner = reader.inner("linear_attn_config")
    found: Kinds = [None] * layers
    for field, kind in (("full_attn_layers", LayerKind.LATENT), ("kda_layers", LayerKind.LINEAR)):
        numbers = inner.fields.get(field)
        for number in numbers if isinstance(numbers, list) else [None]:
            if not isinstance(number, int) or not 1 <= number <= layers:
                raise SettingsError(
                    f"{field} in {inner.source} must list layers by numbers from 1 to {layers}."
                )
            found[number - 1] = kind
    return found


def _without_shared(reader: ConfigReader, kinds: Kinds) -> Kinds:
    """Gemma 4: the last layer is a full one, and the last ones may use the KV of others."""
    shared = reader.whole("num_kv_shared_layers", 0, least=0, most=LAYERS_MAX)
    own = max(0, len(kinds) - shared)
    ended = [*kinds[:-1], LayerKind.FULL]
    return [*ended[:own], *([None] * (len(kinds) - own))]
