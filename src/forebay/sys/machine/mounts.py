"""A path's file system and drive, who has locked it, and which sockets are listened at.

`root` contains `proc` and `sys`. What cannot be read is unknown (None or empty).
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path("/")
_LISTENS: Final = 0x10000  # a flag in /proc/net/unix
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Where a file system is mounted."""

    point: str
    kind: str  # ext4, xfs, nfs4, …
    device: str  # major:minor


def mount_of(path: str, root: Path = ROOT) -> Mount | None:
    """The mount of a path: the deepest mount point above it, and the last of several there."""
    target = Path(os.path.realpath(path))
    found: Mount | None = None
    for line in _lines(root / "proc/self/mountinfo"):
        words = line.split(" ")
        if len(words) < 7 or "-" not in words[6:]:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), words[4])
        is_on = target.is_relative_to(point)
        if is_on and (found is None or len(point) >= len(found.point)):
            found = Mount(point, words[words.index("-", 6) + 1], words[2])
    return found


def is_rotational(device: str, root: Path = ROOT) -> bool | None:
    """Whether a block device, or the drive of a partition, is a hard disk."""
    place = Path(os.path.realpath(root / "sys/dev/block" / device))
    for directory in (place, place.parent):
        lines = _lines(directory / "queue/rotational")
        if lines:
            return lines[0].strip() == "1"
    return None


def lock_holder(path: str, root: Path = ROOT) -> int | None:
    """The process with an exclusive `flock` on a file or directory; None: none that we see.

    0 if the process is in another PID namespace. A process that inherited the lock is not named.
    """
    try:
        status = Path(path).stat()
    except OSError:
        return None
    device = status.st_dev
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    for line in _lines(root / "proc/locks"):
        words = line.split()
        if wanted in words and "FLOCK" in words and "->" not in words:
            number = words[words.index(wanted) - 1]
            return int(number) if number.isdecimal() else 0
    return None


def listened_paths(root: Path = ROOT) -> list[str]:
    """Paths of the Unix sockets in this network namespace that somebody listens at."""
    found = set()
    for line in _lines(root / "proc/net/unix")[1:]:
        words = line.split(None, 7)
        if len(words) == 8 and words[7].startswith("/") and int(words[3], 16) & _LISTENS:
            found.add(words[7])
    return sorted(found)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
