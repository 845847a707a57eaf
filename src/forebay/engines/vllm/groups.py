"""vLLM's KV cache groups as Forebay's: layers that look equally far back are one group.

vLLM keeps a block table for each of its groups, and splits layers of one kind into several groups
of equal size. Here all of them are one group with several tables. Group 0 is that of full
attention; others are local, in an order that depends on nothing but what they are. A block's own
bytes are shared, not what vLLM pads them with.
"""

from typing import Any, Final, NamedTuple

from forebay.engines.geometry import FULL, Reach, ReachKind
from forebay.engines.vllm.kinds import KINDS
from forebay.engines.vllm.versions import keeps_states

# Kinds of attention whose KV of a token is that token's for ever, whatever follows.
_FULL: Final = {"FullAttentionSpec", "MLAAttentionSpec"}


class CacheGroup(NamedTuple):
    """Layers that look equally far back, and have blocks of one size."""

    reach: Reach
    block_tokens: int
    page_bytes: int  # of one layer of one block
    spec: Any  # of vLLM, of each of its layers
    tables: tuple[int, ...]  # vLLM's groups, by number
    layers: tuple[tuple[str, ...], ...]  # of each of these


def full_group(cache: Any) -> CacheGroup:
    """Group 0, of a KV cache that is supported."""
    return cache_groups(cache)[0]


def cache_groups(cache: Any) -> list[CacheGroup]:
    """All groups by number, group 0 first; of a KV cache that is supported."""
    tables: dict[tuple[Reach, int, int], list[int]] = {}
    for number, group in enumerate(cache.kv_cache_groups):
        spec = group.kv_cache_spec
        kind = _reach(spec), spec.block_size, _page_bytes(spec)
        tables.setdefault(kind, []).append(number)
    found = []
    for (reach, block_tokens, page_bytes), numbers in sorted(tables.items(), key=_in_order):
        mine = [cache.kv_cache_groups[number] for number in numbers]
        layers = tuple(tuple(group.layer_names) for group in mine)
        spec = mine[0].kv_cache_spec
        found.append(CacheGroup(reach, block_tokens, page_bytes, spec, tuple(numbers), layers))
    return found


def unsupported_groups(cache: Any) -> str:
    """The kind, of `KINDS`, for which a KV cache with these groups is declined; empty: none."""
    specs = [group.kv_cache_spec for group in cache.kv_cache_groups]
    unknown = next((type(spec).__name__ for spec in specs if _reach(spec) is None), "")
    if unknown:
        return unknown if unknown in KINDS else "other attention"
    full = [group for group in cache_groups(cache) if group.reach == FULL]
    if not full:
        return "local attention alone"
    return "full attention of several sizes" if full[1:] else ""


def _reach(spec: Any) -> Any:
    """How far back layers of this spec look; None: not supported."""
    name = type(spec).__name__
    if name in _FULL:
        return FULL
    if name == "SlidingWindowSpec":
        more = getattr(spec, "extra_retained_tokens", 0)  # behind the window, for speculation
        return Reach(ReachKind.WINDOW, int(spec.sliding_window) + int(more))
    if name == "ChunkedLocalAttentionSpec":
        return Reach(ReachKind.CHUNKED, int(spec.attention_chunk_size))
    if name == "MambaSpec" and keeps_states(spec):
        return Reach(ReachKind.STATE)
    return None


def _page_bytes(spec: Any) -> int:
    return int(getattr(spec, "real_page_size_bytes", spec.page_size_bytes))


def _in_order(kind: tuple[tuple[Reach, int, int], list[int]]) -> tuple[bool, str, int, int, int]:
    reach, block_tokens, page_bytes = kind[0]
    return reach != FULL, reach.kind.value, reach.tokens, block_tokens, page_bytes
