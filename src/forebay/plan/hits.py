"""What a pool of each size would have found in a real trace.

One cache of chunks serves the requests in order, evicting the least recently used, and again with
knowledge of the future, the upper bound for any policy. The hit rate is the share of all prompt
tokens that were found. A chunk is counted with all its layers; of sliding windows the pool may keep
less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.model.shape import Shape
from forebay.plan.number import whole
from forebay.sim.replay import Sizes, simulate
from forebay.sim.trace import CHUNK_TOKENS, Request

SIZES_MAX: Final = 32
# Fractions (1/n) of all distinct chunks of the trace, if no sizes are given.
_SHARES: Final = (256, 64, 16, 4, 1)


@dataclass(frozen=True, slots=True)
class HitRate:
    """Hit rates of a pool of one size."""

    size_bytes: int
    lru: float
    optimum: float


@dataclass(frozen=True, slots=True)
class TraceHits:
    """A trace's hit rates at several sizes."""

    requests: int
    prompt_tokens: int
    chunk_bytes: int
    distinct_bytes: int  # of all distinct chunks of the trace: a larger pool finds no more
    rates: tuple[HitRate, ...]


def trace_hits(
    shape: Shape, requests: Sequence[Request], sizes_bytes: Sequence[int] = ()
) -> TraceHits:
    """Hit rates at the given sizes, or at fractions of the trace's distinct chunks."""
    chunk_bytes = shape.token_bytes * CHUNK_TOKENS
    if not chunk_bytes:
        raise SettingsError(f"MODEL {shape.name} keeps no KV a token; a trace cannot size it.")
    distinct = len({key for request in requests for key in request.keys})
    sizes = sizes_bytes or [-(-distinct // share) * chunk_bytes for share in _SHARES]
    whole("number of sizes", len(sizes), most=SIZES_MAX)
    return TraceHits(
        requests=len(requests),
        prompt_tokens=sum(request.tokens for request in requests),
        chunk_bytes=chunk_bytes,
        distinct_bytes=distinct * chunk_bytes,
        rates=tuple(
            HitRate(
                size_bytes=size_bytes,
                lru=simulate("lru", requests, pool).hit_rate,
                optimum=simulate("optimum", requests, pool).hit_rate,
            )
            for size_bytes in sorted(set(sizes))
            for pool in [Sizes(size_bytes // chunk_bytes)]
        ),
    )
