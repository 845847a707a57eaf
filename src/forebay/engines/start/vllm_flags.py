"""What vLLM's flags say about sharing, read without vLLM.

Only flags that decide whether, and with whom, KV is shared are read; all others are skipped. vLLM
judges them itself when it starts: a flag that it would refuse is no error here. A SettingsError
names a flag whose value has to be JSON or a number and is not.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay.errors import SettingsError
from forebay.quantity import parse_size

_SHORT: Final = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-sc": "--speculative-config",
}
_SWITCHES: Final = ("--enable-prefix-caching", "--calculate-kv-scales")
_COMMANDS: Final = ("vllm", "serve")  # words that may stand before the model
_POOLING: Final = ("embed", "embedding", "classify", "reward", "score", "pooling")
_JSON: Final = ("--speculative-config", "--kv-transfer-config")


@dataclass(frozen=True, slots=True)
class VllmFlags:
    """A vLLM command line as far as it concerns sharing; what is absent is None or empty."""

    model: str = ""
    config_file: str = ""  # vLLM's own --config; it is not read
    load_format: str = "auto"
    prefix_caching: bool | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1
    speculation: str | None = None  # its method; "": vLLM chooses the method
    run_time_scales: bool = False
    is_pooling: bool = False
    kv_dtype: str = "auto"
    block_tokens: int = 16
    gpu_blocks: int | None = None
    kv_cache_bytes: int | None = None  # per GPU
    context_tokens: int | None = None
    media_cache_gb: float | None = None
    media_cache_type: str = ""
    connector: str | None = None  # the KV connector that is named, if any
    settings: Mapping[str, Any] | None = None  # the settings of our connector


def read_flags(words: Sequence[str]) -> VllmFlags:
    """The flags of a vLLM command line, with or without `vllm serve` and a model before them."""
    said = _collect(words)
    speculation, transfer = (_json(said, flag) for flag in _JSON)
    method = said.get("--spec-method") or (speculation or {}).get("method")
    speculates = speculation is not None or {"--spec-method", "--spec-model"} & said.keys()
    return VllmFlags(
        model=said.get("--model", ""),
        config_file=said.get("--config", ""),
        load_format=said.get("--load-format", "auto").lower(),
        prefix_caching=_switch(said, "enable-prefix-caching"),
        tensor_parallel=_number(said, "--tensor-parallel-size", 1),
        pipeline_parallel=_number(said, "--pipeline-parallel-size", 1),
        decode_context_parallel=_number(said, "--decode-context-parallel-size", 1),
        prefill_context_parallel=_number(said, "--prefill-context-parallel-size", 1),
        speculation=str(method or "") if speculates else None,
        run_time_scales=bool(_switch(said, "calculate-kv-scales")),
        is_pooling=said.get("--runner") == "pooling" or said.get("--task") in _POOLING,
        kv_dtype=said.get("--kv-cache-dtype", "auto"),
        block_tokens=_number(said, "--block-size", 16),
        gpu_blocks=_number(said, "--num-gpu-blocks-override", 0) or None,
        kv_cache_bytes=_size(said, "--kv-cache-memory-bytes"),
        context_tokens=_size(said, "--max-model-len"),
        media_cache_gb=_real(said, "--mm-processor-cache-gb"),
        media_cache_type=said.get("--mm-processor-cache-type", ""),
        connector=None if transfer is None else str(transfer.get("kv_connector", "")),
        settings=_extra(transfer),
    )


def _collect(words: Sequence[str]) -> dict[str, str]:
    """Every flag with its value, underscores as dashes; the last occurrence counts, as in vLLM."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0] in _COMMANDS:
        rest.pop(0)
    if rest and not rest[0].startswith("-"):
        found["--model"] = rest.pop(0)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("-"):
            continue
        head, dot, inner = name.partition(".")  # --speculative-config.method ngram
        flag = _SHORT.get(head, head.replace("_", "-")) + dot + inner
        takes_none = flag in _SWITCHES or flag.startswith("--no-")
        if not equals and not takes_none and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        flag = "--model" if flag == "--model-tag" else flag
        found.pop(flag, None)  # a repeated flag counts at its last place
        found[flag] = value
    return found


def _switch(said: Mapping[str, str], name: str) -> bool | None:
    """Whether a switch is on: of the flag and its opposite the last one counts."""
    last = [flag for flag in said if flag in {f"--{name}", f"--no-{name}"}][-1:]
    if not last:
        return None
    return last[0] == f"--{name}" and said[last[0]].lower() != "false"


def _json(said: Mapping[str, str], flag: str) -> dict[str, Any] | None:
    """A flag whose value is a JSON object, merged with its parts that were given one by one."""
    parts = {name.removeprefix(f"{flag}."): v for name, v in said.items() if f"{flag}." in name}
    if flag not in said:
        return dict(parts) or None
    try:
        found = json.loads(said[flag])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SettingsError(f"{flag} of vLLM is not a JSON object; write it as '{{...}}'.")
    return {str(name).replace("-", "_"): value for name, value in found.items()} | parts


def _extra(transfer: Mapping[str, Any] | None) -> dict[str, Any] | None:
    extra = (transfer or {}).get("kv_connector_extra_config")
    return dict(extra) if isinstance(extra, dict) else None


def _number(said: Mapping[str, str], flag: str, default: int) -> int:
    text = said.get(flag, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise SettingsError(f"{flag} of vLLM is '{text[:40]}', which is no number.")
    return int(text)


def _real(said: Mapping[str, str], flag: str) -> float | None:
    try:
        return float(said[flag]) if flag in said else None
    except ValueError:
        raise SettingsError(f"{flag} of vLLM is '{said[flag][:40]}', which is no number.") from None


def _size(said: Mapping[str, str], flag: str) -> int | None:
    """A number that may be written as 32k or 2G; None where vLLM is to compute it."""
    text = said.get(flag, "")
    return None if text in {"", "auto", "-1"} else parse_size(text)
