"""The namespace of a vLLM engine: everything in vLLM that shapes KV bytes.

What cannot be keyed yet is declined, with one sentence, and served as without Forebay. Weights are
identified by the hash of their files, or by a name that an operator gives them.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from vllm import __version__ as vllm_version

from forebay.engines.geometry import Geometry, ReachKind, Shard, chunk_blocks
from forebay.engines.sharing import EngineNamespace, Obstacle, SharingState
from forebay.engines.vllm.groups import (
    CacheGroup,
    cache_groups,
    full_group,
    shaped_by,
    unsupported_groups,
)
from forebay.engines.vllm.kinds import KINDS, READS_FILES, Configured, declined_kinds
from forebay.engines.vllm.metadata import ShardMetadata
from forebay.engines.vllm.versions import layout_of, zeroes_before_stores
from forebay.engines.weights import local_weights
from forebay.record.exponents import NAME as CODEC_NAME
from forebay.settings import Settings

# Fields of a model's configuration that say where it came from, not what it is.
_ORIGIN: Final = ("_name_or_path", "transformers_version", "_commit_hash")
_NAME_THEM: Final = "set weights_id to a name that no other weights have"
# Fields of a speculative configuration that say where the drafter came from, or that others cover.
_OTHERS: Final = {
    *("model", "revision", "code_revision", "target_model_config", "target_parallel_config"),
    *("draft_model_config", "draft_parallel_config", "draft_load_config"),
}


def declined(config: Any, cache: Any) -> Obstacle | None:
    """Why this engine's KV cannot be shared, or None if it can."""
    kind = _unsupported(config, cache)
    return Obstacle(SharingState.DECLINED, KINDS[kind].why, kind) if kind else None


def _unsupported(config: Any, cache: Any) -> str:
    """The kind (of `KINDS`) for which an engine is declined; "": none."""
    model, speculation = config.model_config, config.speculative_config
    if kind := unsupported_groups(cache):
        return kind
    configured = Configured(
        has_states=any(group.reach.kind is ReachKind.STATE for group in cache_groups(cache)),
        zeroes_states=zeroes_before_stores(config, cache),
        has_local=len(cache.kv_cache_groups) > 1,
        stages=int(config.parallel_config.pipeline_parallel_size),
        prefill_context_parallel=_pcp(config),
        decode_context_parallel=_dcp(config),
        speculation=None if speculation is None else str(speculation.method),
        has_run_time_scales=bool(getattr(config.cache_config, "calculate_kv_scales", False)),
        is_encoder_decoder=bool(model.is_encoder_decoder),
        is_pooling=model.runner_type == "pooling",
    )
    return next(iter(declined_kinds(configured)), "")


