"""Facts about SGLang, read from its own objects: the only module that knows their names.

Written for SGLang 0.5.23. A release that lacks one of these names raises here, and the engine is
then served as without Forebay.
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
# Attributes in which a host pool tells its shape, if it has them.
_POOL_FIELDS: Final = (
    *("layout", "page_size", "dtype", "layer_num", "target_layer_num", "start_layer", "end_layer"),
    *("head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim"),
    *("storage_format_tag", "head_group_num", "override_kv_cache_dim", "token_stride_size"),
)


def updater() -> type:
    """The class whose methods change weights in memory."""
    return WeightUpdater


def passes_prefixes() -> bool | None:
    """Whether SGLang names the pages before a page; None if the backend was attached later."""
    memory = runtime_context.get_memory()
    if memory.hicache_storage_backend != BACKEND:
        return None
    told = memory.hicache_storage_backend_extra_config
    return bool(HybridCacheController.parse_storage_backend_extra_config(told)[4])


def is_from_start() -> bool:
    """Whether a backend that is created now exists before the engine serves."""
    return bool(runtime_context.get_memory().hicache_storage_backend == BACKEND)


def facts_of(storage: Any, *, is_watched: bool) -> EngineFacts:
    """Everything that shapes this rank's KV; `storage` is SGLang's `HiCacheStorageConfig`."""
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
    """All of SGLang's arguments, as resolved so far."""
    raw = runtime_context.get_server_args()
    resolved = resolved_view(raw)
    return {name: getattr(resolved, name) for name in type(raw).__struct_fields__}


def is_main_pool(name: object) -> bool:
    """Whether this pool holds the KV of full attention, and has no others beside it."""
    return str(getattr(name, "value", name)) == _KV_POOL


def page_shape(pool: Any) -> PageShape:
    """What a page of a host pool consists of; raises if the pool has no such pages."""
    tokens = int(pool.page_size)
    _, sizes = pool.get_page_buffer_meta(torch.arange(tokens))
    return PageShape(tokens, tuple(map(int, sizes)))


def told_by(pool: Any) -> dict[str, str]:
    """A host pool's own description of its shape."""
    told = {name: str(getattr(pool, name, None)) for name in _POOL_FIELDS}
    return {"class": type(pool).__name__, **told}
