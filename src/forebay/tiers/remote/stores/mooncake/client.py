"""Mooncake's own client, as this process uses it: bytes by key, through two registered buffers.

This process lends no memory to the store: what it put would be gone when it is killed. A transfer
that Mooncake has given up may go on for a while, so a buffer whose transfer failed is never used
again; after too many of these the process ends, and another one is started. Over TCP, parallel
transfers only cost more, so there is one in each direction. Mooncake has no deadlines: the caller
must be a process that can be killed. Nothing is retried.
"""

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from forebay.sys import memory
from forebay.tiers.remote.store import StoreFailure

# Mooncake's log would be the pool's: what fails is in the answers. Read when it is imported.
os.environ.setdefault("GLOG_minloglevel", "3")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

_CONNECT_S: Final = 2.0  # without a master, Mooncake itself would try for 90 s
_RETIRED_MAX: Final = 16  # buffers, each as large as what it was used for
_BUFFER_BYTES_MIN: Final = 1 << 20
_METADATA: Final = "P2PHANDSHAKE"  # clients find each other without a further server
_ABSENT, _FULL = -704, -200  # Mooncake's codes; all others are failures
_FAILED: Final = -1
_ASKED_MAX: Final = 1024  # keys of one question
_EXIT_STATUS: Final = 3


class _Mooncake(Protocol):
    """What is used of Mooncake's client; numbers below zero are its codes."""

    def upsert_from(self, key: str, place: int, size: int, config: object) -> int: ...
    def get_into_ranges(
        self,
        places: list[int],
        keys: list[list[str]],
        targets: list[list[list[int]]],
        sources: list[list[list[int]]],
        sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]: ...
    def get_size(self, key: str) -> int: ...
    def batch_is_exist(self, keys: list[str]) -> list[int]: ...
    def remove(self, key: str, force: bool) -> int: ...
    def register_buffer(self, place: int, size: int) -> int: ...
    def unregister_buffer(self, place: int) -> int: ...
    def close(self) -> int: ...


class MasterAccess(NamedTuple):
    """Where Mooncake is, and how it is spoken to."""

    master: tuple[str, int]
    protocol: str  # tcp or rdma
    devices: str  # of RDMA, with commas between them; empty: Mooncake chooses
    address: str  # of this host, as others reach it; empty: that from which the master is reached
    replicas: int  # of every object, in as many processes


class _TransferBuffer:
    """The buffer of one direction, registered with a client; its lock guards it."""

    def __init__(self, not_begun: int) -> None:
        self.not_begun = not_begun  # the code of a transfer that was not begun
        self.lock = threading.Lock()
        self.view = memoryview(b"")


