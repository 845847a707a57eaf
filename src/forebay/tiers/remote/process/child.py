"""The child process: calls one store, on threads, for the pool at the other end of a socket.

`python -m forebay.tiers.remote.process.child DESCRIPTOR URL HOST THREADS ENTRIES`. It keeps nothing
that a later child needs, except that watching for dead hosts starts again. It ends when the socket
does, whatever its threads wait for, and is killed when the thread that started it ends.
"""

import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final

from forebay.barrier import Barrier
from forebay.sys import processes, shared
from forebay.sys.clock import Clock
from forebay.tiers.remote.process import maintenance, recovery
from forebay.tiers.remote.process.counting import CountedStore
from forebay.tiers.remote.process.messages import (
    MAINTENANCE,
    MESSAGE_BYTES_MAX,
    Action,
    Answer,
    StoreRequest,
    decode_request,
    encode,
)
from forebay.tiers.remote.process.watching import Refreshed, UsedByHosts, Watcher
from forebay.tiers.remote.store import ObjectStore, StoreFailure
from forebay.tiers.remote.stores.opening import open_store

_DESCRIPTORS_MAX: Final = 1
_MEMORY_BYTES: Final = 2 << 30  # in addition to the slab; a library that takes more fails


class Child:
    """Reads requests on one thread and serves them on others."""

    def __init__(
        self, connection: socket.socket, store: ObjectStore, host: str, entries: int
    ) -> None:
        self._connection, self._store, self._host = connection, store, host
        self._counted = CountedStore(store)  # for actions of several calls; one at a time
        self._watcher = Watcher(self._counted, host, entries)
        self._used = UsedByHosts(self._counted)
        self._host_watch = maintenance.HostWatch(Clock())
        self._areas: dict[int, memoryview] = {}  # by number; changed only by the reading thread
        self._requests: queue.SimpleQueue[StoreRequest | None] = queue.SimpleQueue()
        self._barrier = Barrier()

    def serve(self, threads: int) -> None:
        """Serve until the other end is closed."""
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        while self._receive():
            pass
        for _ in workers:
            self._requests.put(None)

    def _receive(self) -> bool:
        """Handle the next message; False when the socket is closed."""
        data, descriptors, _, _ = socket.recv_fds(
            self._connection, MESSAGE_BYTES_MAX, _DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return False
        request = decode_request(data)
        if request.action is Action.MAP:
            self._areas[request.at] = shared.mapped(descriptors[0], write=True)
            processes.close(descriptors[0])
        elif request.action is Action.UNMAP:
            self._areas.pop(request.at).release()
        else:
            self._requests.put(request)
        return True

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            failed = Answer(request.number, StoreFailure.FAILED), list[bytes]()
            answer, results = self._barrier.result("a call", failed, self._serve, request)
            self._answer(answer, results)

    def _serve(self, request: StoreRequest) -> tuple[Answer, list[bytes]]:
        """Carry out a request; its answer, and results that go with it."""
        if request.action in MAINTENANCE:
            self._counted.begin(self._views(request)[0])
        counted, host = self._counted, self._host
        calls: dict[Action, Callable[[], object]] = {
            Action.PUT: lambda: self._store.put(request.name, self._views(request)),
            Action.GET: lambda: self._store.get(request.name, request.at, self._views(request)),
            Action.DELETE: lambda: self._store.delete(request.name),
            Action.PROBE: lambda: maintenance.probe(counted, host),
            Action.RECOVER: lambda: recovery.recover(counted, host),
            Action.READ_PACKS: lambda: recovery.read(counted, host, request.packs),
            Action.AUDIT: lambda: maintenance.audit(counted, host),
            Action.USED: lambda: self._used.poll(request.limit),
            Action.REFRESH: lambda: self._watcher.refresh(request.at, request.limit),
            Action.SWEEP: lambda: maintenance.sweep(
                counted, host, request.at, request.limit, self._host_watch
            ),
        }
        match calls[request.action]():
            case StoreFailure() as failure:
                return Answer(request.number, failure), []
            case int() as count:
                return Answer(request.number, count=count), []
            case bytes() as result:
                return Answer(request.number), [result]
            case Refreshed(version, tails, snapshots):
                results = [tails] if snapshots is None else [tails, snapshots]
                return Answer(request.number, count=version), results
        return Answer(request.number), []

    def _views(self, request: StoreRequest) -> list[memoryview]:
        return [
            self._areas[area][offset : offset + length] for area, offset, length in request.buffers
        ]

    def _answer(self, answer: Answer, results: list[bytes]) -> None:
        descriptors = [shared.filled(result) for result in results]
        try:
            socket.send_fds(self._connection, [encode(answer)], descriptors, socket.MSG_NOSIGNAL)
        except OSError:
            pass  # nobody waits for the answer any more
        finally:
            for descriptor in descriptors:
                processes.close(descriptor)


def main(arguments: list[str]) -> None:
    """Serve until the socket is closed."""
    processes.end_with_parent()
    descriptor, url, host, threads, entries = arguments
    with socket.socket(fileno=int(descriptor)) as connection:
        Child(connection, open_store(url, host), host, int(entries)).serve(int(threads))


if __name__ == "__main__":  # pragma: no cover - another process
    processes.limit_memory(_MEMORY_BYTES)
    main(sys.argv[1:])
    os._exit(0)  # a thread that hangs in a store is not waited for
