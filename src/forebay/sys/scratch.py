"""Directories that others cannot change: checks, and private ones that are created and removed."""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from forebay.errors import DirectoryError

PREFIX: Final = "forebay-bench-"
_LINKS_MAX: Final = 40  # symbolic links on one path, as many as the kernel allows
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ALL_MAPPED: Final = ["0", "0", "4294967295"]  # uid_map outside of every user namespace


def refuse_unsafe(path: str) -> None:
    """A DirectoryError if others could move what we put there; a sticky directory is fine."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise DirectoryError(
            f"{path} cannot be used ({error.strerror}); create it with: mkdir -m 700 {path}"
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise DirectoryError(f"{path} is not a directory; name one.")
    if status.st_mode & stat.S_ISVTX:
        return
    if status.st_uid not in {os.geteuid(), 0}:
        raise DirectoryError(f"{path} belongs to another user; choose a directory of your own.")
    if status.st_mode & _OTHERS_WRITE:
        raise DirectoryError(f"{path} can be written by others; run: chmod 700 {path}")


def why_replaceable(directory: str, owners: Collection[int]) -> str | None:
    """How others could replace what lies in `directory`; None if they cannot.

    The directory, every directory above it and every symbolic link on the way must belong to
    `owners`. Only its owner may write the directory itself. One above it may be writable by others
    if it is sticky, as /tmp is: then they cannot rename or remove what is not theirs. The path is
    absolute; OSError if it does not exist.
    """
    way = list(_way(directory))
    target, _ = way[-1]
    unmapped = _unmapped_uid()
    for path, status in way:
        is_target = path == target
        if status.st_uid not in owners and (is_target or status.st_uid != unmapped):
            return f"{path} belongs to user {status.st_uid}"
        if stat.S_ISLNK(status.st_mode) or not status.st_mode & _OTHERS_WRITE:
            continue
        if is_target or not status.st_mode & stat.S_ISVTX:
            return f"{path} can be written by others"
    return None


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and symbolic link that a path leads through, ending with its target."""
    at, links = "/", 0
    names = path.split("/")[::-1]
    while names:
        name = names.pop()
        if name in {"", ".", ".."}:
            at = os.path.dirname(at) if name == ".." else at  # noqa: PTH120 - it contains no link
            continue
        entry = os.path.join(at, name)  # noqa: PTH118
        status = os.lstat(entry)
        yield entry, status
        if not stat.S_ISLNK(status.st_mode):
            at = entry
            continue
        links += 1
        if links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(entry)  # noqa: PTH115
        at = "/" if target.startswith("/") else at
        names += target.split("/")[::-1]
    yield at, os.lstat(at)


def _unmapped_uid() -> int | None:
    """In a user namespace, the id that stands for users without an id in it, like root."""
    try:
        if Path("/proc/self/uid_map").read_text(encoding="ascii").split() == _ALL_MAPPED:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def make_private(path: str) -> None:
    """Create a directory of mode 0700, or accept one that is ours; else a DirectoryError."""
    try:
        with contextlib.suppress(FileExistsError):
            Path(path).mkdir(mode=0o700)
        status = Path(path).lstat()
    except OSError as error:
        raise DirectoryError(f"{path} cannot be made ({error.strerror}).") from None
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not ours or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise DirectoryError(
            f"{path} is not a directory that only you can use; remove it, or choose another socket"
            " with --socket."
        )


@contextlib.contextmanager
def scratch(parent: str) -> Iterator[Path]:
    """A new directory of mode 0700 in `parent`, removed at the end, also after Ctrl-C."""
    refuse_unsafe(parent)
    path = Path(parent, PREFIX + os.urandom(6).hex())  # known before it is made: a signal may come
    try:
        _make(path, parent)
        yield path
    finally:
        try:
            _remove(path)
        except KeyboardInterrupt:  # a second Ctrl-C must not leave gigabytes behind
            _remove(path)
            raise


def _make(path: Path, parent: str) -> None:
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        raise DirectoryError(
            f"{parent} cannot be written ({error.strerror}); choose a directory of your own."
        ) from None


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def leftovers(parent: str) -> list[str]:
    """Directories that an earlier run could not remove because it was killed."""
    with contextlib.suppress(OSError):
        return sorted(str(path) for path in Path(parent).glob(PREFIX + "*"))
    return []
