"""The machine's GPUs by PCI address, which of them a process sees, and each one's memory node.

`root` contains `proc` and `sys`. What cannot be read is unknown (None or empty).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")
ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_DRIVER: Final = "proc/driver/nvidia/gpus"  # in a container it lists only that container's GPUs
_DEVICES: Final = "sys/bus/pci/devices"
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"  # class of display devices; a GPU has other devices beside it


def gpu_addresses(root: Path = ROOT) -> list[str]:
    """NVIDIA's GPUs as the driver lists them, else all on PCI; sorted by address."""
    found = [name.lower() for name in _names(root / _DRIVER)]
    found = found or [name for name in _names(root / _DEVICES) if _is_gpu(root / _DEVICES / name)]
    return sorted(name for name in found if ADDRESS.fullmatch(name))


def visible_gpus(variables: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """The GPUs that a process with these variables sees, in its order; by default all.

    Numbers count by PCI address, as they do unless a machine has several models of GPUs.
    """
    every = gpu_addresses(root)
    wanted = variables.get(_VISIBLE)
    if wanted is None:
        return every
    by_uuid = {_uuid(root / _DRIVER / address): address for address in every}
    found: list[str] = []
    for word in map(str.strip, wanted.split(",")):
        if word.isdecimal() and int(word) < len(every):
            found.append(every[int(word)])
        elif word.startswith("GPU-"):
            found += [address for uuid, address in by_uuid.items() if uuid.startswith(word)][:1]
        elif word.startswith("MIG-"):  # part of a GPU; which GPU is not told here
            return every
        else:
            break  # CUDA ignores the rest, too
    return found


def node_of(address: str, root: Path = ROOT) -> int | None:
    """The memory node of a PCI device; None if the machine does not tell."""
    text = _text(root / _DEVICES / address / "numa_node").strip()
    return int(text) if text.isdecimal() else None  # -1: no node


def nodes_of(addresses: Sequence[str], root: Path = ROOT) -> frozenset[int]:
    """The memory nodes of several devices, as far as they are known."""
    found = (node_of(address, root) for address in addresses)
    return frozenset(node for node in found if node is not None)


def _is_gpu(device: Path) -> bool:
    is_nvidia = _text(device / "vendor").strip() == _NVIDIA
    return is_nvidia and _text(device / "class").startswith(_DISPLAY)


def _uuid(gpu: Path) -> str:
    for line in _text(gpu / "information").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "GPU UUID":
            return value.strip()
    return ""


def _names(directory: Path) -> list[str]:
    try:
        return [each.name for each in directory.iterdir()]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
