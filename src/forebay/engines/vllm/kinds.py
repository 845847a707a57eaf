"""The table of all kinds of models, configurations and requests on vLLM: shared or declined.

This is the only such table. The connector takes its reasons to decline from here (`identity`,
`inputs`), docs/compatibility.md is generated from it (`make docs`), `forebay plan` uses it to tell
what would be declined, and a test on real vLLM fails unless the row of what it runs names the
release and the device. Nothing of vLLM is imported.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CPU: Final = "CPU"
H200: Final = "H200"
# vLLM's loaders that read the files beside the model's configuration, which identify the weights.
# Others make weights up, or take them from a service, a stream or another file.
READS_FILES: Final = {
    *("auto", "hf", "safetensors", "pt", "npcache", "mistral", "gguf", "bitsandbytes"),
    *("fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded"),
    "sharded_state",
}
# Ways to speculate that store no KV, or a drafter's KV of certain tokens only.
SPECULATES: Final = {
    *("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"),
    *("eagle", "eagle3", "mtp", "draft_model"),
}
# Those of them that have no layers at all.
DRAFTS_WITHOUT_LAYERS: Final = {"ngram", "ngram_gpu", "suffix"}


class Heading(StrEnum):
    """The heading in docs/compatibility.md under which a kind is shown."""

    MODELS = "Models"
    WAYS = "Ways to run"
    REQUESTS = "Requests"


class Support(StrEnum):
    """Whether a kind is shared."""

    SHARED = "shared"
    ENGINE_DECLINED = "engine declined"  # such an engine shares nothing
    REQUEST_DECLINED = "request declined"  # such a request is not shared; others are


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table."""

    heading: Heading
    what: str  # in words that a reader would look for
    support: Support = Support.SHARED
    why: str = ""  # if declined: why, as logged, without a full stop
    ran: tuple[tuple[str, str], ...] = ()  # (release, device) on which a test has run it
    note: str = ""  # how it is shared, and what was not run

    def has_run(self, release: str, device: str) -> bool:
        """Whether a test has run it there."""
        return (release, device) in self.ran


