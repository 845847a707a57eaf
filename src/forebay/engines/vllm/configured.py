"""For which configurations an engine is declined, by as much of one as is known.

The connector asks with vLLM's whole configuration, `forebay doctor` with flags and a model's file.
"""

from dataclasses import dataclass

from forebay.engines.vllm.kinds import DRAFTS_WITHOUT_LAYERS, KINDS, SPECULATES, Support


@dataclass(frozen=True, slots=True)
class Configured:
    """What of an engine's configuration decides whether it is shared."""

    has_states: bool = False  # recurrent ones
    keeps_states: bool = True  # and tells of them, as vLLM does from 0.29 on with prefix caching
    zeroes_states: bool = False  # before they are stored
    has_local: bool = False  # layers that look less far back than others
    stages: int = 1
    prefill_context_parallel: int = 1
    decode_context_parallel: int = 1
    speculation: str | None = None  # its method, empty where it is not named; None: none
    has_run_time_scales: bool = False
    is_encoder_decoder: bool = False
    is_pooling: bool = False


def declined_kinds(of: Configured) -> list[str]:
    """The kinds, of `KINDS`, for which such an engine is declined; most have none."""
    speculates, method = of.speculation is not None, of.speculation or ""
    kinds = {
        "MambaSpec": of.has_states and not of.keeps_states,
        "stages of states": of.has_states and of.stages > 1,
        "speculation beside states": of.has_states and speculates,
        "drafters beside local attention": of.has_local
        and bool(method)
        and method not in DRAFTS_WITHOUT_LAYERS,
        "zeroed states": of.zeroes_states,
        "replicated prefill": of.prefill_context_parallel > 1 and of.decode_context_parallel == 1,
        "other speculation": bool(method) and method not in SPECULATES,
        "run-time scales": of.has_run_time_scales,
        "encoder-decoder": of.is_encoder_decoder,
        "pooling": of.is_pooling,
    }
    found = [kind for kind, holds in kinds.items() if holds]
    assert all(KINDS[kind].support is Support.ENGINE_DECLINED for kind in found)
    return found
