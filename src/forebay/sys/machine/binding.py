"""Binds memory to NUMA nodes, and tells on which nodes its pages lie.

Shared memory itself has the binding: a page comes from these nodes, whichever process touches it
first.
"""

import ctypes
import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Final

_CALLS: Final = {"x86_64": 237, "aarch64": 235}  # mbind, which the C library does not have
_BIND: Final = 2  # MPOL_BIND: from these nodes or not at all
_NODES_MAX: Final = 1024
_BITS: Final = 8 * ctypes.sizeof(ctypes.c_ulong)


class BindingError(OSError):
    """The kernel, or a container's rules, do not allow memory to be bound."""


def bind(address: int, length: int, nodes: Collection[int]) -> None:
    """Take pages that are not taken yet from these nodes alone; BindingError if that fails."""
    words = (ctypes.c_ulong * (_NODES_MAX // _BITS))()
    for node in nodes:
        words[node // _BITS] |= 1 << node % _BITS
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    ended = call(
        ctypes.c_long(_CALLS.get(platform.machine(), -1)),
        ctypes.c_void_p(address),
        ctypes.c_ulong(length),
        ctypes.c_long(_BIND),
        words,
        ctypes.c_ulong(_NODES_MAX + 1),  # the kernel uses one bit less than it is told
        ctypes.c_ulong(0),
    )
    if ended:
        code = ctypes.get_errno()
        raise BindingError(code, os.strerror(code))


def bytes_on_nodes(start: int, end: int, root: Path = Path("/")) -> dict[int, int]:
    """The mapped bytes of a range of addresses, by node; empty if not known.

    Walks over all mappings of the process: not for a thread that others wait for.
    """
    found: dict[int, int] = {}
    try:
        lines = (root / "proc/self/numa_maps").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):  # a kernel without NUMA
        return found
    for line in lines:
        address, *words = line.split()
        if not start <= int(address, 16) < end:
            continue
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        page_bytes = int(pairs.get("kernelpagesize_kB", 4)) << 10
        for name, count in pairs.items():
            if name[0] == "N" and name[1:].isdecimal():
                node = int(name[1:])
                found[node] = found.get(node, 0) + int(count) * page_bytes
    return found
