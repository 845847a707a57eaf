"""The namespace of an SGLang engine: everything in SGLang that shapes KV bytes.

SGLang names a page by its tokens, its `cache_salt` and its `extra_key` alone. The namespace covers
what else shapes its bytes: the weights, the model's configuration, how KV is computed, the layout
of host memory, and which rank's part it is. What cannot be keyed yet is declined, with one
sentence. Nothing here imports SGLang; `engine.py` reads the facts that are judged here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from forebay.engines.sglang.pages import PageShape
from forebay.engines.sharing import Obstacle, SharingState
from forebay.engines.weights import local_weights

# Fields of a model's configuration that say where it came from, not what it is.
_ORIGIN: Final = ("_name_or_path", "transformers_version", "_commit_hash")
# Names of SGLang's arguments that tell how KV is computed or laid out. One too many costs hits
# between engines started differently; one too few breaks promise 6. Read in 0.5.23.
_SHAPING: Final = re.compile(
    r"dtype|quant|attention|attn|dsa|dsv4|gemm|gem_|layout|precision|precise|fus|moe|expert|tf32"
    r"|fp32|fp4|fp8|model_impl|model_config_parser|override|decrypted|context_length|deterministic"
    r"|on_policy|_cp\b|_cp_|cp_|ep_size|dp_size|dcp|dwdp|unified_memory|page_size|swa|chunked_prefix"
    r"|mla|device$|embedding|torch_compile|allreduce|reduction|communications|megakernel|monokernel|layernorm"
    r"|offload|forward_hooks"
)
_READS_FILES: Final = {
    *("auto", "pt", "safetensors", "npcache", "gguf", "bitsandbytes", "mistral", "layered"),
    *("fastsafetensors", "instanttensor", "runai_streamer", "sharded_state"),
}
_NAME_THEM: Final = "set weights_id to a name that no other weights have"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known about one rank of an engine before it serves."""

    version: str
    arguments: Mapping[str, Any]  # SGLang's arguments, as resolved
    config: Mapping[str, Any]  # the model's configuration
    dtype: str
    is_multimodal: bool = False
    is_generating: bool = True  # as opposed to pooling, and to encoder-decoder models
    ranks: Mapping[str, int] = field(default_factory=dict)
    is_shared_by_ranks: bool = False  # all ranks of a stage have the same KV, and rank 0 stores it
    is_from_start: bool = True  # attached before any weights could be changed in memory
    is_watched: bool = True  # later changes of the weights in memory are noticed


def declined(facts: EngineFacts) -> Obstacle | None:
    """Why this engine's KV cannot be shared, or None if it can."""
    said = facts.arguments.get
    algorithm = str(said("speculative_algorithm") or "none").lower()
    reasons = {
        "speculative decoding with a drafter is not supported yet": algorithm
        not in {"none", "ngram"},
        "LoRA is not supported yet": any(
            said(name) for name in ("enable_lora", "lora_paths", "uno_lora_path")
        ),
        "multimodal models are not supported yet": facts.is_multimodal,
        "pooling and encoder-decoder models are not supported": not facts.is_generating,
        "diffusion language models are not supported": bool(said("dllm_algorithm")),
        "KV scales from a file of their own are not supported": bool(
            said("quantization_param_path")
        ),
        "this release of SGLang does not say when weights change": not facts.is_watched,
    }
    why = next((sentence for sentence, holds in reasons.items() if holds), "")
    return Obstacle(SharingState.DECLINED, why, why) if why else None


def weights_directory(facts: EngineFacts) -> str | Obstacle:
    """The directory of the weights that this engine has loaded, as files that can be read now."""
    said = facts.arguments.get
    load_format = str(getattr(said("load_format"), "value", said("load_format"))).lower()
    if not facts.is_from_start:
        return _unknown("the backend was attached to an engine that was serving")
    if load_format not in _READS_FILES:
        return _unknown(f"load_format={load_format} reads no weight files of the model's directory")
    for name in ("custom_weight_loader", "kt_weight_path", "modelopt_checkpoint_restore_path"):
        if said(name):
            return _unknown(f"{name} may load others")
    found = local_weights(str(said("model_path")), said("revision"))
    return _unknown(found.why) if found.why else found.directory


def fields_of(
    facts: EngineFacts, shape: PageShape, memory: Mapping[str, str]
) -> dict[str, str | int]:
    """Everything that shapes KV bytes, except the weights and the tokens.

    `memory` is the host memory's description of itself.
    """
    shaping = {name: facts.arguments[name] for name in facts.arguments if _SHAPING.search(name)}
    loaded = {name: each for name, each in facts.config.items() if name not in _ORIGIN}
    ranks = dict(facts.ranks)
    if facts.is_shared_by_ranks:
        ranks.pop("tp_rank", None)
    return {
        "engine": "sglang",
        "version": facts.version,  # layouts change between releases without being declared
        "model": _told(loaded),
        "dtype": facts.dtype,
        "arguments": _told(shaping),
        "ranks": _told(ranks),
        "memory": _told(dict(memory)),
        "page_tokens": shape.tokens,
        "pieces": _told(list(shape.pieces)),
    }


def _told(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _unknown(why: str) -> Obstacle:
    sentence = f"the weights are unknown, because {why}; {_NAME_THEM}"
    return Obstacle(SharingState.WEIGHTS_UNKNOWN, sentence, "weights unknown")
