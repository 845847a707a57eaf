"""How many bytes of KV a model keeps, by kind of layer.

A shape is a list of layer groups. Each layer keeps `heads x head_values` numbers per token, in a
window only for the last tokens; a recurrent layer keeps a state of fixed size instead. All sums are
exact; bits are converted to bytes once, at the end, and rounded up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.number import whole
from forebay.record.exponents import encoded_bytes

BITS_MAX: Final = 64
LAYERS_MAX: Final = 10_000
VALUES_MAX: Final = 10**7  # heads, and numbers per head
RANKS_MAX: Final = 4096
ENCODED_SHARE: Final = Fraction(encoded_bytes(1 << 16), 1 << 16)
_ENCODED_BITS: Final = 16


class LayerKind(StrEnum):
    """What a layer keeps of a token."""

    FULL = "full"  # K and V of every token
    SLIDING = "sliding"  # K and V of the last `window_tokens` tokens
    CHUNKED = "chunked"  # K and V of the tokens of its own chunk of `window_tokens`
    LATENT = "latent"  # MLA: one compressed vector per token, shared by all heads
    INDEX = "index"  # in addition to another layer: a key to find the tokens that matter
    LINEAR = "linear"  # a recurrent state, independent of the length


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one kind and size."""

    kind: LayerKind
    layers: int
    heads: int  # heads that hold KV; tensor parallelism splits them (a latent is one head)
    head_values: int  # numbers per token and head: 2 x head_dim, or the latent's width
    window_tokens: int | None = None  # how many of the last tokens are kept; None: all are
    state_bytes: int = 0  # per sequence and layer, independent of the length
    bits: int | None = None  # of one number, if that does not follow the shape's; None: it does

    def __post_init__(self) -> None:
        whole("layers", self.layers, most=LAYERS_MAX)
        whole("heads", self.heads, most=VALUES_MAX)
        whole("head_values", self.head_values, least=0, most=VALUES_MAX)
        whole("state_bytes", self.state_bytes, least=0)
        if self.window_tokens is not None:
            whole("window_tokens", self.window_tokens)
        if self.bits is not None:
            whole("bits", self.bits, most=BITS_MAX)

    @property
    def token_values(self) -> int:
        """Numbers that one token adds, over all layers of the group."""
        return self.layers * self.heads * self.head_values

    def kept_tokens(self, tokens: int) -> int:
        """How many tokens of a sequence the group still has."""
        return tokens if self.window_tokens is None else min(tokens, self.window_tokens)


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything about a model that determines the size of its KV cache."""

    name: str
    groups: tuple[LayerGroup, ...]
    attention_heads: int
    classic_values: int  # numbers per token if every attention head had its own K and V
    bits: int  # of one cached number
    context_tokens_max: int | None = None  # the model's own limit
    stored: Fraction = Fraction(1)  # size of KV where it is stored, relative to the GPU

    def __post_init__(self) -> None:
        whole("attention_heads", self.attention_heads, most=VALUES_MAX)
        whole("bits", self.bits, most=BITS_MAX)

    @property
    def token_bytes(self) -> int:
        """The size of one more token while every window has room for it."""
        return self._bytes(*((group, 1) for group in self.groups))

    @property
    def growing_token_bytes(self) -> int:
        """The size of one more token once every window is full."""
        return self._bytes(*((group, 1) for group in self.groups if group.window_tokens is None))

    @property
    def classic_token_bytes(self) -> int:
        """The MHA estimate: 2 x layers x attention heads x head_dim x bits / 8."""
        return math.ceil(self.classic_values * self.bits * self.stored / 8)

    def group_bytes(self, group: LayerGroup, tokens: int) -> int:
        """The KV of one sequence in one of the groups."""
        state_bytes = group.layers * group.state_bytes if tokens else 0
        return self._bytes((group, group.kept_tokens(tokens))) + state_bytes

    def sequence_bytes(self, tokens: int) -> int:
        """The KV of one sequence of this many tokens, in all layers."""
        return sum(self.group_bytes(group, tokens) for group in self.groups)

    def encoded(self) -> "Shape":
        """The shape in a pool with `compress`: KV encoded in pages of 64 KiB, states unchanged."""
        if self.bits != _ENCODED_BITS:
            raise SettingsError(
                f"compress encodes KV in bfloat16 only, and this has {self.bits} bits a number;"
                " leave it out."
            )
        if any(group.kind is LayerKind.INDEX for group in self.groups):
            raise SettingsError(
                "compress encodes no KV of layers with indexers, whose pages have several sizes;"
                " leave it out."
            )
        return replace(self, stored=ENCODED_SHARE)

    def rank(self, tp: int) -> "Shape":
        """The part of one of `tp` ranks, as vLLM splits it; fewer heads than ranks are copied."""
        whole("tp", tp, most=RANKS_MAX)
        if self.attention_heads % tp:
            raise SettingsError(
                f"tp {tp} does not divide the {self.attention_heads} attention heads of"
                f" {self.name}; choose a divisor."
            )
        groups = []
        for group in self.groups:
            if group.heads % tp and tp % group.heads:
                raise SettingsError(
                    f"tp {tp} neither divides nor is a multiple of the {group.heads} KV heads of"
                    f" {self.name}; choose one that does."
                )
            heads = max(1, group.heads // tp)
            state_bytes = -(-group.state_bytes // tp)
            groups.append(replace(group, heads=heads, state_bytes=state_bytes))
        return replace(self, groups=tuple(groups))

    def _bytes(self, *kept: tuple[LayerGroup, int]) -> int:
        """The bytes of a number of tokens in each of these groups."""
        bits = Fraction(0)
        for group, tokens in kept:
            bits += group.token_values * tokens * (group.bits or self.bits * self.stored)
        return math.ceil(bits / 8)


def plain_shape(layers: int, heads: int, head_dim: int, bits: int) -> Shape:
    """The classic formula without a model: every head keeps K and V of every token."""
    whole("head_dim", head_dim, most=VALUES_MAX // 2)
    group = LayerGroup(LayerKind.FULL, layers, heads, 2 * head_dim)
    name = f"{layers} layers x {heads} heads x {head_dim}"
    return Shape(name, (group,), heads, group.token_values, bits)


def model_dim_shape(layers: int, model_dim: int, bits: int) -> Shape:
    """The classic formula from the model's width, which is heads x head_dim."""
    whole("model_dim", model_dim, most=VALUES_MAX)
    # The heads are unknown, so each number counts as a head: any divisor can split the width.
    return replace(plain_shape(layers, model_dim, 1, bits), name=f"{layers} layers x {model_dim}")


def most_tokens(fits: Callable[[int], bool], limit_tokens: int) -> int:
    """The largest number of tokens in [0, limit] that fits; `fits` turns false only once."""
    low, high = 0, limit_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
