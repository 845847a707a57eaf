"""Sockets: Unix sockets, the only way into a pool, and TCP for its HTTP port.

Every call raises OSError as the kernel reports it.

All sockets made here are non-blocking and close-on-exec. Paths must be short: the kernel allows at
most 107 bytes.
"""

import ctypes
import errno
import fcntl
import functools
import os
import select
import socket
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

PATH_BYTES_MAX: Final = 107
_SO_PEERPIDFD: Final = 77  # Linux 6.5 and later; Python has no name for it yet
_CREDENTIALS: Final = struct.Struct("3i")
_TCP_TABLE_BYTES_MAX: Final = 32 << 20  # of /proc/net/tcp: some 200,000 connections
_ESTABLISHED: Final = "01"  # in that table; in other states the user is gone, and shown as 0
_FDS_MAX: Final = 32  # descriptors in one message; any more are lost


class _PollFd(ctypes.Structure):
    """As <poll.h> has it."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    """As <time.h> has it."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ppoll: Final = ctypes.CDLL(None).ppoll
_ppoll.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]


class Peer(NamedTuple):
    """The process that connected, as the kernel saw it at that moment."""

    pid: int  # if its namespace hides it, a negative number for the process, or 0
    uid: int


def listen_tcp(address: str, port: int, backlog: int) -> socket.socket:
    """A listening, blocking TCP socket at a numeric address; port 0: any free one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def listen(path: str, mode: int, backlog: int) -> socket.socket:
    """A listening socket at a path that does not exist yet, never more accessible than `mode`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # The file gets the socket's own mode at bind, so that no instant has a wider one.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(path)
        os.chmod(path, mode)  # noqa: PTH101 - restores what the umask removed
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def remove_stale(path: str) -> None:
    """Remove a socket that nobody listens at; FileExistsError if it is no socket."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise FileExistsError(errno.EEXIST, "there is something that is no socket", path)
    os.unlink(path)  # noqa: PTH108


def accept(listener: socket.socket) -> socket.socket:
    """The next connection; BlockingIOError if there is none."""
    connection, _ = listener.accept()
    connection.setblocking(False)
    return connection


def connect(path: str) -> socket.socket:
    """A connection, made at once or not at all: BlockingIOError if the backlog is full."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def peer_of(connection: socket.socket) -> Peer:
    """The process and user that were at the other end when it connected."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return Peer(pid or -_pidfd_inode(connection), uid)


def _pidfd_inode(connection: socket.socket) -> int:
    """A number that no other process of this host ever has; 0 before Linux 6.9."""
    try:
        pidfd = peer_pidfd(connection)
    except OSError:
        return 0  # before Linux 6.5, or the process is gone
    try:
        found = os.fstat(pidfd)
        return 0 if found.st_dev == _device_of_unnamed_files() else found.st_ino
    except OSError:
        return 0  # out of descriptors
    finally:
        os.close(pidfd)


@functools.cache
def _device_of_unnamed_files() -> int:
    """The device on which older kernels have all pidfds, as one inode."""
    descriptor = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def tcp_peer_uid(connection: socket.socket) -> int | None:
    """The user at the other end of a TCP connection within this host; None if not known.

    Reads the kernel's table of connections, which takes milliseconds if there are many.
    """
    try:
        ours, theirs = connection.getsockname()[:2], connection.getpeername()[:2]
        row = f" {_as_in_table(*theirs)} {_as_in_table(*ours)} {_ESTABLISHED} ".encode()
        name = "tcp6" if connection.family == socket.AF_INET6 else "tcp"
        with (Path("/proc/net") / name).open("rb") as file:
            table = file.read(_TCP_TABLE_BYTES_MAX)
        at = table.find(row)
        # After the addresses and the state come queues, timer and retransmissions; then the user.
        return int(table[at + len(row) :].split(None, 4)[3]) if at >= 0 else None
    except (OSError, ValueError, IndexError):
        return None


def _as_in_table(address: str, port: int) -> str:
    """An address as /proc/net/tcp has it: 32-bit words in this machine's byte order."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


def peer_pidfd(connection: socket.socket) -> int:
    """A pidfd of the process that connected, even if its pid is reused by now."""
    return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)


def send(connection: socket.socket, data: bytes | memoryview, fds: Sequence[int] = ()) -> int:
    """Bytes sent, 0 if the peer's buffer is full; descriptors go with the first byte."""
    try:
        if fds:
            return socket.send_fds(connection, [data], list(fds), socket.MSG_NOSIGNAL)
        return connection.send(data, socket.MSG_NOSIGNAL)
    except (BlockingIOError, InterruptedError):
        return 0


def receive(connection: socket.socket, size_max: int) -> bytes | None:
    """The received bytes; empty at the end of the stream, None if there are none yet."""
    try:
        return connection.recv(size_max)
    except (BlockingIOError, InterruptedError):
        return None


def receive_fds(connection: socket.socket, size_max: int) -> tuple[bytes | None, list[int]]:
    """As `receive`, with the descriptors that came along; the caller has to close them."""
    try:
        data, fds, _, _ = socket.recv_fds(connection, size_max, _FDS_MAX, socket.MSG_CMSG_CLOEXEC)
    except (BlockingIOError, InterruptedError):
        return None, []
    return data, fds


def wait(connection: socket.socket, *, write: bool, timeout_s: float) -> bool:
    """Whether it can be read (or written) within the time; a signal ends the wait early.

    Python's own calls wait for whole milliseconds, or take no descriptor above 1023.
    """
    wanted = _PollFd(connection.fileno(), select.POLLIN | (select.POLLOUT if write else 0), 0)
    seconds = max(0.0, timeout_s)
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    return bool(_ppoll(ctypes.byref(wanted), 1, ctypes.byref(limit), None) > 0)


def cannot_shrink(descriptor: int) -> bool:
    """Whether a memfd can never shrink, so that reading a mapping of it cannot fail."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return bool(seals & fcntl.F_SEAL_SHRINK)
