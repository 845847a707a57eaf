"""The engine of the demo: the small model on vLLM, with what starts fast on this machine."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from forebay.bench.ab import demo_size
from forebay.bench.ab.variants import VllmServer
from forebay.bench.result import machine
from forebay.engines.start import demo_model
from forebay.errors import StartupError
from forebay.settings import Settings

_TOKEN_BYTES: Final = 46_080  # of KV: 30 layers, 3 heads of 64, keys and values, 4 bytes
_HASH_S: Final = 300.0
_LOOKUP_MS: Final = 1000.0  # long, since vLLM may compute on every core and delay the pool
# How far an engine's start is, by lines of its log, the last one first.
_STAGES: Final = (
    ("Starting vLLM server", "opening its port"),
    ("Loading weights took", "allocating its KV cache"),
    ("Starting to load model", "loading weights"),
    ("Initializing a V1 LLM engine", "setting up the model"),
    ("non-default args", "starting its engine process"),
)
_FIRST_STAGE: Final = "importing vLLM"


def engine_of(model: str, kv_cache_bytes: int, context_tokens: int) -> VllmServer:
    """The demo model on vLLM, on this machine's GPU or CPUs; its cache must hold one context.

    Nothing is compiled and one process less is started, which halves the time to start.
    """
    return VllmServer(
        model=model,
        served_name=demo_model.NAME,
        arguments=(
            "--enforce-eager",
            *("--dtype", "float32", "--max-model-len", str(context_tokens)),
            *("--max-num-seqs", "4", "--kv-cache-memory-bytes", str(kv_cache_bytes)),
            *("--block-size", "32", "--gpu-memory-utilization", "0.3"),
            *("--distributed-executor-backend", "uni"),
            "--enable-prompt-tokens-details",
        ),
        settings=Settings(no_pool="fail", lookup_deadline_ms=_LOOKUP_MS),
        variables={} if machine.gpus() else _cpu_variables(),
        is_offline=True,
    )


def know_weights(model: str) -> None:
    """Hash the weights in advance: an engine shares nothing until it knows them."""
    command = [sys.executable, "-P", "-m", "forebay.engines.weights", model]
    try:
        subprocess.run(command, capture_output=True, timeout=_HASH_S, check=True)
    except (OSError, subprocess.SubprocessError):
        raise StartupError("the demo model's weights cannot be read.") from None


def stage_of(log: Path) -> str:
    """How far an engine's start is, by its log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return next((stage for line, stage in _STAGES if line in text), _FIRST_STAGE)


def _cpu_variables() -> dict[str, str]:
    """VLLM on CPUs: every core for both variants, and a worker within the engine's process.

    By default vLLM reserves more cores with a connector than without one.
    """
    return {
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(cores()),
    }


def cores() -> int:
    """Physical cores that this process may use."""
    with contextlib.suppress(OSError):
        is_smt = Path("/sys/devices/system/cpu/smt/active").read_text(encoding="ascii").strip()
        if is_smt == "1":
            return max(1, len(os.sched_getaffinity(0)) // 2)
    return len(os.sched_getaffinity(0))


def cache_bytes(context: int) -> int:
    """The size of the KV cache for this context."""
    return demo_size.cache_tokens(context) * _TOKEN_BYTES
