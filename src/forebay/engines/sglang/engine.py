"""What SGLang says of itself, read from its own objects: the only place that knows their names.

Read in SGLang 0.5.23. What another release does not have under these names raises here, and the
engine is then served as without Forebay.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from sglang import __version__ as version
from sglang.srt import runtime_context
from sglang.srt.arg_groups.model_override_base import resolved_view
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

from forebay.engines.sglang.identity import EngineFacts
from forebay.engines.sglang.pages import PageShape

BACKEND: Final = "dynamic"
_KV_POOL: Final = "kv"
_RANKS: Final = (
    *("tp_rank", "tp_size", "pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size"),
    *("dcp_rank", "dcp_size"),
)
# What a host pool says of its shape, where it has it.
_POOL_FIELDS: Final = (
    *("layout", "page_size", "dtype", "layer_num", "target_layer_num", "start_layer", "end_layer"),
    *("head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim"),
    *("storage_format_tag", "head_group_num", "override_kv_cache_dim", "token_stride_size"),
)


def updater() -> type:
    """The class by which weights are changed in memory."""
    return WeightUpdater


def passes_prefixes() -> bool | None:
    """Whether SGLang was told to name the pages before a page; None: it was attached later."""
    memory = runtime_context.get_memory()
    if memory.hicache_storage_backend != BACKEND:
        return None
    told = memory.hicache_storage_backend_extra_config
    return bool(HybridCacheController.parse_storage_backend_extra_config(told)[4])


def is_from_start() -> bool:
    """Whether a backend that is made now is there before the engine serves."""
    return bool(runtime_context.get_memory().hicache_storage_backend == BACKEND)


def facts_of(storage: Any, *, is_watched: bool) -> EngineFacts:
    """What shapes this rank's KV; `storage` is SGLang's `HiCacheStorageConfig`."""
    model = runtime_context.process_model_config()
    shared = bool(storage.is_mla_model)
    return EngineFacts(
        version=str(version),
        arguments=_arguments(),
        config=model.hf_config.to_dict(),
        dtype=str(model.dtype),
        is_multimodal=bool(model.is_multimodal),
        is_generating=bool(model.is_generation) and not model.is_encoder_decoder,
        ranks={name: int(getattr(storage, name)) for name in _RANKS},
        is_shared_by_ranks=shared,
        is_from_start=is_from_start(),
        is_watched=is_watched,
    )


def _arguments() -> Mapping[str, Any]:
    """All of SGLang's arguments, as far as it has resolved them."""
    raw = runtime_context.get_server_args()
    resolved = resolved_view(raw)
    return {name: getattr(resolved, name) for name in type(raw).__struct_fields__}


def is_main_pool(name: object) -> bool:
    """Whether this is the pool of the KV of full attention, which has no others beside it here."""
    return str(getattr(name, "value", name)) == _KV_POOL


def page_shape(pool: Any) -> PageShape:
    """What a page of a host pool consists of; raises where the pool has no such pages."""
    tokens = int(pool.page_size)
    _, sizes = pool.get_page_buffer_meta(torch.arange(tokens))
    return PageShape(tokens, tuple(map(int, sizes)))


def told_by(pool: Any) -> dict[str, str]:
    """What a host pool says of its shape."""
    told = {name: str(getattr(pool, name, None)) for name in _POOL_FIELDS}
    return {"class": type(pool).__name__, **told}
