"""What a row compares: the same engine alone, with Forebay, and with vLLM's own CPU tier.

Also how large everything is: as the bars want it, or tiny, so that a row can be rehearsed anywhere.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from forebay.bench.gpu import model
from forebay.bench.result.machine import has_bfloat16
from forebay.engines.start import vllm
from forebay.errors import StartupError
from forebay.settings import Settings

GPU_ONLY: Final = "gpu_only"
FOREBAY: Final = "forebay"
ALWAYS_LOADS: Final = "forebay_always_loads"
VLLM_CPU: Final = "vllm_cpu"
VLLM_FILES: Final = "vllm_cpu_and_files"  # with files beneath its CPU tier
WITH_POOL: Final = frozenset({FOREBAY, ALWAYS_LOADS})
_NO_BFLOAT16: Final = (
    "only bfloat16 can be encoded, and vLLM has no kernels of it for this processor."
)


@dataclass(frozen=True, slots=True)
class RowScale:
    name: str
    config: dict[str, Any]  # the model's
    arguments: dict[str, Any]  # of every engine
    clients: int
    requests: int  # stateless ones, a repeat
    prompt_tokens: int  # of these
    first_tokens: int  # of a dialog
    turn_tokens: int
    answer_tokens: int
    long_tokens: int  # of the one long prompt
    dram_bytes: int
    small_dram_bytes: int  # where the drive has to carry it
    disk_bytes: int
    slab_bytes: int  # where it is about registering it
    variables: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # Forebay's, beside the defaults
    variants: tuple[str, ...] = (GPU_ONLY, FOREBAY, VLLM_CPU)
    repeats: int = 3
    shapes: dict[str, "ModelShape"] = field(default_factory=dict)  # other models, by name
    directory: str = ""  # of a model with weights of its own; "": weights are made up

    @property
    def token_bytes(self) -> int:
        return model.token_bytes(self.config)

    def in_bfloat16(self) -> "RowScale":
        """The same work with KV that can be encoded; the engine's own cache holds as many tokens.

        A StartupError where a rehearsal's processor cannot compute with it.
        """
        if self.config["torch_dtype"] == "bfloat16":
            return self
        if not has_bfloat16():
            raise StartupError(_NO_BFLOAT16)
        arguments = {**self.arguments, "dtype": "bfloat16"}
        arguments["kv_cache_memory_bytes"] //= 2
        config = {**self.config, "torch_dtype": "bfloat16"}
        return replace(self, config=config, arguments=arguments)

    def with_weights(self, directory: str) -> "RowScale":
        """The same work, as far as its context goes, for the model that lies in a directory.

        The engine's own cache holds as many tokens, and so does DRAM.
        """
        config = {**model.read(directory), "torch_dtype": self.arguments["dtype"]}
        tokens = config["max_position_embeddings"]
        arguments = {**self.arguments, "load_format": "auto"}
        arguments["max_model_len"] = min(tokens, self.arguments["max_model_len"])
        scale = replace(
            self,
            config=config,
            directory=str(Path(directory).absolute()),
            long_tokens=min(self.long_tokens, tokens - self.answer_tokens),
        )

        def as_many(size_bytes: int) -> int:
            return size_bytes * scale.token_bytes // self.token_bytes

        arguments["kv_cache_memory_bytes"] = as_many(arguments["kv_cache_memory_bytes"])
        return replace(
            scale,
            arguments=arguments,
            dram_bytes=as_many(self.dram_bytes),
            small_dram_bytes=as_many(self.small_dram_bytes),
        )

    def of_model(self, name: str) -> "RowScale":
        """The same work for another kind of model, with fewer repeats."""
        shape = self.shapes[name]
        kv_bytes = {"kv_cache_memory_bytes": shape.kv_bytes}
        return replace(
            self,
            config=shape.config,
            arguments={**self.arguments, **kv_bytes},
            dram_bytes=shape.dram_bytes,
            repeats=_MODEL_REPEATS,
        )


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Another kind of model: on the GPU it finds room for about as many dialogs as the first."""

    config: dict[str, Any]
    kv_bytes: int  # of an engine's own KV cache
    dram_bytes: int


