"""A private directory inside one of the user's, gone again when its owner is done."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forebay.errors import DirectoryError

PREFIX: Final = "forebay-bench-"


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
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DirectoryError(f"{path} can be written by others; run: chmod 700 {path}")


def make_private(path: str) -> None:
    """A directory of mode 0700 that is ours, made if it is not there; else a DirectoryError."""
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
    """A fresh directory of mode 0700 in `parent`, removed with all in it, also after Ctrl-C."""
    refuse_unsafe(parent)
    path = Path(parent, PREFIX + secrets.token_hex(6))  # known before it is made: a signal may come
    try:
        _make(path, parent)
        yield path
    finally:
        try:
            _remove(path)
        except KeyboardInterrupt:  # an impatient second Ctrl-C must not leave gigabytes behind
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
