"""Memory nodes (NUMA): those that this process may take memory from, and what they have left.

A cpuset or a policy (`numactl --membind`) may allow some of the machine's nodes. The kernel refuses
nothing where these are full either: it kills. `root` has `proc` and `sys` in it. What cannot be
read is no limit.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

_FREE: Final = ("MemFree:", "Active(file):", "Inactive(file):")  # can be had, or dropped
_POLICY_BYTES: Final = 256  # the first mapping is ended by then; all of them take long to read


class NodesLeft(NamedTuple):
    """What is left of the only nodes that may be used."""

    size_bytes: int
    nodes: str  # as the kernel writes lists: 0-2,5


def nodes_left(root: Path) -> NodesLeft | None:
    """None where every node with memory may be used."""
    every = _numbers_in(_text(root / "sys/devices/system/node/has_memory"))
    allowed = every & (_allowed_by_cpuset(root) or every) & (_bound_to(root) or every)
    if not allowed or allowed == every:
        return None
    left = [_left_bytes(root / f"sys/devices/system/node/node{node}") for node in sorted(allowed)]
    known = [each for each in left if each is not None]
    return NodesLeft(sum(known), ",".join(map(str, sorted(allowed)))) if known == left else None


def _allowed_by_cpuset(root: Path) -> set[int]:
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            return _numbers_in(value)
    return set()


def _bound_to(root: Path) -> set[int]:
    """The nodes of a policy that allows no others; empty: it allows all."""
    try:
        descriptor = os.open(root / "proc/self/numa_maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel without nodes
        return set()
    try:
        text = os.read(descriptor, _POLICY_BYTES).decode("ascii", "replace")
    except OSError:
        return set()
    finally:
        os.close(descriptor)
    # "address policy …", of a mapping without a policy of its own
    policy = text.split()[1:2]
    mode, _, nodes = policy[0].partition(":") if policy else ("", "", "")
    return _numbers_in(nodes) if mode.partition("=")[0] == "bind" else set()


def _left_bytes(node: Path) -> int | None:
    found = {}
    for line in _text(node / "meminfo").splitlines():
        match line.split():  # Node 0 MemFree: 7697052 kB
            case [_, _, name, size, *_] if size.isdecimal():
                found[name] = int(size) << 10
    return sum(found.get(name, 0) for name in _FREE) if _FREE[0] in found else None


def _numbers_in(text: str) -> set[int]:
    """Of a list as the kernel writes it: 0-2,5."""
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
