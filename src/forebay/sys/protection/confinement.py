"""What this process gives up: privileges to come, dumps of its memory, and writing elsewhere.

All of it is for good, and inherited by threads and children that begin later.
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SET_NO_NEW_PRIVS: Final = 38  # of prctl
# The kernel takes a limit of 1 for "no dump", be it to a file or to a program; 0 stops files alone.
_NO_DUMP: Final = 1
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # Landlock's system calls
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1
# What changes a file system.
_WRITE: Final = 1 << 1
_REMOVE: Final = (1 << 4) | (1 << 5)
_MAKE: Final = sum(1 << bit for bit in range(6, 13))
_REFER: Final = 1 << 13  # from version 2
_TRUNCATE: Final = 1 << 14  # from version 3
_NOWHERE: Final = "/dev/null"


def drop_privileges() -> None:
    """No program that this process runs gets more rights than it has; no dump of its memory."""
    ctypes.CDLL(None).prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # verify: no new privileges
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_DUMP, _NO_DUMP))  # verify: no core dump


def write_only_in(directories: Iterable[str]) -> bool:
    """Change files in these directories, and nowhere else; False where the kernel cannot do it.

    Reading is not confined. Call it before there are threads, after `drop_privileges`. One that
    does not exist is left out.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1:
        return False
    rights = _WRITE | _REMOVE | _MAKE
    rights |= _REFER if version > 1 else 0
    rights |= _TRUNCATE if version > 2 else 0
    handled = ctypes.c_uint64(rights)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if ruleset < 0:
        return False
    try:
        for directory in filter(os.path.isdir, directories):
            _allow(libc, ruleset, directory, rights)
        _allow(libc, ruleset, _NOWHERE, rights & (_WRITE | _TRUNCATE))
        is_confined = not libc.syscall(_RESTRICT_SELF, ruleset, 0)  # verify: confined
    finally:
        os.close(ruleset)
    return is_confined


def existing(path: str) -> str:
    """The directory at a path or, where there is none yet, the nearest above it that there is.

    One that cannot be looked at is none, as one of a file system whose server is gone.
    """
    place = Path(path).absolute()
    return str(next(each for each in (place, *place.parents) if os.path.isdir(each)))  # noqa: PTH112


def above_mount(path: str) -> str:
    """Where writing is allowed so that it also is in a directory that is mounted there later.

    To the kernel, what is mounted at a directory lies in the one above, and not in the directory
    that it hides. So this is what is above the mount of a directory, or above the nearest that
    there is; of what lies on the root's file system, which nobody mounts anew, the directory.
    """
    place = Path(existing(path)).resolve()
    if place != Path(path).resolve():
        return str(place.parent)
    mount = next(each for each in (place, *place.parents) if os.path.ismount(each))
    return str(place if mount == mount.parent else mount.parent)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(rights, descriptor)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
