"""The disk seam: every call with which Forebay accesses a file system.

Each method is one system call and raises OSError as the kernel reports it.
`forebay.testing.FaultDisk` subclasses this to lose, tear, misdirect and delay; production code
accesses files in no other way. Paths are names relative to a directory descriptor, and symbolic
links are never followed.
"""

import ctypes
import fcntl
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

FILE_MODE = 0o600
_FALLOC_KEEP_SIZE: Final = 1
_FALLOC_ZERO_RANGE: Final = 16


class FileStatus(NamedTuple):
    """The fields of fstat that Forebay uses."""

    size_bytes: int
    allocated_bytes: int  # as du counts it
    owner_uid: int
    mode: int
    modified_s: float = 0.0  # on the clock of whoever keeps the file


class Space(NamedTuple):
    """The fields of statvfs that Forebay uses."""

    free_bytes: int  # available to this user
    total_bytes: int


class Disk:
    """The real file system."""

    def open_directory(self, path: str) -> int:
        """A descriptor of a directory; the last component must not be a symbolic link.

        Names that the kernel would resolve inside a link, "link/" or "link/.", are refused as well.
        """
        while len(path) > 1 and (path.endswith(("/", "/."))):
            path = path.removesuffix(".").rstrip("/") or "/"
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def open_inner(self, directory: int, name: str) -> int:
        """A descriptor of a directory within another one."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=directory)

    def make_directory(self, directory: int, name: str) -> None:
        """Create a directory within another one, for this user alone."""
        os.mkdir(name, 0o700, dir_fd=directory)

    def remove_directory(self, directory: int, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=directory)

    def open(self, directory: int, name: str, *, create: bool, direct: bool, write: bool) -> int:
        """A descriptor of a file; with `create` the file must not exist yet."""
        # O_NONBLOCK: a pipe with a region's name must not make us wait for its writer.
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CREAT | os.O_EXCL if create else 0
        flags |= os.O_DIRECT if direct else 0
        return os.open(name, flags, FILE_MODE, dir_fd=directory)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """preadv: the number of bytes read, fewer at the end of the file."""
        return os.preadv(descriptor, buffers, offset)

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """pwritev: the number of bytes written."""
        return os.pwritev(descriptor, buffers, offset)

    def preallocate(self, descriptor: int, size_bytes: int) -> None:
        """Allocate every block of a file now, so that a later write needs none."""
        os.posix_fallocate(descriptor, 0, size_bytes)

    def zero(self, descriptor: int, offset: int, size_bytes: int) -> None:
        """Make a range read as zeros, keeping its blocks. OSError if that is not possible."""
        libc = ctypes.CDLL(None, use_errno=True)
        call = libc.fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        mode = _FALLOC_ZERO_RANGE | _FALLOC_KEEP_SIZE
        if call(descriptor, mode, offset, size_bytes):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def sync(self, descriptor: int) -> None:
        """Wait until a file's bytes, or a directory's names, are on the medium."""
        os.fsync(descriptor)

    def rename(self, directory: int, source: str, target: str) -> None:
        """Rename within one directory, atomically."""
        os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)

    def move(self, source: tuple[int, str], target: tuple[int, str]) -> None:
        """Rename from one directory to another, atomically; each as descriptor and name."""
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])

    def unlink(self, directory: int, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=directory)

    def names(self, directory: int) -> list[str]:
        """The names in a directory, unsorted."""
        return os.listdir(directory)

    def status(self, descriptor: int) -> FileStatus:
        """Size, allocation, owner and mode of an open file or directory."""
        return _status(os.fstat(descriptor))

    def status_of(self, directory: int, name: str) -> FileStatus:
        """The status of whatever has this name; of a link itself, not of its target."""
        return _status(os.stat(name, dir_fd=directory, follow_symlinks=False))

    def set_mode(self, descriptor: int, mode: int) -> None:
        """Change an open file's permissions."""
        os.fchmod(descriptor, mode)

    def space(self, directory: int) -> Space:
        """Free and total bytes of the file system."""
        found = os.fstatvfs(directory)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def try_lock(self, descriptor: int) -> bool:
        """Take an exclusive lock that lasts as long as the descriptor; False if another has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def user(self) -> int:
        """The effective user, whose files and directories are trusted."""
        return os.geteuid()


def printable(path: str) -> str:
    """A path as text that can be shown anywhere; bytes that are no UTF-8 are escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _status(found: os.stat_result) -> FileStatus:
    allocated_bytes = found.st_blocks * 512
    return FileStatus(found.st_size, allocated_bytes, found.st_uid, found.st_mode, found.st_mtime)
