"""Machines with memory nodes and GPUs, planted beneath a directory as the kernel shows them."""

from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20
NODES = "sys/devices/system/node"
GPU = "0000:3b:00.0"
OTHER_GPU = "0000:b1:00.0"


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def plant_nodes(root: Path, left_mib: Mapping[int, int], cpus: str) -> Path:
    """Nodes with so much left, of which `cpus` have CPUs; each is the farther the higher it is."""
    numbers = sorted(left_mib)
    for name, text in (("has_memory", ",".join(map(str, numbers))), ("has_cpu", cpus)):
        write(root, f"{NODES}/{name}", f"{text}\n")
    write(root, f"{NODES}/online", f"{','.join(map(str, numbers))}\n")
    for node, mib in left_mib.items():
        ways = " ".join(str(10 + 10 * abs(node - other)) for other in numbers)
        write(root, f"{NODES}/node{node}/distance", f"{ways}\n")
        write(root, f"{NODES}/node{node}/meminfo", f"Node {node} MemFree: {mib << 10} kB\n")
    return root


def plant_gpu(root: Path, address: str, node: int, uuid: str = "", driver: bool = True) -> Path:
    """A GPU at a node; -1: the machine does not say."""
    device = f"sys/bus/pci/devices/{address}"
    write(root, f"{device}/vendor", "0x10de\n")
    write(root, f"{device}/class", "0x030200\n")
    write(root, f"{device}/numa_node", f"{node}\n")
    if driver:
        said = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n"
        write(root, f"proc/driver/nvidia/gpus/{address}/information", said)
    return root


def two_sockets(root: Path, left_mib: tuple[int, int] = (100, 100)) -> Path:
    """Two nodes with CPUs, and a GPU at the second."""
    plant_nodes(root, dict(enumerate(left_mib)), "0-1")
    return plant_gpu(root, GPU, 1)