_EACH: Final = ("0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
_ON_0_32: Final = (("0.32.0", CPU),)
_ON_EACH: Final = tuple((release, CPU) for release in _EACH)
_FROM_0_29: Final = tuple(each for each in _ON_EACH if each[0] >= "0.29")  # latent, on a CPU


def _model(what: str, note: str = "", ran: tuple[tuple[str, str], ...] = _ON_0_32) -> Kind:
    return Kind(Heading.MODELS, what, ran=ran, note=note)


def _way(what: str, note: str = "", ran: tuple[tuple[str, str], ...] = _ON_0_32) -> Kind:
    return Kind(Heading.WAYS, what, ran=ran, note=note)


def _request(what: str, note: str = "", ran: tuple[tuple[str, str], ...] = _ON_0_32) -> Kind:
    return Kind(Heading.REQUESTS, what, ran=ran, note=note)


def _no_engine(heading: Heading, what: str, why: str, note: str = "") -> Kind:
    return Kind(heading, what, Support.ENGINE_DECLINED, why, note=note)


def _no_request(what: str, why: str, note: str = "") -> Kind:
    return Kind(Heading.REQUESTS, what, Support.REQUEST_DECLINED, why, note=note)


# By the names that code uses; those of attentions are vLLM's own.
KINDS: Final[dict[str, Kind]] = {
    "FullAttentionSpec": _model(
        "full attention, any number of KV heads (MHA, GQA, MQA)",
        "three shapes on CPU; a model of one of them on every release",
        (*_ON_EACH, ("0.26.0", H200)),
    ),
    "dtypes": _model(
        "any weights and KV dtype: pages are opaque bytes",
        "float32 and bfloat16 on CPU, bfloat16 and fp8 KV on an H200",
        (*_ON_0_32, ("0.26.0", H200)),
    ),
    "named weights": _model(
        "weights without local files: `load_format=dummy`, tensorizer, remote loaders, buckets",
        "dummy weights: shared once `weights_id` names them",
    ),
    "MLAAttentionSpec": _model(
        "MLA (DeepSeek, Kimi)",
        "one rank and two: stored once for all ranks, equal pages; one on an H200",
        (*_FROM_0_29, ("0.26.0", H200)),
    ),
    "unequal layers": _model(
        "layers of one kind with pages of unequal size: MLA with an indexer (DeepSeek-V3.2, GLM-5),"
        " full attention with key-only indexers (MiniMax-M3), a drafter with other heads",
        "run with such a drafter, on one rank and two; models with indexers do not run on CPUs:"
        " vLLM's own scheduler was run with a simulated model of the sizes of DeepSeek-V3.2's",
    ),
    "SlidingWindowSpec": _model(
        "sliding windows beside full attention (Gemma 3, Gemma 4, gpt-oss)",
        "of a window only what a hit needs is stored; Gemma 3 on one rank and two, one on an H200",
        (*_ON_EACH, ("0.26.0", H200)),
    ),
    "ChunkedLocalAttentionSpec": _model(
        "chunked local attention beside full attention (Llama 4)",
        "of a chunk only what a hit needs is stored; the shape of Llama 4 on one rank",
    ),
    "states": _model(
        "recurrent states beside full attention (Mamba, gated delta nets: Qwen3-Next)",
        "from 0.29 on, with prefix caching; the shape of Qwen3-Next on one rank, Mamba not; with"
        " 0.26 and prefix caching the engine refuses to start, since vLLM itself would answer"
        " wrongly",
    ),
    "several attentions": _model(
        "several kinds of attention, one of them full",
        "each of the models of the three rows before has two; none with three was run",
    ),
    "MambaSpec": _no_engine(
        Heading.MODELS,
        "recurrent states before 0.29, or without prefix caching",
        "recurrent states need vLLM 0.29 or later, with prefix caching",
    ),
    "zeroed states": _no_engine(
        Heading.MODELS,
        "recurrent states, or KV of several precisions, with `VLLM_USE_V2_MODEL_RUNNER`",
        "this model's KV cache needs VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    "local attention alone": _no_engine(
        Heading.MODELS,
        "sliding windows, chunked attention or states in every layer",
        "models without full attention are not supported yet",
    ),
    "full attention of several sizes": _no_engine(
        Heading.MODELS,
        "layers of full attention with blocks of several sizes",
        "layers of full attention of several sizes are not supported yet",
    ),
    "stages of several attentions": _way(
        "pipeline parallelism beside sliding windows or chunked attention",
        "Gemma 3 on two stages, of which one has no window",
    ),
    "speculation beside local attention": _way(
        "speculative decoding beside sliding windows or chunked attention: ngram, suffixes",
        "Gemma 3 with ngram",
    ),
    "drafters beside local attention": _no_engine(
        Heading.WAYS,
        "speculative decoding beside sliding windows or chunked attention with other methods",
        "speculative decoding with a drafter beside local attention is not supported yet",
        "Gemma 3 with a draft model was run: after a load tokens differed from those without the"
        " pool, and it is not known why",
    ),
    "stages of states": _no_engine(
        Heading.WAYS,
        "pipeline parallelism of models with recurrent states",
        "pipeline parallelism of models with recurrent states is not supported yet",
        "the model with states that was run on a CPU has one stage, and so has the simulated one",
    ),
    "speculation beside states": _no_engine(
        Heading.WAYS,
        "speculative decoding of models with recurrent states",
        "speculative decoding of models with recurrent states is not supported yet",
        "vLLM keeps blocks for drafts between those of states and moves them while a request"
        " runs; nothing could be run that shows which of them is whole",
    ),
    "other attention": _no_engine(
        Heading.MODELS, "other kinds of attention", "this kind of attention is not supported yet"
    ),
    "encoder-decoder": _no_engine(
        Heading.MODELS, "encoder-decoder models", "encoder-decoder models are not supported"
    ),
    "pooling": _no_engine(Heading.MODELS, "pooling models", "pooling models are not supported"),
    "scheduling": _way("chunked prefill, prefix caching on or off, preemption"),
    "async": _way(
        "CUDA graphs, asynchronous scheduling, `VLLM_USE_V2_MODEL_RUNNER`", ran=(("0.26.0", H200),)
    ),
    "compress": _way(
        "`compress`: bfloat16 KV is stored in 0.76 of its size, exactly; fp8, float16 and float32"
        " as they are",
        "a trained model's KV and KV that does not fit, by the reference on a CPU; equal pages and"
        " tokens on an H200. Engines with it and without it do not share",
        (*_ON_0_32, ("0.26.0", H200)),
    ),
    "tensor parallelism": _way(
        "tensor parallelism",
        "two ranks, through DRAM, restarts and NVMe; a rank that is late or dies; not on several"
        " GPUs",
        _ON_EACH,
    ),
    "pipeline parallelism": _way(
        "pipeline parallelism",
        "two stages of unequal size, through DRAM, restarts and NVMe; not on several GPUs",
    ),
    "data parallelism": _way(
        "data parallelism",
        "two replicas of one server: every replica is an engine of its own on the same pool, and"
        " finds what another has stored",
    ),
    "expert parallelism": _way(
        "expert parallelism", "read in vLLM's source: it does not change the KV cache", ()
    ),
    "context parallelism": _way(
        "decode context parallelism (`--decode-context-parallel-size`), also with prefill context"
        " parallelism beside it",
        "read, not run: vLLM's CPU build refuses it; vLLM's own scheduler was run with a simulated"
        " model on two and four ranks. Every rank has a shard of its own; with MLA, and without"
        " prefill context parallelism beside it, ranks that have the same tokens have one. Sizes,"
        " interleaving and ranks are in the namespace. Read in 0.27.1 to 0.32",
        (),
    ),
    "replicated prefill": _no_engine(
        Heading.WAYS,
        "prefill context parallelism without decode context parallelism",
        "prefill context parallelism needs decode context parallelism beside it",
        "its ranks have the same KV, and vLLM names two of them alike when it passes on what"
        " workers tell, so it cannot be known which of them began",
    ),
    "ngram": _way(
        "speculative decoding without a drafter: ngram",
        "only tokens that are accepted are stored",
    ),
    "eagle": _way(
        "speculative decoding with EAGLE",
        "the drafter's layers are stored with the model's; its weights and the speculative"
        " configuration are in the namespace",
    ),
    "draft model": _way("speculative decoding with a draft model", "as EAGLE"),
    "mtp": _way(
        "speculative decoding with MTP",
        "as EAGLE; run with full attention (the shape of MiMo)",
    ),
    "other drafters": _way(
        "speculative decoding with EAGLE 3, Medusa, an MLP or suffixes",
        "as EAGLE or ngram; read in vLLM's source",
        (),
    ),
    "other speculation": _no_engine(
        Heading.WAYS,
        "other ways to speculate: DFlash, DSpark, `extract_hidden_states`, a class of your own",
        "this way of speculative decoding is not supported yet",
    ),
    "run-time scales": _no_engine(
        Heading.WAYS, "`calculate_kv_scales`", "KV scales calculated at run time are not supported"
    ),
    "reset": _way(
        "`reset_prefix_cache(reset_connector=True)`, new weights in memory",
        "nothing stored before is found again; `keep_on_reset` turns that off",
    ),
    "sleep": _way(
        "sleep at level 1 or 2, and wake",
        "ends in the reset above, so it wants `keep_on_reset`, as a gateway sets it; run but for"
        " memory that is given back, which CPU builds do not do",
    ),
    "salt": _request("`cache_salt`", "in the key"),
    "lora": _request(
        "LoRA adapters in a local directory",
        "known by the hash of their files, which is computed in the background; an adapter whose"
        " files change is not shared any more",
    ),
    "images": _request(
        "images, audio, video",
        "known by the hash of what vLLM's processor made of them; an identifier that came with two"
        " contents is not shared any more; run with images (the shape of Idefics3)",
    ),
    "prompt embeddings": _request("prompt embeddings", "known by the hash of each chunk's rows"),
    "adapter_hashing": _no_request(
        "a LoRA adapter that is being hashed", "the adapter's files are being hashed"
    ),
    "adapter_unknown": _no_request(
        "a LoRA adapter named by a hub, without local files, or changed since it was hashed",
        "the adapter's files are not known, or have changed",
    ),
    "adapter_in_place": _no_request(
        "LoRA with `load_inplace`", "its weights are replaced under one number"
    ),
    "media_counted": _no_request(
        "images, audio, video with `mm_processor_cache_gb=0` and prefix caching off",
        "vLLM names them by counters in this configuration",
    ),
    "media_elsewhere": _no_request(
        "images, audio, video with `mm_processor_cache_type=shm`, or encoded by another engine",
        "their content is not where the scheduler is",
    ),
    "media_renamed": _no_request(
        "images, audio, video whose UUID, given by a client, came with two contents",
        "what vLLM's encoder keeps by that UUID may be the other content",
    ),
    "media_unknown": _no_request(
        "images, audio, video that cannot be hashed", "their content is not known"
    ),
    "hashing": _no_request(
        "inputs that take longer than a second to hash", "its inputs are still being hashed"
    ),
    "resumable": _no_request(
        "sessions with streamed inputs", "vLLM takes tokens back from such a session"
    ),
    "skips_cache": _no_request(
        "`prompt_logprobs` and others that skip vLLM's own cache", "it skips vLLM's own cache"
    ),
}


@dataclass(frozen=True, slots=True)
class Configured:
    """The facts of an engine's configuration that decide whether it is shared.

    The connector has them from vLLM's whole configuration, `forebay doctor` from flags and a
    model's file.
    """

    has_states: bool = False  # its layers keep recurrent states
    keeps_states: bool = True  # states at block ends are kept and told, as vLLM does from 0.29 on
    zeroes_states: bool = False  # freed blocks are zeroed before they are stored
    has_local: bool = False  # layers that look less far back than others
    stages: int = 1
    prefill_context_parallel: int = 1
    decode_context_parallel: int = 1
    speculation: str | None = None  # its method, "" if not named; None: it does not speculate
    has_run_time_scales: bool = False
    is_encoder_decoder: bool = False
    is_pooling: bool = False


def declined_kinds(of: Configured) -> list[str]:
    """The kinds (of `KINDS`) for which such an engine is declined; most have none."""
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
