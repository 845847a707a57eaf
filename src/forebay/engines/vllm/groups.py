"""vLLM's KV cache groups as Forebay's: layers that look equally far back form one group.

vLLM keeps a block table for each of its groups, and splits layers of one kind into several groups.
Here all of these are one group with several tables. Group 0 is that of full attention; the others
are local, in an order that depends only on what they are. Only a block's own bytes are shared,
without vLLM's padding.

On a worker, layers of one group may differ in size (`UniformTypeKVCacheSpecs`). vLLM tells its
scheduler of one of them, as if all were like it: only the workers know the sizes of layers.
"""

from itertools import chain
from typing import Any, Final, NamedTuple

from forebay.engines.geometry import FULL, Reach, ReachKind
from forebay.engines.vllm.kinds import KINDS
from forebay.engines.vllm.versions import is_split_by_tokens, is_transferred, keeps_states

# Kinds of attention in which a token's KV never changes, whatever follows it.
_FULL: Final = {"FullAttentionSpec", "MLAAttentionSpec"}
# Fields of a spec, of whatever kind, that shape a block's bytes.
_SHAPED_BY: Final = ("dtype", "num_kv_heads", "head_size", "shapes", "dtypes")


class CacheGroup(NamedTuple):
    """Layers that look equally far back and have the same number of tokens in a block."""

    reach: Reach
    block_tokens: int
    page_bytes: int  # one layer of one block; the largest if they differ
    spec: Any  # vLLM's spec of one of its layers
    tables: tuple[int, ...]  # numbers of vLLM's groups
    layers: tuple[tuple[str, ...], ...]  # of each of these
    layer_specs: tuple[tuple[Any, ...], ...]  # of each of these layers

    @property
    def layer_bytes(self) -> tuple[tuple[int, ...], ...]:
        """The size of each layer of a block, by table."""
        return tuple(tuple(map(_page_bytes, specs)) for specs in self.layer_specs)

    @property
    def block_bytes(self) -> int:
        """The size of a block: all layers, all tables."""
        return sum(chain.from_iterable(self.layer_bytes))

    @property
    def unlike(self) -> tuple[tuple[str, ...], ...]:
        """Every layer with what shapes its bytes; empty if that is the same for all layers."""
        shapes = [(str(_page_bytes(spec)), *shaped_by(spec)) for spec in chain(*self.layer_specs)]
        if len(set(shapes)) <= 1:
            return ()
        return tuple(
            (name, *shape) for name, shape in zip(chain(*self.layers), shapes, strict=True)
        )


def full_group(cache: Any) -> CacheGroup:
    """Group 0 of a supported KV cache."""
    return cache_groups(cache)[0]


def cache_groups(cache: Any, dcp: int = 1) -> list[CacheGroup]:
    """All groups of a supported KV cache by number, group 0 first.

    `dcp`: the ranks over which vLLM divides the tokens of a block (decode context parallelism). Its
    scheduler counts the tokens of all of them as one block, its workers only their own.
    """
    tables: dict[tuple[Reach, int], list[int]] = {}
    for number, group in enumerate(cache.kv_cache_groups):
        spec = _specs_of(group)[0]
        block_tokens = spec.block_size * (dcp if is_split_by_tokens(spec) else 1)
        tables.setdefault((_reach(spec), block_tokens), []).append(number)
    found = []
    for (reach, block_tokens), numbers in sorted(tables.items(), key=_in_order):
        mine = [cache.kv_cache_groups[number] for number in numbers]
        layers = tuple(tuple(group.layer_names) for group in mine)
        specs = tuple(tuple(_specs_of(group)[: len(group.layer_names)]) for group in mine)
        first = _specs_of(mine[0])[0]
        page_bytes = max(map(_page_bytes, chain(*specs)), default=_page_bytes(first))
        found.append(
            CacheGroup(reach, block_tokens, page_bytes, first, tuple(numbers), layers, specs)
        )
    return found


def unsupported_groups(cache: Any) -> str:
    """The kind (of `KINDS`) for which a KV cache with these groups is declined; "": none."""
    specs = [spec for group in cache.kv_cache_groups for spec in _specs_of(group)]
    unknown = next((type(spec).__name__ for spec in specs if _reach(spec) is None), "")
    if unknown:
        return unknown if unknown in KINDS else "other attention"
    mixed = any(len(set(map(_reach, _specs_of(group)))) > 1 for group in cache.kv_cache_groups)
    if mixed or not all(map(is_transferred, cache.kv_cache_groups)):
        return "other attention"
    full = [group for group in cache_groups(cache) if group.reach == FULL]
    if not full:
        return "local attention alone"
    return "full attention of several sizes" if full[1:] else ""


def shaped_by(spec: Any) -> tuple[str, ...]:
    """Everything in this spec that shapes a block's bytes, as text."""
    return tuple(str(getattr(spec, name, "")) for name in _SHAPED_BY)


def _specs_of(group: Any) -> list[Any]:
    """The spec of every layer of one of vLLM's groups; one spec if it has no layer here."""
    spec = group.kv_cache_spec
    each = getattr(spec, "kv_cache_specs", None)
    if each is None:
        return [spec] * max(1, len(group.layer_names))
    return [each[name] for name in group.layer_names] or [next(iter(each.values()))]


def _reach(spec: Any) -> Any:
    """How far back layers of this spec look; None if they are not supported."""
    name = type(spec).__name__
    if name in _FULL:
        return FULL
    if name == "SlidingWindowSpec":
        more = getattr(spec, "extra_retained_tokens", 0)  # kept before the window, for speculation
        return Reach(ReachKind.WINDOW, int(spec.sliding_window) + int(more))
    if name == "ChunkedLocalAttentionSpec":
        return Reach(ReachKind.CHUNKED, int(spec.attention_chunk_size))
    if name == "MambaSpec" and keeps_states(spec):
        return Reach(ReachKind.STATE)
    return None


def _page_bytes(spec: Any) -> int:
    return int(getattr(spec, "real_page_size_bytes", spec.page_size_bytes))


def _in_order(kind: tuple[tuple[Reach, int], list[int]]) -> tuple[bool, str, int, int]:
    reach, block_tokens = kind[0]
    return reach != FULL, reach.kind.value, reach.tokens, block_tokens
