"""The cgroups of a process, of both versions, with their limits on CPU time and processes.

`root` contains `proc` and `sys`; `process` is a number, or our own. What cannot be read counts as
no limit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path("/")


class Allowance(NamedTuple):
    """A limit of a cgroup, and how much of it is used."""

    most: float
    used: float
    group: str  # the cgroup's directory


def cgroups(
    controller: str, root: Path = ROOT, process: int | str = "self"
) -> Iterator[tuple[Path, bool]]:
    """A process's cgroup and its parents, as far as mounted; and if they are of version 1."""
    try:
        lines = (root / f"proc/{process}/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        own = top / path.lstrip("/")
        for group in (own, *own.parents):
            if group.is_relative_to(top):
                yield group, bool(controllers)


def cpu_allowance(root: Path = ROOT, process: int | str = "self") -> Allowance | None:
    """The CPU time, in cores, that its cgroups allow a process; None: no limit."""
    found = []
    for group, is_v1 in cgroups("cpu", root, process):
        if is_v1:
            quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
        else:
            words = _words(group / "cpu.max")
            quota, period = words[:1], words[1:]
        if quota and period and quota[0].isdecimal() and int(period[0]):
            found.append(Allowance(int(quota[0]) / int(period[0]), 0.0, str(group)))
    return min(found, default=None)


def process_allowance(root: Path = ROOT, process: int | str = "self") -> Allowance | None:
    """How many processes and threads its cgroups allow, and have; None: no limit."""
    found = []
    for group, _ in cgroups("pids", root, process):
        most, used = _words(group / "pids.max"), _words(group / "pids.current")
        if most and used and most[0].isdecimal():
            found.append(Allowance(int(most[0]), int(used[0]), str(group)))
    return min(found, key=lambda each: each.most - each.used, default=None)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
