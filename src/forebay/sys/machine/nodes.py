"""Memory nodes (NUMA) that this process may use, and what they have left.

A cpuset or a policy (`numactl --membind`) may allow some of the machine's nodes. If these are full
the kernel refuses nothing: it kills. `root` contains `proc` and `sys`. What cannot be read counts
as no limit.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

_NODES: Final = "sys/devices/system/node"
_FREE: Final = ("MemFree:", "Active(file):", "Inactive(file):")  # free, or can be dropped
_WITHOUT_WISHES: Final = ("", "default", "local", "bind")  # policies that prefer no node
_POLICY_BYTES: Final = 256  # enough for the first mapping; reading all takes long


class NodesLeft(NamedTuple):
    """What is left on the only nodes that may be used."""

    size_bytes: int
    nodes: str  # a list as the kernel writes it: 0-2,5


def nodes_left(root: Path) -> NodesLeft | None:
    """What is left, if this process may not use all nodes; None if it may."""
    every, allowed = memory_nodes(root), allowed_nodes(root)
    if not allowed or allowed == every:
        return None
    left_bytes = bytes_left(allowed, root)
    return None if left_bytes is None else NodesLeft(left_bytes, list_of(allowed))


def memory_nodes(root: Path) -> frozenset[int]:
    """Every node with memory; empty if the kernel does not tell."""
    return frozenset(_numbers_in(_text(root / _NODES / "has_memory")))


def cpu_nodes(root: Path) -> frozenset[int]:
    """The nodes with CPUs; one with memory alone may belong to a GPU."""
    return frozenset(_numbers_in(_text(root / _NODES / "has_cpu")))


def allowed_nodes(root: Path) -> frozenset[int]:
    """The nodes with memory that this process may use."""
    every = memory_nodes(root)
    return every & (_allowed_by_cpuset(root) or every) & (_bound_to(root) or every)


def bytes_left(nodes: Collection[int], root: Path) -> int | None:
    """What these nodes have free or can drop; None if one does not tell."""
    left = [_left_bytes(root / _NODES / f"node{node}") for node in sorted(nodes)]
    known = [each for each in left if each is not None]
    return sum(known) if known == left else None


def huge_bytes_left(nodes: Collection[int], root: Path) -> int | None:
    """What these nodes have in reserved, free huge pages of any size."""
    left = 0
    for node in nodes:
        for place in (root / _NODES / f"node{node}/hugepages").glob("hugepages-*kB"):
            size, free = place.name[10:-2], _text(place / "free_hugepages").strip()
            if not size.isdecimal() or not free.isdecimal():
                return None
            left += (int(size) << 10) * int(free)
    return left


def nearest(node: int, among: Collection[int], root: Path) -> frozenset[int]:
    """The nodes among these with the shortest distance to a node, which may be itself."""
    if node in among:
        return frozenset({node})
    words = _text(root / _NODES / f"node{node}/distance").split()
    known = sorted(_numbers_in(_text(root / _NODES / "online")))
    far = dict(zip(known, words, strict=False))
    ways = {each: int(far[each]) for each in among if far.get(each, "").isdecimal()}
    shortest = min(ways.values(), default=0)
    return frozenset(each for each, way in ways.items() if way == shortest)


def list_of(nodes: Collection[int]) -> str:
    """A list of nodes as the kernel writes it."""
    return ",".join(map(str, sorted(nodes)))


def _allowed_by_cpuset(root: Path) -> set[int]:
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            return _numbers_in(value)
    return set()


def has_wishes(root: Path) -> bool:
    """Whether this process runs under a policy that prefers or interleaves nodes."""
    return _policy(root).partition(":")[0].partition("=")[0] not in _WITHOUT_WISHES


def _bound_to(root: Path) -> set[int]:
    """The nodes of a policy that allows no others; empty if all are allowed."""
    mode, _, nodes = _policy(root).partition(":")
    return _numbers_in(nodes) if mode.partition("=")[0] == "bind" else set()


def _policy(root: Path) -> str:
    """The memory policy of this process as the kernel writes it, like bind:0-1; "": not known."""
    try:
        descriptor = os.open(root / "proc/self/numa_maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel without NUMA
        return ""
    try:
        text = os.read(descriptor, _POLICY_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    # "address policy …", for a mapping without a policy of its own
    return "".join(text.split()[1:2])


def _left_bytes(node: Path) -> int | None:
    found = {}
    for line in _text(node / "meminfo").splitlines():
        match line.split():  # Node 0 MemFree: 7697052 kB
            case [_, _, name, size, *_] if size.isdecimal():
                found[name] = int(size) << 10
    return sum(found.get(name, 0) for name in _FREE) if _FREE[0] in found else None


def _numbers_in(text: str) -> set[int]:
    """The numbers in a list as the kernel writes it, like 0-2,5."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return set()
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