MLA: Final = "mla"
WINDOWS: Final = "windows"
_MODEL_REPEATS: Final = 2
_ENGINE: Final[dict[str, Any]] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "generation_config": "vllm",
}
FULL: Final = RowScale(
    name="full",
    config=model.QWEN3_8B,
    arguments={
        **_ENGINE,
        "dtype": "bfloat16",
        "kv_cache_memory_bytes": 8 << 30,
        "gpu_memory_utilization": 0.2,  # checked at start, beside the other variants' engines
        "max_model_len": 40_960,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
    },
    clients=16,
    requests=192,
    prompt_tokens=2000,
    first_tokens=3000,
    turn_tokens=400,
    answer_tokens=100,
    long_tokens=32_000,
    dram_bytes=24 << 30,
    small_dram_bytes=4 << 30,
    disk_bytes=40 << 30,
    slab_bytes=64 << 30,
    variables={"VLLM_USE_FLASHINFER_SAMPLER": "0", "PYTHONHASHSEED": "0"},
    shapes={
        MLA: ModelShape(model.DEEPSEEK_V2_LITE, kv_bytes=1728 << 20, dram_bytes=8 << 30),
        WINDOWS: ModelShape(model.GEMMA3_4B, kv_bytes=4 << 30, dram_bytes=24 << 30),
    },
)
TINY: Final = RowScale(
    name="tiny",
    config=model.TINY,
    arguments={
        **_ENGINE,
        "dtype": "float32",
        "kv_cache_memory_bytes": 6 << 20,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "enforce_eager": True,
    },
    clients=2,
    requests=6,
    prompt_tokens=300,
    first_tokens=600,
    turn_tokens=100,
    answer_tokens=8,
    long_tokens=1500,
    dram_bytes=256 << 20,
    small_dram_bytes=64 << 20,
    disk_bytes=1 << 30,
    slab_bytes=1 << 30,
    variables={"VLLM_CPU_CI_ENV": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"},
    settings={"lookup_deadline_ms": 1000.0},
    variants=(GPU_ONLY, FOREBAY),  # vLLM's own tier needs a GPU
    shapes={
        MLA: ModelShape(model.TINY_MLA, kv_bytes=24 << 20, dram_bytes=256 << 20),
        WINDOWS: ModelShape(model.TINY_WINDOWS, kv_bytes=10 << 20, dram_bytes=256 << 20),
    },
)
SCALES: Final = {scale.name: scale for scale in (FULL, TINY)}


def arguments(variant: str, scale: RowScale, directory: str, socket: str) -> dict[str, Any]:
    """What an engine of this variant is started with."""
    plain = {**scale.arguments, "model": directory}
    if variant in WITH_POOL:
        made_up = "" if scale.directory else "made-up"
        settings = Settings(no_pool="fail", weights_id=made_up, **scale.settings)
        transfer = vllm.transfer_config(settings, socket)
        extra = transfer["kv_connector_extra_config"]
        assert isinstance(extra, dict)
        if variant == ALWAYS_LOADS:
            extra["always_load"] = True
        return {**plain, "kv_transfer_config": transfer}
    return {**plain, **vllm_tiers(scale.dram_bytes)} if variant == VLLM_CPU else plain


def vllm_tiers(dram_bytes: int, directory: str = "") -> dict[str, Any]:
    """What starts vLLM's CPU tier, and beneath it, where a directory is named, its tier of files.

    It does what --kv-offloading-size does; that flag itself would compile the model anew.
    """
    extra: dict[str, Any] = {"cpu_bytes_to_use": dram_bytes}
    if directory:
        extra["spec_name"] = "TieringOffloadingSpec"
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": directory}]
    native = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    return {"kv_transfer_config": {**native, "kv_connector_extra_config": extra}}
