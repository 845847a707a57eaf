"""Limits of a process (as `ulimit` sets them), its capabilities, and the machine's memory pages.

`root` contains `proc` and `sys`; `process` is a number, or our own. What cannot be read counts as
no limit, or as unknown (None).
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path("/")
_LINE: Final = re.compile(r"(Max .+?)\s{2,}(\w+)\s+(\w+)")
_IPC_LOCK: Final = 14  # CAP_IPC_LOCK: locked memory is not limited


class LimitName(StrEnum):
    """Names of limits in /proc/PID/limits."""

    DESCRIPTORS = "Max open files"
    LOCKED = "Max locked memory"
    ADDRESSES = "Max address space"
    FILE_BYTES = "Max file size"


class ProcessLimit(NamedTuple):
    """A process's limit, and how far the process may raise it itself; None: no limit."""

    soft: int | None
    hard: int | None


class HugePages(NamedTuple):
    """Huge pages that were reserved when the machine started, or later."""

    page_bytes: int
    total: int
    free: int  # free and not promised to a process


def process_limit(
    name: LimitName, root: Path = ROOT, process: int | str = "self"
) -> ProcessLimit | None:
    """One limit of a process; None if it cannot be read."""
    for line in _lines(root / f"proc/{process}/limits"):
        match = _LINE.match(line)
        if match and match[1] == name:
            return ProcessLimit(*(int(n) if n.isdecimal() else None for n in match.groups()[1:]))
    return None


def may_lock_memory(root: Path = ROOT) -> bool:
    """Whether this process may lock memory without a limit."""
    for line in _lines(root / "proc/self/status"):
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _IPC_LOCK & 1)
    return False


def huge_pages(root: Path = ROOT) -> HugePages | None:
    """The reserved huge pages of the default size; None if the kernel has none."""
    found = _kilobytes(root / "proc/meminfo")
    if not found.get("Hugepagesize"):
        return None
    free = found.get("HugePages_Free", 0) - found.get("HugePages_Rsvd", 0)
    return HugePages(found["Hugepagesize"] << 10, found.get("HugePages_Total", 0), max(0, free))


def shared_huge_pages(root: Path = ROOT) -> str | None:
    """When shared memory gets huge pages automatically, in the kernel's word, like `never`."""
    path = root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    return next((word[1:-1] for line in _lines(path) for word in _bracketed(line)), None)


def uncommitted_bytes(root: Path = ROOT) -> int | None:
    """What the kernel may still commit to, if it counts strictly; None if it does not."""
    if _lines(root / "proc/sys/vm/overcommit_memory")[:1] != ["2"]:
        return None
    found = _kilobytes(root / "proc/meminfo")
    return max(0, found.get("CommitLimit", 0) - found.get("Committed_AS", 0)) << 10


def swap_bytes(root: Path = ROOT) -> int:
    """The size of all swap; 0: there is none."""
    return _kilobytes(root / "proc/meminfo").get("SwapTotal", 0) << 10


def has_nvidia_gpu(root: Path = ROOT) -> bool:
    """Whether NVIDIA's driver serves a GPU here."""
    return (root / "dev/nvidia0").exists() or (root / "proc/driver/nvidia/gpus").is_dir()


def _bracketed(line: str) -> list[str]:
    return [word for word in line.split() if word.startswith("[") and word.endswith("]")]


def _kilobytes(path: Path) -> dict[str, int]:
    pairs = (line.split(":", 1) for line in _lines(path) if ":" in line)
    return {name: int(rest.split()[0]) for name, rest in pairs if rest.split()[:1]}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
