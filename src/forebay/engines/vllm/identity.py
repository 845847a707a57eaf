"""Who may share KV with whom: a namespace over everything in vLLM that shapes the bytes.

What cannot be keyed yet is declined, with one sentence, and served as without the tier.
"""

import json
import re
import secrets
from pathlib import Path
from typing import Any, Final

from vllm import __version__ as vllm_version

from forebay.engines.vllm.pages import Geometry
from forebay.engines.vllm.versions import layout_of
from forebay.identity.namespace import fingerprint

_CHUNK_BYTES: Final = 4 << 20  # what a chunk should have: a good size for a drive and for DMA
_CHUNK_TOKENS_MAX: Final = 256
# Fields of a model's configuration that say where it came from, not what it is.
_ORIGIN: Final = ("_name_or_path", "transformers_version", "_commit_hash")


def declined(config: Any, cache: Any) -> str:
    """Why this engine's KV cannot be shared yet, in one sentence; empty if it can."""
    parallel, model = config.parallel_config, config.model_config
    if len(cache.kv_cache_groups) != 1:
        return "models with several kinds of attention are not supported yet"
    spec = cache.kv_cache_groups[0].kv_cache_spec
    reasons = {
        f"{type(spec).__name__} is not supported yet": type(spec).__name__ != "FullAttentionSpec",
        "tensor parallelism is not supported yet": parallel.tensor_parallel_size != 1,
        "pipeline parallelism is not supported yet": parallel.pipeline_parallel_size != 1,
        "context parallelism is not supported yet": getattr(
            parallel, "decode_context_parallel_size", 1
        )
        * getattr(parallel, "prefill_context_parallel_size", 1)
        != 1,
        "speculative decoding is not supported yet": config.speculative_config is not None,
        "KV scales calculated at run time are not supported": bool(
            getattr(config.cache_config, "calculate_kv_scales", False)
        ),
        "encoder-decoder models are not supported": bool(model.is_encoder_decoder),
        "pooling models are not supported": model.runner_type == "pooling",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def geometry(config: Any, cache: Any, chunk_tokens: int) -> Geometry:
    """The shape of a chunk: from the model, unless `chunk_tokens` says otherwise."""
    group = cache.kv_cache_groups[0]
    spec = group.kv_cache_spec
    block_tokens = spec.block_size
    layers = tuple(sorted(group.layer_names, key=_as_counted))
    block_bytes = spec.page_size_bytes * len(layers)
    wanted = min(_CHUNK_BYTES // block_bytes, _CHUNK_TOKENS_MAX // block_tokens)
    chunk_blocks = chunk_tokens // block_tokens if chunk_tokens else wanted
    del config
    return Geometry(layers, spec.page_size_bytes, block_tokens, max(1, chunk_blocks))


def _as_counted(layer: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10: the order in which an engine lays them side by side, if it does."""
    parts = re.split(r"(\d+)", layer)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def weights_directory(config: Any) -> str:
    """Where the model's weights lie on this machine."""
    model = config.model_config.model
    if Path(model).is_dir():
        return str(model)
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only for names of a hub

    revision = config.model_config.revision
    return str(snapshot_download(model, revision=revision, local_files_only=True))


class Namespace:
    """The namespace of one engine; unknown until its weights are."""

    def __init__(self, config: Any, cache: Any, shape: Geometry) -> None:
        self._fields = _fields(config, cache, shape)
        self._weights: str | None = None
        self._private = ""
        self.name: bytes | None = None

    def know_weights(self, digest: str) -> None:
        """From here on there is a name."""
        self._weights = digest
        self._rename()

    def retreat(self) -> None:
        """The weights may have changed in memory: share with nobody, not even with the past."""
        self._private = secrets.token_hex(16)
        self._rename()

    def _rename(self) -> None:
        if self._weights is not None:
            extra = {"weights": self._weights, "private": self._private}
            self.name = fingerprint({**self._fields, **extra})


def _fields(config: Any, cache: Any, shape: Geometry) -> dict[str, str | int]:
    model, spec = config.model_config, cache.kv_cache_groups[0].kv_cache_spec
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
