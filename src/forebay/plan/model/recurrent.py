"""Layers that keep a state of fixed size, whatever the length: how large it is."""

from typing import Final

from forebay.errors import SettingsError
from forebay.plan.model.reader import ConfigReader
from forebay.plan.model.shape import LayerGroup, LayerKind

_MOST: Final = 10**4  # heads, and numbers per head
_CONV_VALUE_BYTES: Final = 2  # inputs of a convolution stay in the model's precision
_STATE_VALUE_BYTES: Final = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
# Defaults of the configuration class; Qwen3-Next's files give all of them.
_GATED_DELTA: Final = {
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_MAMBA: Final = {
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
}


def recurrent_group(reader: ConfigReader, model_type: str, layers: int) -> LayerGroup:
    """The group of a model's recurrent layers, of which there are `layers`."""
    if model_type == "nemotron_h":
        return _mamba(reader, layers)
    if model_type == "kimi_linear":
        return _kimi_delta(reader, layers)
    return _gated_delta(reader, model_type, layers)


def _gated_delta(reader: ConfigReader, model_type: str, layers: int) -> LayerGroup:
    """Gated delta nets: a matrix for each value head, and a short convolution's last inputs."""
    known = {} if model_type == "qwen3_next" else _GATED_DELTA

    def size(field: str) -> int:
        return reader.whole(field, known.get(field), most=_MOST)

    value_heads, key_heads = size("linear_num_value_heads"), size("linear_num_key_heads")
    key_dim, value_dim = size("linear_key_head_dim"), size("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    value_bytes = _value_bytes(reader, "mamba_ssm_dtype", "auto") if known else _CONV_VALUE_BYTES
    matrix_bytes = value_heads * key_dim * value_dim * value_bytes
    conv_bytes = channels * (size("linear_conv_kernel_dim") - 1) * _CONV_VALUE_BYTES
    return _group(layers, value_heads, matrix_bytes + conv_bytes)


def _kimi_delta(reader: ConfigReader, layers: int) -> LayerGroup:
    """As `_gated_delta`, with as many key heads as value heads; matrices in float32."""
    inner = reader.inner("linear_attn_config")
    heads, width = inner.whole("num_heads", most=_MOST), inner.whole("head_dim", most=_MOST)
    kernel = inner.whole("short_conv_kernel_size", most=_MOST)
    conv_bytes = 3 * heads * width * (kernel - 1) * _CONV_VALUE_BYTES
    return _group(layers, heads, heads * width * width * 4 + conv_bytes)


def _mamba(reader: ConfigReader, layers: int) -> LayerGroup:
    """Mamba-2: a matrix for each head, and the last inputs of a short convolution."""

    def size(field: str) -> int:
        return reader.whole(field, _MAMBA[field], most=_MOST)

    heads, width, state = size("mamba_num_heads"), size("mamba_head_dim"), size("ssm_state_size")
    channels = heads * width + 2 * size("n_groups") * state
    value_bytes = _value_bytes(reader, "mamba_ssm_cache_dtype", "float32")
    conv_bytes = channels * (size("conv_kernel") - 1) * _CONV_VALUE_BYTES
    return _group(layers, heads, heads * width * state * value_bytes + conv_bytes)


def _value_bytes(reader: ConfigReader, field: str, default: str) -> int:
    found = reader.text(field, default)
    if found not in _STATE_VALUE_BYTES:
        raise SettingsError(
            f"{field} {found!r:.40} in {reader.source} is not known; known are"
            f" {', '.join(_STATE_VALUE_BYTES)}."
        )
    return _STATE_VALUE_BYTES[found]


def _group(layers: int, heads: int, state_bytes: int) -> LayerGroup:
    return LayerGroup(LayerKind.LINEAR, layers, heads, head_values=0, state_bytes=state_bytes)