def geometry(
    config: Any, cache: Any, chunk_tokens: int, workers: Sequence[ShardMetadata] = ()
) -> Geometry:
    """The shape of a chunk: derived from the model unless `chunk_tokens` is set.

    With several workers, the size of a chunk is known only once all of them have told theirs.
    """
    groups = cache_groups(cache, _dcp(config))
    numbers = [each.shard.number for each in workers] or range(_shards(config, cache))
    shards, ranks = 1 + max(numbers), int(config.parallel_config.world_size)
    told = [each.block_bytes for each in workers]
    told = told or [tuple(group.block_bytes for group in groups)]
    widest = [max(each) for each in zip(*told, strict=True)]
    # A chunk is a whole number of blocks in every group.
    unit = math.lcm(*(group.block_tokens for group in groups))
    blocks_of = [unit // group.block_tokens for group in groups]
    unit_bytes = max(size * count for size, count in zip(widest, blocks_of, strict=True)) * shards
    units = max(1, chunk_tokens // unit) if chunk_tokens else chunk_blocks(unit_bytes, unit)

    def shape_of(number: int, local: tuple[Geometry, ...] = ()) -> Geometry:
        group = groups[number]
        tables = [_in_order(*each) for each in zip(group.layers, group.layer_bytes, strict=True)]
        sizes = tuple(size for table in tables for _, size in table)
        return Geometry(
            tuple(name for table in tables for name, _ in table),
            group.page_bytes,
            group.block_tokens,
            units * blocks_of[number],
            shards,
            ranks,
            widest[number],
            group.reach,
            group.tables,
            tuple(map(len, tables)) if len(tables) > 1 else (),
            local,
            sizes if len(set(sizes)) > 1 else (),
        )

    return shape_of(0, tuple(shape_of(number) for number in range(1, len(groups))))


def shape_of(
    config: Any, cache: Any, settings: Settings, workers: Sequence[ShardMetadata] = ()
) -> Geometry:
    """The shape of a chunk as it is stored, as far as workers have told theirs.

    It is encoded if the settings want that and all workers encode pages of the same sizes.
    """
    shape = geometry(config, cache, settings.chunk_tokens, workers)
    if not settings.compress or any(each.unlike for each in workers):
        return shape
    encoded = compressed(shape, cache)
    are_alike = all(each.encodes == encoded.encoded_pages for each in workers)
    return encoded if are_alike else shape


def why_not_compressed(config: Any, cache: Any) -> str:
    """Why nothing of this KV is encoded, whatever the workers can do; "" if some of it is."""
    dtype = kv_dtype(config, cache)
    if dtype != "bfloat16":
        return f"only bfloat16 can be encoded, and the KV is {dtype}"
    return "pages of several sizes in one group, or of very few values, cannot be encoded"


def told_by(config: Any, cache: Any, shape: Geometry) -> ShardMetadata:
    """What a worker tells the scheduler's side about its part of every chunk."""
    groups = cache_groups(cache, _dcp(config))
    return ShardMetadata(
        shard_of(config, cache),
        shape.layers,
        shape.page_bytes,
        tuple(group.block_bytes for group in shape.local),
        shape.block_bytes,
        tuple(group.layers for group in shape.local),
        tuple(layer for group in groups for layer in group.unlike),
        int(getattr(config.parallel_config, "cp_kv_cache_interleave_size", 1)),
    )


def kv_dtype(config: Any, cache: Any) -> str:
    """The dtype of the KV, for people."""
    wanted = str(config.cache_config.cache_dtype)
    declared = str(getattr(full_group(cache).spec, "dtype", "")).removeprefix("torch.")
    return declared if wanted == "auto" else wanted


def compressed(shape: Geometry, cache: Any) -> Geometry:
    """The same shape with its bfloat16 groups encoded; other KV would gain nothing."""

    def encoded(number: int, local: tuple[Geometry, ...] = ()) -> Geometry:
        group, spec = shape.groups[number], cache_groups(cache)[number].spec
        is_encoded = str(getattr(spec, "dtype", "")) == "torch.bfloat16" and group.can_encode
        return replace(group, is_encoded=is_encoded, local=local)

    return encoded(0, tuple(encoded(number) for number in range(1, len(shape.groups))))


def shard_of(config: Any, cache: Any) -> Shard:
    """The part of every chunk that this worker has.

    Each rank of a stage has some of the heads; if there are more ranks than heads, successive ranks
    have the same heads. With decode context parallelism those ranks divide the tokens: every
    `dcp`th of them has the same tokens again.
    """
    parallel = config.parallel_config
    rank, dcp, same = int(parallel.rank), _dcp(config), _ranks_with_same_heads(config, cache)
    if same % dcp or _pcp(config) > 1:
        return Shard(rank, rank)
    stage, tp_rank = divmod(rank, int(parallel.tensor_parallel_size))
    heads, beside = divmod(tp_rank, same)
    of_stage = int(parallel.tensor_parallel_size) // same * dcp
    number = stage * of_stage + heads * dcp + beside % dcp
    return Shard(rank, number, is_stored=beside < dcp)


def are_all(workers: Sequence[ShardMetadata], shape: Geometry) -> bool:
    """Whether these are all workers of an engine, and each shard is stored by one of them."""
    stored = sorted(each.shard.number for each in workers if each.shard.is_stored)
    return len(workers) == shape.ranks and stored == list(range(shape.shards))


def _shards(config: Any, cache: Any) -> int:
    same, dcp = _ranks_with_same_heads(config, cache), _dcp(config)
    ranks = int(config.parallel_config.world_size)
    return ranks if same % dcp or _pcp(config) > 1 else ranks // same * dcp


def _ranks_with_same_heads(config: Any, cache: Any) -> int:
    """How many successive ranks of a stage have the same heads in every layer."""
    ranks = int(config.parallel_config.tensor_parallel_size)
    declared = getattr(cache, "kv_tp_replicas", None)  # 0.31 and later
    if declared is not None and _dcp(config) == 1:
        return int(declared)
    # With context parallelism it is declared as 1: no two successive ranks have the same tokens.
    specs = [spec for group in cache_groups(cache) for spec in chain(*group.layer_specs)]
    if not all(type(spec).__name__ == "MLAAttentionSpec" for spec in specs):
        return 1
    return ranks


def _dcp(config: Any) -> int:
    return int(getattr(config.parallel_config, "decode_context_parallel_size", 1))


def _pcp(config: Any) -> int:
    return int(getattr(config.parallel_config, "prefill_context_parallel_size", 1))


def _in_order(layers: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Layers of one table in the order in which they lie in a record, with their sizes.

    Layers of one size are together, as in engines that lay a block's layers side by side.
    """
    first = {size: number for number, size in reversed(list(enumerate(sizes)))}
    named = zip(layers, sizes, strict=True)
    return sorted(named, key=lambda each: (first[each[1]], _as_counted(each[0])))


def _as_counted(layer: str) -> list[tuple[int, str]]:
    """A sort key that puts layer 2 before layer 10, as engines order their layers."""
    parts = re.split(r"(\d+)", layer)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def weights_directories(config: Any) -> list[str] | Obstacle:
    """The directories of the weights that this engine loads, as files that can be read now.

    The model's directory comes first, then the drafter's, if it has weights of its own.
    """
    found = [_weights_directory(config.model_config, config.load_config)]
    drafter = _drafter(config)
    if drafter is not None and drafter.model != config.model_config.model:
        load = getattr(config.speculative_config, "draft_load_config", None) or config.load_config
        found.append(_weights_directory(drafter, load))
    unknown = next((each for each in found if isinstance(each, Obstacle)), None)
    return unknown or [each for each in found if isinstance(each, str)]


def _drafter(config: Any) -> Any:
    """The configuration of a drafter; vLLM has one even if speculation uses no model."""
    return getattr(config.speculative_config, "draft_model_config", None)


def _weights_directory(model: Any, load: Any) -> str | Obstacle:
    load_format = str(load.load_format).lower()
    if load_format not in READS_FILES or bool(getattr(model, "model_weights", "")):
        return _unknown(f"load_format={load_format} reads no weight files of the model's directory")
    found = local_weights(model.model, model.revision)
    return _unknown(found.why) if found.why else found.directory


def _unknown(why: str) -> Obstacle:
    sentence = f"the weights are unknown, because {why}; {_NAME_THEM}"
    return Obstacle(SharingState.WEIGHTS_UNKNOWN, sentence, "weights unknown")


class Namespace(EngineNamespace):
    """The namespace of one engine of vLLM."""

    def __init__(
        self, config: Any, cache: Any, shape: Geometry, workers: Sequence[ShardMetadata] = ()
    ) -> None:
        super().__init__(
            {
                **_fields(config, cache, shape),
                **_fields_of_ranks(config, workers),
                **_fields_of_local(cache_groups(cache, _dcp(config))[1:]),
                **_fields_of_layers(config, workers),
                **_fields_of_speculation(config),
                **_fields_of_codec(shape),
            }
        )


def _fields(config: Any, cache: Any, shape: Geometry) -> dict[str, str | int]:
    model, spec = config.model_config, full_group(cache).spec
    loaded = {k: v for k, v in model.hf_config.to_dict().items() if k not in _ORIGIN}
    return {
        "engine": "vllm",
        "version": vllm_version,  # layouts have changed between releases without being declared
        "device": str(config.device_config.device_type),
        "model": json.dumps(loaded, sort_keys=True, default=str),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "max_model_len": int(model.max_model_len),
        "kv_dtype": str(getattr(spec, "dtype", "")),
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "kv_heads": int(spec.num_kv_heads),
        "head_size": int(spec.head_size),
        "layout": layout_of(config, cache),
        "sliding_window": str(getattr(spec, "sliding_window", None)),
        "layers": "\n".join(shape.layers),
        "page_bytes": shape.page_bytes,
        "block_tokens": shape.block_tokens,
        "chunk_blocks": shape.chunk_blocks,
        "tp": int(config.parallel_config.tensor_parallel_size),
    }


def _without_origin(config: Any) -> Any:
    """A model's configuration, nested ones included, without fields that say where it came from."""
    if not isinstance(config, dict):
        return config
    return {name: _without_origin(each) for name, each in config.items() if name not in _ORIGIN}


def _fields_of_speculation(config: Any) -> dict[str, str | int]:
    """Fields for how an engine speculates; empty if it does not."""
    speculation, drafter = config.speculative_config, _drafter(config)
    if speculation is None:
        return {}
    chosen = {name: value for name, value in vars(speculation).items() if name not in _OTHERS}
    loaded = {} if drafter is None else _without_origin(drafter.hf_config.to_dict())
    return {
        "speculation": json.dumps(chosen, sort_keys=True, default=str),
        "drafter": json.dumps(loaded, sort_keys=True, default=str),
        "drafter_dtype": str(getattr(drafter, "dtype", None)),
        "drafter_quantization": str(getattr(drafter, "quantization", None)),
    }


def _fields_of_ranks(config: Any, workers: Sequence[ShardMetadata]) -> dict[str, str | int]:
    """Fields for how several workers divide the KV; empty for a single worker."""
    parallel = config.parallel_config
    if not workers:
        return {}
    told = [(each.shard.rank, each.shard.number, each.page_bytes, each.layers) for each in workers]
    return {
        "pp": int(parallel.pipeline_parallel_size),
        "dcp": int(getattr(parallel, "decode_context_parallel_size", 1)),
        "pcp": int(getattr(parallel, "prefill_context_parallel_size", 1)),
        # vLLM decides this in its workers; the scheduler may have another number.
        "interleave": max(each.interleave for each in workers),
        "workers": json.dumps(sorted(told)),
    }


def _fields_of_codec(shape: Geometry) -> dict[str, str | int]:
    """Fields for which groups are encoded, and how; empty if none is."""
    encoded = [number for number, group in enumerate(shape.groups) if group.is_encoded]
    return {"codec": f"{CODEC_NAME} {encoded}"} if encoded else {}


def _fields_of_local(groups: Sequence[CacheGroup]) -> dict[str, str | int]:
    """Fields for groups other than full attention; empty if there are none."""
    if not groups:
        return {}
    told = [
        (
            *(group.reach.kind.value, group.reach.tokens, group.block_tokens, group.page_bytes),
            *(group.tables, group.layers),
            *shaped_by(group.spec),
        )
        for group in groups
    ]
    return {"groups": json.dumps(told)}


def _fields_of_layers(config: Any, workers: Sequence[ShardMetadata]) -> dict[str, str | int]:
    """Fields for what only workers know: layers of unequal size, local ones of other stages."""
    unlike = sorted((each.shard.rank, each.unlike) for each in workers if each.unlike)
    local = sorted((each.shard.rank, each.local_layers) for each in workers if each.local_layers)
    has_stages = int(config.parallel_config.pipeline_parallel_size) > 1
    return {
        **({"unlike": json.dumps(unlike)} if unlike else {}),
        **({"local_layers": json.dumps(local)} if local and has_stages else {}),
    }
