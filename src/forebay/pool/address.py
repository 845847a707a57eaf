"""Where a pool is found: its socket, and a lock beside it that only one pool can hold.

    pool.sock         what clients connect to, mode 0600
    pool.sock.lock    held from before a pool begins until it has ended; never removed
    pool.sock.log     what a pool that an engine started has to say

The holder of the lock is the only one that may start a pool here. So a socket file that a killed
pool left behind is known to be stale, and two engines that start at once start one pool.

Whoever can replace the socket can pose as the pool. So no pool is started or joined in a directory
that others can write, sticky or not, or that others could replace (`scratch.why_replaceable`).
"""

import contextlib
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from forebay.errors import DirectoryError, StartupError
from forebay.sys import scratch, sockets
from forebay.sys.disk import Disk

_NAME: Final = "pool.sock"
_FALLBACK: Final = "/tmp/forebay"  # noqa: S108 - and the user's id; mode 0700, and checked
_RUNTIME_VARIABLE: Final = "XDG_RUNTIME_DIR"


class PoolAddress(NamedTuple):
    """A socket's path, and whether we may create its directory."""

    path: str
    is_default: bool

    @property
    def directory(self) -> str:
        """The directory of the socket."""
        return os.path.dirname(self.path)  # noqa: PTH120 - paths stay as they are written

    @property
    def log_path(self) -> str:
        """The log of a pool that an engine started."""
        return self.path + ".log"


def find_address(socket: str, environment: Mapping[str, str] = os.environ) -> PoolAddress:
    """The configured address, or this user's default one; a StartupError if there is none."""
    if socket:
        address = PoolAddress(os.path.abspath(socket), is_default=False)  # noqa: PTH100
    else:
        runtime = environment.get(_RUNTIME_VARIABLE, "")
        own = os.path.join(runtime, "forebay")  # noqa: PTH118
        directory = own if _is_ours(runtime) else f"{_FALLBACK}-{Disk().user()}"
        address = PoolAddress(f"{directory}/{_NAME}", is_default=True)
    size = len(os.fsencode(address.path))
    if size > sockets.PATH_BYTES_MAX:
        raise StartupError(
            f"{address.path} has {size} bytes and a socket's path at most {sockets.PATH_BYTES_MAX};"
            " choose a shorter one with --socket."
        )
    return address


def prepare(address: PoolAddress) -> None:
    """Create and check the socket's directory; a DirectoryError if others could replace it."""
    if address.is_default:
        scratch.make_private(address.directory)
    try:
        why = why_unsafe(address.path)
    except OSError as error:
        raise DirectoryError(
            f"{address.directory} cannot be used ({error.strerror}); create it with:"
            f" mkdir -m 700 {address.directory}"
        ) from None
    if why is not None:
        raise DirectoryError(f"{why}; choose a --socket in a directory of your own, mode 700.")


def trusted_uids(pool_uids: Collection[int] = ()) -> frozenset[int]:
    """The users whose pools are joined: this user, root, and the given ones."""
    return frozenset({Disk().user(), 0, *pool_uids})


def why_unsafe(path: str, pool_uids: Collection[int] = ()) -> str | None:
    """How an untrusted user could put a socket at this path; None if nobody can.

    OSError if there is no such directory.
    """
    directory = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    return scratch.why_replaceable(directory, trusted_uids(pool_uids))


def take_lock(address: PoolAddress, disk: Disk | None = None) -> int | None:
    """The lock's descriptor, or None while another process holds it; call `prepare` first."""
    disk = disk or Disk()
    name = os.path.basename(address.path) + ".lock"  # noqa: PTH119
    try:
        directory = disk.open_directory(os.path.realpath(address.directory))
        try:
            lock = _open_or_create(disk, directory, name)
        finally:
            disk.close(directory)
    except OSError as error:
        raise StartupError(f"{address.path}.lock cannot be used ({error.strerror}).") from None
    if disk.status(lock).owner_uid != disk.user():
        disk.close(lock)
        raise StartupError(f"{address.path}.lock belongs to another user; choose another --socket.")
    if disk.try_lock(lock):
        return lock
    disk.close(lock)
    return None


def create_log(address: PoolAddress, disk: Disk | None = None) -> int:
    """Replace the log by a new, empty file; hold the lock."""
    disk = disk or Disk()
    name = os.path.basename(address.log_path)  # noqa: PTH119
    directory = disk.open_directory(os.path.realpath(address.directory))
    try:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(directory, name)
        return disk.open(directory, name, create=True, direct=False, write=True)
    finally:
        disk.close(directory)


def _is_ours(directory: str) -> bool:
    """Whether this is an absolute path of a directory that belongs to this user."""
    try:
        status = Path(directory).stat()
    except (OSError, ValueError):
        return False
    is_directory = directory.startswith("/") and stat.S_ISDIR(status.st_mode)
    return is_directory and status.st_uid == Disk().user()


def _open_or_create(disk: Disk, directory: int, name: str) -> int:
    try:
        return disk.open(directory, name, create=False, direct=False, write=True)
    except FileNotFoundError:
        pass
    try:
        return disk.open(directory, name, create=True, direct=False, write=True)
    except FileExistsError:  # somebody else created it first
        return disk.open(directory, name, create=False, direct=False, write=True)