class MooncakeClient:
    """One connection to a master; any thread may call."""

    def __init__(self, access: MasterAccess, end: Callable[[], object] | None = None) -> None:
        """Connects to nothing yet. `end` ends this process, and need not return."""
        self._access = access
        self._end = end or (lambda: os._exit(_EXIT_STATUS))
        self._lock = threading.Lock()  # guards that there is one client
        self._client: _Mooncake | None = None
        self._incoming, self._outgoing = _TransferBuffer(_ABSENT), _TransferBuffer(_FULL)
        self._retired: list[memoryview] = []

    def put(self, key: str, buffers: Sequence[memoryview], *, pinned: bool) -> StoreFailure | None:
        """Store the buffers as one value; a `pinned` value is not evicted. None may be empty."""
        size = sum(map(len, buffers))
        config = ReplicateConfig()
        config.replica_num, config.with_hard_pin = self._access.replicas, pinned

        def send(client: _Mooncake, view: memoryview) -> int:
            at = 0
            for buffer in buffers:
                _copy(buffer, view[at : at + len(buffer)])
                at += len(buffer)
            return client.upsert_from(key, _address(view), size, config)

        code = self._move(self._outgoing, size, send) if size else _FAILED
        failure = None if code == 0 else _failure(code)
        return StoreFailure.FAILED if failure is StoreFailure.ABSENT else failure

    def get(self, key: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """Fill the buffers from `at` on; returns the bytes read, fewer if the value ends before."""
        size = self.size(key)
        if isinstance(size, StoreFailure):
            return size
        count = max(0, min(size - at, sum(map(len, buffers))))

        def receive(client: _Mooncake, view: memoryview) -> int:
            place = _address(view)
            ranges = [[[0]]], [[[at]]], [[[count]]]
            ((code,),) = client.get_into_ranges([place], [[key]], *ranges)[0]
            if code != count:
                return min(code, _FAILED)
            done = 0
            for buffer in buffers:
                part = buffer[: max(0, count - done)]
                _copy(view[done : done + len(part)], part)
                done += len(part)
            return code

        code = self._move(self._incoming, count, receive) if count else 0
        return code if code >= 0 else _failure(code)

    def size(self, key: str) -> int | StoreFailure:
        """How many bytes a value has."""
        client = self._connected()
        found = _FAILED if client is None else client.get_size(key)
        return found if found >= 0 else _failure(found)

    def exist(self, keys: Sequence[str]) -> list[bool] | StoreFailure:
        """Which keys the master knows; a value's process may have been gone for seconds."""
        client = self._connected()
        if client is None:
            return StoreFailure.FAILED
        found: list[int] = []
        for first in range(0, len(keys), _ASKED_MAX):
            found += client.batch_is_exist(list(keys[first : first + _ASKED_MAX]))
        return StoreFailure.FAILED if min(found, default=0) < 0 else [each == 1 for each in found]

    def remove(self, key: str) -> StoreFailure | None:
        """Delete a value even while it is being read; success if there is none."""
        client = self._connected()
        code = _FAILED if client is None else client.remove(key, True)
        return None if code in (0, _ABSENT) else _failure(code)

    def close(self) -> None:
        """Leave the master."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> _Mooncake | None:
        """The client; None if the master cannot be reached. The client reconnects by itself."""
        with self._lock:
            if self._client is None:
                address = self._own_address()
                self._client = self._set_up(address) if address else None
            return self._client

    def _set_up(self, address: str) -> _Mooncake | None:
        access, client = self._access, MooncakeDistributedStore()
        host, port = access.master
        master = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        code = client.setup(address, _METADATA, 0, 0, access.protocol, access.devices, master)
        return client if code == 0 else None

    def _own_address(self) -> str:
        """The address of this host; "" if the master does not answer."""
        try:
            connection = socket.create_connection(self._access.master, _CONNECT_S)
        except OSError:
            return ""
        with connection:
            return self._access.address or str(connection.getsockname()[0])

    def _move(
        self, buffer: _TransferBuffer, size: int, transfer: Callable[[_Mooncake, memoryview], int]
    ) -> int:
        """One transfer through a registered buffer; returns its code.

        After a failure the buffer is not used again, unless no transfer began.
        """
        client = self._connected()
        with buffer.lock:
            view = None if client is None else _buffer(client, buffer, size)
            if client is None or view is None:
                return _FAILED
            code = transfer(client, view)
            if code < 0 and code != buffer.not_begun:
                self._retired.append(buffer.view)
                buffer.view = memoryview(b"")
                if len(self._retired) >= _RETIRED_MAX:
                    self._end()
            return code


def _buffer(client: _Mooncake, buffer: _TransferBuffer, size: int) -> memoryview | None:
    """A buffer's memory, enlarged if necessary; None if that fails."""
    if len(buffer.view) < size:
        if len(buffer.view):
            client.unregister_buffer(_address(buffer.view))
            buffer.view = memoryview(b"")
        view = memory.allocate(max(_BUFFER_BYTES_MIN, 1 << (size - 1).bit_length()))
        if client.register_buffer(_address(view), len(view)) != 0:  # pragma: no cover - RDMA's
            return None
        buffer.view = view
    return buffer.view[:size]


def _failure(code: int) -> StoreFailure:
    return {_ABSENT: StoreFailure.ABSENT, _FULL: StoreFailure.FULL}.get(code, StoreFailure.FAILED)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _copy(source: memoryview, target: memoryview) -> None:
    """The interpreter runs meanwhile, where the source can be written to."""
    if source.readonly or not len(source):
        target[:] = source
    else:
        ctypes.memmove(_address(target), _address(source), len(source))
