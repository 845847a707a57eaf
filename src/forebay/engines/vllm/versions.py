"""What differs between vLLM 0.26 and 0.32, and nothing else."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from vllm import __version__

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
except ImportError:  # before 0.30 a failed load is reported by its blocks alone
    KVConnectorTransferResults = None

RELEASE: Final = str(__version__)


def transfer_results(received: set[str], failed: set[str]) -> Any:
    """A worker's results of loads (0.30 and later)."""
    return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)


def reports_failed_requests() -> bool:
    """Whether a failed load is reported by its request (0.30 and later) or by its blocks."""
    return KVConnectorTransferResults is not None


def finish_reason(request: Any) -> str:
    """Why a request has ended, by vLLM's name for it; "": it has not, or vLLM does not say."""
    return getattr(request.get_finished_reason(), "name", "")


def keeps_states(spec: Any) -> bool:
    """Whether states at the ends of blocks are kept and the connector is told (0.29 and later)."""
    import vllm.v1.core.sched.output as told  # noqa: PLC0415

    is_told = hasattr(told, "KVConnectorBlockState")
    return is_told and getattr(spec, "mamba_cache_mode", "none") == "align"


def is_split_by_tokens(spec: Any) -> bool:
    """Whether decode context parallelism divides the tokens of this spec's blocks over ranks.

    From 0.31 on a spec says so; before, this holds for every attention.
    """
    return bool(getattr(spec, "dcp_sharded", type(spec).__name__ != "MambaSpec"))


def is_transferred(group: Any) -> bool:
    """Whether a group has ordinary blocks that a connector may load (0.32 has others)."""
    role = getattr(getattr(group, "role", None), "value", "default")
    is_here = not getattr(group, "host_resident", False)
    return role == "default" and is_here and bool(getattr(group, "enable_kv_transfer", True))


def kept_states(output: Any) -> dict[str, list[tuple[int, int, int]]]:
    """The states that are kept after a step: request → (group, block, tokens)."""
    blocks = getattr(output, "kv_connector_block_state", None)
    return getattr(blocks, "boundary_state_offloads", None) or {}


def resumes_without_state(config: Any, cache: Any) -> bool:
    """Whether this vLLM answers wrongly with any connector, even one that does nothing.

    0.26 continues after a prefix although it lacks the recurrent state of it (vllm#46453).
    """
    has_states = any(
        type(group.kv_cache_spec).__name__ == "MambaSpec" for group in cache.kv_cache_groups
    )
    is_old = __version__.startswith("0.26.")
    return is_old and has_states and bool(config.cache_config.enable_prefix_caching)


def zeroes_before_stores(config: Any, cache: Any) -> bool:
    """Whether freed blocks are zeroed before their offered chunks are copied.

    The newer model runner does so if a model has states or numbers of several precisions.
    """
    is_v2 = bool(getattr(config, "use_v2_model_runner", False))
    return is_v2 and bool(getattr(cache, "needs_kv_cache_zeroing", False))


def wanted_layout() -> str | None:
    """The layout in which a block is one run of bytes over all layers (0.29 and later, on a GPU).

    Known from vLLM's code up to 0.32, not run there: what it costs vLLM's attention is not known.
    """
    try:
        from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: PLC0415
    except ImportError:
        return None
    from vllm.platforms import current_platform  # noqa: PLC0415

    is_there = current_platform.is_cuda() and hasattr(KVCacheLayout, "BLNHC")
    return "BLNHC" if is_there else None


def layout_of(config: Any, cache: Any) -> str:
    """The KV cache's layout, as the engine declares it."""
    declared = getattr(cache, "kv_cache_layout", None)
    if declared is not None:
        return str(declared)
    from vllm.config import set_current_vllm_config  # noqa: PLC0415 - before 0.32
    from vllm.v1.attention.backends.utils import get_kv_cache_layout  # noqa: PLC0415

    # A scheduler in a separate process has no current configuration to ask for it.
    with set_current_vllm_config(config):
        return str(get_kv_cache_layout())


def storage_medium(events: Any) -> str:
    """The name of a local disk in vLLM's events."""
    # Up to 0.26, files and objects have names of their own.
    return str(getattr(events, "MEDIUM_STORAGE", None) or events.MEDIUM_FS)


def event_keys(extra: list[Any]) -> list[Any] | None:
    """What the hashes of some blocks cover beside tokens, as in vLLM's events."""
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415

    without_tags = getattr(kv_cache_utils, "to_event_extra_keys", None)  # if keys have tags
    if without_tags is None:
        return extra
    found: list[Any] | None = without_tags(extra)
    return found


def publishes_events(config: Any) -> bool:
    """Whether vLLM publishes KV events."""
    wanted = getattr(config, "kv_events_config", None)
    return bool(wanted is not None and wanted.enable_kv_cache_events)


def is_traced(config: Any) -> bool:
    """Whether vLLM makes spans of requests."""
    wanted = getattr(config, "observability_config", None)
    return bool(getattr(wanted, "otlp_traces_endpoint", None))


def hit_sources(tiers: Mapping[str, int]) -> dict[Any, int]:
    """Tokens by tier, under vLLM's names for their sources (0.32 and later)."""
    from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: PLC0415

    names = {"dram": CacheHitSource.HOST, "disk": CacheHitSource.DISK}
    found: Counter[Any] = Counter()
    for tier, tokens in tiers.items():
        found[names.get(tier, CacheHitSource.EXTERNAL_UNSPECIFIED)] += tokens
    return dict(found)
