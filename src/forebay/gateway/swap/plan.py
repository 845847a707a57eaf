"""How each engine of a GPU rests while another one is awake, given the host memory.

Pure. In the file's order, engines sleep at level 1, with their weights in host memory, as long as
these fit beside the pool's slab. vLLM keeps the memory for weights while it is awake, so those of
all these engines count at any time. Other engines sleep at level 2 and load their weights again, or
are stopped and started.
"""

import ipaddress
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from forebay.errors import SettingsError

SLEEP: Final = "sleep"
STOP: Final = "stop"


class Rest(StrEnum):
    """How an engine rests while another one is awake."""

    NONE = "none"  # it does not share its GPU
    LEVEL_1 = "level 1"  # weights in host memory
    LEVEL_2 = "level 2"  # weights are loaded again
    STOP = "stop"  # its process ends, and is started again


class SharedGpu(Protocol):
    """The part of a GPU's setting that is used here."""

    @property
    def name(self) -> str: ...
    @property
    def host_memory(self) -> int: ...
    @property
    def slab(self) -> int: ...
    @property
    def patience_s(self) -> float: ...
    @property
    def awake_s(self) -> float: ...


class SharingEngine(Protocol):
    """The part of an engine's setting that is used here."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def gpu(self) -> str: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def swap(self) -> str: ...
    @property
    def weights(self) -> int: ...


class HostMemory(NamedTuple):
    """How much host memory the pool and a GPU's sleeping engines take, in bytes."""

    slab: int
    weights: int  # of those that sleep at level 1
    limit: int  # 0: no limit


def rests(gpu: SharedGpu, engines: Sequence[SharingEngine]) -> dict[str, Rest]:
    """How each engine of a GPU rests, by name."""
    found = {}
    left = gpu.host_memory - gpu.slab
    for engine in engines:
        if engine.gpu != gpu.name:
            continue
        if engine.command and engine.swap == STOP:
            found[engine.name] = Rest.STOP
        elif not gpu.host_memory or engine.weights <= left:
            found[engine.name] = Rest.LEVEL_1
            left -= engine.weights
        else:
            found[engine.name] = Rest.LEVEL_2
    return found


def host_memory(gpu: SharedGpu, engines: Sequence[SharingEngine]) -> HostMemory:
    """How much host memory a GPU's engines take at rest."""
    how = rests(gpu, engines)
    weights = sum(each.weights for each in engines if how.get(each.name) is Rest.LEVEL_1)
    return HostMemory(gpu.slab, weights, gpu.host_memory)


def check_swaps(
    gpus: Sequence[SharedGpu], engines: Sequence[SharingEngine], queue_s: float, state_dir: str
) -> None:
    """Check that engines can share GPUs as the file says; SettingsError if not."""
    known = {gpu.name for gpu in gpus}
    for engine in engines:
        if engine.swap not in {"", SLEEP, STOP}:
            raise SettingsError(f"engine {engine.name}: swap is {SLEEP} or {STOP}.")
        if (engine.command or engine.swap) and engine.gpu not in known:
            raise SettingsError(
                f"engine {engine.name}: command and swap need a gpu; add a [[gpu]] and name it."
            )
        if known and engine.gpu and engine.gpu not in known:
            raise SettingsError(f"engine {engine.name}: there is no [[gpu]] {engine.gpu}.")
        if engine.command and not state_dir:
            raise SettingsError("name a state_dir, where processes that are started are noted.")
        if engine.gpu in known:
            _check_engine(engine)
    for gpu in gpus:
        _check_gpu(gpu, [each for each in engines if each.gpu == gpu.name], queue_s)


def _check_engine(engine: SharingEngine) -> None:
    if not engine.command and engine.swap != SLEEP:
        raise SettingsError(
            f"engine {engine.name}: it shares a GPU and has no command that starts it; say"
            f' swap = "{SLEEP}" if the gateway may use its endpoints for sleeping.'
        )
    parts = urlsplit(engine.url)
    if not _is_loopback(parts.hostname or "") or not parts.port or parts.scheme != "http":
        raise SettingsError(
            f"engine {engine.name}: its endpoints for sleeping are for this host alone; write url"
            " as http://127.0.0.1:PORT."
        )


def _check_gpu(gpu: SharedGpu, engines: Sequence[SharingEngine], queue_s: float) -> None:
    if not engines:
        raise SettingsError(f"gpu {gpu.name}: no engine names it.")
    if not gpu.patience_s < queue_s:
        raise SettingsError(f"gpu {gpu.name}: patience_s must be less than queue_s.")
    turns_s = (len(engines) - 1) * gpu.awake_s
    if gpu.patience_s < turns_s:
        raise SettingsError(
            f"gpu {gpu.name}: {len(engines)} engines take turns of {gpu.awake_s:g} s or more, so"
            f" patience_s must be {turns_s:g} or more."
        )
    if gpu.slab and gpu.slab >= gpu.host_memory:
        raise SettingsError(f"gpu {gpu.name}: slab is a part of host_memory, which is not larger.")
    for name, rest in rests(gpu, engines).items():
        engine = next(each for each in engines if each.name == name)
        if gpu.host_memory and rest is not Rest.STOP and not engine.weights:
            raise SettingsError(f"engine {name}: say its weights, since host_memory is limited.")
        if rest is Rest.LEVEL_2 and not engine.command:
            raise SettingsError(
                f"engine {name}: its weights do not fit into host_memory, and only an engine that"
                " has a command can load them again."
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
