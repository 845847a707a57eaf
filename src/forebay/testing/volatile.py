"""What a power loss may undo: every change since the medium last settled.

Data and names are modelled separately, since they fail differently. Each write that has not settled
is kept, lost, or torn at 512 or 4096 bytes, independently of others: drives and kernels write back
in any order. Changes of names (create, preallocate, rename, unlink) survive up to a random moment,
as in a journalling file system. A new name may therefore lead to old bytes.
"""

import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.sys.disk import FILE_MODE

SECTOR_BYTES: Final = (512, 4096)


@dataclass(frozen=True, slots=True)
class _Written:
    file: int  # a descriptor that belongs to the journal
    offset: int
    before: bytes  # as long as `after`; zeros beyond the end of the file
    after: bytes


class Journal:
    """Changes in order, with what is needed to undo them. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._writes: list[_Written] = []
        self._names: list[Callable[[], None]] = []  # each undoes a change of names
        self._files: dict[tuple[int, int], int] = {}

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Note a write that is about to happen."""
        file = self._keep(descriptor)
        before = os.pread(file, len(data), offset).ljust(len(data), b"\0")
        self._writes.append(_Written(file, offset, before, data))

    def create(self, directory: int, name: str) -> None:
        """Note that a file was created."""
        kept = self._keep(directory)
        self._names.append(lambda: os.unlink(name, dir_fd=kept))

    def resize(self, descriptor: int) -> None:
        """Note that a file is about to grow."""
        file = self._keep(descriptor)
        size_bytes = os.fstat(file).st_size
        self._names.append(lambda: os.ftruncate(file, size_bytes))

    def rename(self, directory: int, source: str, target: str) -> None:
        """Note that a file is about to be renamed."""
        overwritten, kept = self._keep_named(directory, target), self._keep(directory)

        def undo() -> None:
            os.rename(target, source, src_dir_fd=kept, dst_dir_fd=kept)
            if overwritten is not None:
                _restore(kept, target, overwritten)

        self._names.append(undo)

    def unlink(self, directory: int, name: str) -> None:
        """Note that a file is about to be removed."""
        file, kept = self._keep_named(directory, name), self._keep(directory)
        if file is not None:
            self._names.append(lambda: _restore(kept, name, file))

    def sync(self, descriptor: int) -> None:
        """Note that one file's writes, and all names, have reached the medium."""
        file = self._keep(descriptor)
        self._writes = [written for written in self._writes if written.file != file]
        self._names.clear()

    def settle(self) -> None:
        """Note that everything has reached the medium, and cannot be lost any more."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._writes.clear()
        self._names.clear()

    def lose(self, draw: random.Random) -> None:
        """Undo what a power loss would, drawn at random; then everything counts as settled."""
        for written in reversed(self._writes):
            os.pwrite(written.file, written.before, written.offset)
        for written in self._writes:
            for start, end in _survivors(len(written.after), draw):
                os.pwrite(written.file, written.after[start:end], written.offset + start)
        for undo in reversed(self._names[draw.randint(0, len(self._names)) :]):
            undo()
        self.settle()

    def _keep(self, descriptor: int) -> int:
        """A descriptor of the same file that stays open after the caller's, without O_DIRECT."""
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        if identity not in self._files:
            flags = os.O_RDONLY if stat.S_ISDIR(status.st_mode) else os.O_RDWR
            self._files[identity] = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
        return self._files[identity]

    def _keep_named(self, directory: int, name: str) -> int | None:
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return None
        try:
            return self._keep(descriptor)
        finally:
            os.close(descriptor)


def _survivors(size_bytes: int, draw: random.Random) -> list[tuple[int, int]]:
    """The half-open ranges of a write that reach the medium."""
    if not size_bytes:
        return []
    fate = draw.choice(("kept", "lost", "cut", "sieved"))
    if fate == "kept":
        return [(0, size_bytes)]
    if fate == "lost":
        return []
    step = draw.choice(SECTOR_BYTES)
    starts = range(0, size_bytes, step)
    if fate == "cut":
        return [(0, draw.choice(starts))]
    return [(start, min(start + step, size_bytes)) for start in starts if draw.random() < 0.5]


def _restore(directory: int, name: str, file: int) -> None:
    """Restore a file that has lost its name; as a copy, since Linux cannot link it again."""
    target = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE, dir_fd=directory)
    try:
        with Path(f"/proc/self/fd/{file}").open("rb") as source:
            while data := source.read(1 << 20):
                os.write(target, data)
    finally:
        os.close(target)
