"""Gives up rights of this process: new privileges, core dumps, and writing elsewhere.

This cannot be undone, and is inherited by threads and children that start later.
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SET_NO_NEW_PRIVS: Final = 38  # of prctl
# A limit of 1 means no dump at all, to a file or to a program; 0 stops only files.
_NO_DUMP: Final = 1
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # Landlock's system calls
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1
# Rights that change a file system.
_WRITE: Final = 1 << 1
_REMOVE: Final = (1 << 4) | (1 << 5)
_MAKE: Final = sum(1 << bit for bit in range(6, 13))
_REFER: Final = 1 << 13  # from version 2
_TRUNCATE: Final = 1 << 14  # from version 3
_NOWHERE: Final = "/dev/null"


def drop_privileges() -> None:
    """No program run from now on gets more rights than this process; no core dumps."""
    ctypes.CDLL(None).prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # verify: no new privileges
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_DUMP, _NO_DUMP))  # verify: no core dump


def write_only_in(directories: Iterable[str]) -> bool:
    """Change files in these directories and nowhere else; False if the kernel cannot do it.

    Reading is not restricted. Call it before there are threads, after `drop_privileges`.
    Directories that do not exist are left out.
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
    """The directory at a path or, if there is none yet, the nearest existing one above it.

    A directory that cannot be read counts as missing, like one whose file server is gone.
    """
    place = Path(path).absolute()
    return str(next(each for each in (place, *place.parents) if os.path.isdir(each)))  # noqa: PTH112


def above_mount(path: str) -> str:
    """The directory to allow so that a file system which is mounted at `path` later is included.

    For the kernel, what is mounted at a directory lies in the directory above it, not in the one
    that it hides. So this is the directory above the mount of `path`, or above the nearest existing
    one. It is `path` itself, or the nearest existing one, on the root file system, which nobody
    mounts again, and where the answer would be `/`, since that would allow everything.
    """
    place = Path(existing(path)).resolve()
    if place != Path(path).resolve():
        above = place.parent
    else:
        mount = next(each for each in (place, *place.parents) if os.path.ismount(each))
        above = mount.parent
    return str(place if above == above.parent else above)


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
