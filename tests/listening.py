"""A server of a test's own on a loopback port: a thread a connection, ended with the block."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import BinaryIO, Final, Self

STUFFING: Final = b"\xa5" * 65536
_DRIP_S: Final = 0.05


class HangUp(Exception):  # noqa: N818
    """The connection is closed."""


class ListeningServer:
    """Says what `replies` yields to what it reads."""

    def __init__(self) -> None:
        self.connections = 0
        self.over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def replies(self, incoming: BinaryIO) -> Iterator[bytes]:
        """What is said on one connection; HangUp, or the end, closes it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(60)
        self._listening.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(60)
            assert not thread.is_alive()

    def stall(self) -> None:
        """Say nothing until the test is over."""
        self.over.wait()
        raise HangUp

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with ExitStack() as close, suppress(OSError, HangUp):
            close.callback(connection.close)
            incoming = connection.makefile("rb")
            close.callback(incoming.close)
            for part in self.replies(incoming):
                connection.sendall(part)


def dripping(whole: bytes, over: threading.Event) -> Iterator[bytes]:
    """Byte by byte, slowly."""
    for at in range(len(whole)):
        yield whole[at : at + 1]
        over.wait(_DRIP_S)
