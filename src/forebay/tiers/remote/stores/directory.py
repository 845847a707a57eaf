"""A shared directory as a store: NFS, Lustre, JuiceFS and other mounts of one file system.

An object is a file. It is written under a name of this host's own in `.new/` and then renamed, so
that others see all of it or nothing. No lock is taken, since locks across hosts are what such file
systems do worst. The directory itself is never created: if a mount is missing, the file system
below it must not be filled. Symbolic links are never followed, and a directory that everybody may
write to is refused.
"""

import errno
import itertools
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TypeVar

from forebay.sys.disk import Disk, FileStatus
from forebay.sys.transfer import read_whole, write_whole
from forebay.tiers.remote.store import LISTED_MAX, ObjectStore, StoredObject, StoreFailure, is_name

_NEW: Final = ".new"  # where files are written; names that begin with a dot are never listed
_BUFFERS_MAX: Final = 512  # of one system call
_TRIES: Final = 3  # a directory may be removed by another host between two calls
_FAILURES: Final = {
    errno.ENOENT: StoreFailure.ABSENT,
    errno.ENOSPC: StoreFailure.FULL,
    errno.EDQUOT: StoreFailure.FULL,
    errno.EACCES: StoreFailure.DENIED,
    errno.EPERM: StoreFailure.DENIED,
    errno.EROFS: StoreFailure.DENIED,
    errno.ELOOP: StoreFailure.DENIED,
}
_Result = TypeVar("_Result")


class DirectoryStore(ObjectStore):
    """Objects as files below one directory, which is opened anew for every call."""

    def __init__(self, path: str, host: str, disk: Disk | None = None) -> None:
        """`host` tells this host's unfinished files from others'."""
        self._path, self._host, self._disk = path, host, disk or Disk()
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards whether the remains were removed
        self._is_clean = False

    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        """See ObjectStore."""
        return self._attempt(lambda: self._put(name, buffers))

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """See ObjectStore."""
        count = self._attempt(lambda: self._get(name, at, buffers))
        is_away = count is StoreFailure.ABSENT and not self._is_there()
        return StoreFailure.FAILED if is_away else count

    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        """See ObjectStore."""
        found = self._attempt(lambda: self._list(prefix.rstrip("/")))
        return [] if found is StoreFailure.ABSENT and self._is_there() else found

    def delete(self, name: str) -> StoreFailure | None:
        """See ObjectStore."""
        failed = self._attempt(lambda: self._delete(name))
        return None if failed is StoreFailure.ABSENT and self._is_there() else failed

    def _is_there(self) -> bool:
        """Whether the directory itself exists, so that only the object is absent."""
        return self._attempt(lambda: self._list("")) is not StoreFailure.ABSENT

    def _put(self, name: str, buffers: Sequence[memoryview]) -> None:
        with self._opened(_NEW, create=True) as fresh, ExitStack() as undo:
            self._remove_remains(fresh)
            own = f"{self._host}.{next(self._numbers)}"
            descriptor = self._disk.open(fresh, own, create=True, direct=False, write=True)
            undo.callback(self._quietly, lambda: self._disk.unlink(fresh, own))
            try:
                self._write(descriptor, buffers)
            finally:
                self._disk.close(descriptor)  # here a network file system says that it is full
            self._publish(fresh, own, name)
            undo.pop_all()

    def _publish(self, fresh: int, own: str, name: str, tries: int = _TRIES) -> None:
        directory, _, last = name.rpartition("/")
        try:
            with self._opened(directory, create=True) as target:
                self._disk.move((fresh, own), (target, last))
        except FileNotFoundError:
            if tries == 1:
                raise
            self._publish(fresh, own, name, tries - 1)

    def _write(self, descriptor: int, buffers: Sequence[memoryview]) -> None:
        offset = 0
        for first in range(0, len(buffers), _BUFFERS_MAX):
            some = buffers[first : first + _BUFFERS_MAX]
            write_whole(self._disk, descriptor, some, offset)
            offset += sum(map(len, some))

    def _remove_remains(self, fresh: int) -> None:
        """Once per process: remove the unfinished files of this host's last one."""
        with self._lock:
            was_clean, self._is_clean = self._is_clean, True
        if not was_clean:
            for name in self._disk.names(fresh):
                if name.rpartition(".")[0] == self._host:
                    self._disk.unlink(fresh, name)

    def _get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int:
        directory, _, last = name.rpartition("/")
        with self._opened(directory) as parent:
            descriptor = self._disk.open(parent, last, create=False, direct=False, write=False)
        try:
            return read_whole(self._disk, descriptor, buffers, at)
        finally:
            self._disk.close(descriptor)

    def _list(self, prefix: str) -> list[StoredObject]:
        found = []
        with self._opened(prefix) as directory:
            names = (name for name in self._disk.names(directory) if is_name(name))
            for name in itertools.islice(names, LISTED_MAX):
                with suppress(FileNotFoundError):  # removed meanwhile
                    found.append(_line(name, self._disk.status_of(directory, name)))
        return found

    def _delete(self, name: str) -> None:
        directory, _, last = name.rpartition("/")
        with self._opened(directory) as parent:
            self._disk.unlink(parent, last)
        above, _, inner = directory.rpartition("/")
        with self._opened(above) as parent:
            self._quietly(lambda: self._disk.remove_directory(parent, inner))

    @contextmanager
    def _opened(self, directory: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of a directory below ours, created on the way if wanted."""
        with ExitStack() as close:
            descriptor = self._disk.open_directory(self._path)
            close.callback(self._disk.close, descriptor)
            if self._disk.status(descriptor).mode & stat.S_IWOTH:  # verify: a directory of our own
                raise PermissionError(errno.EACCES, "everybody may write to it")
            for part in filter(None, directory.split("/")):
                if create:
                    with suppress(FileExistsError):
                        self._disk.make_directory(descriptor, part)
                descriptor = self._disk.open_inner(descriptor, part)
                close.callback(self._disk.close, descriptor)
            yield descriptor

    def _attempt(self, call: Callable[[], _Result]) -> _Result | StoreFailure:
        try:
            return call()
        except OSError as error:
            return _FAILURES.get(error.errno or 0, StoreFailure.FAILED)

    def _quietly(self, call: Callable[[], None]) -> None:
        with suppress(OSError):
            call()


def _line(name: str, status: FileStatus) -> StoredObject:
    is_directory = stat.S_ISDIR(status.mode)
    return StoredObject(
        name + "/" * is_directory, 0 if is_directory else status.size_bytes, status.modified_s
    )
