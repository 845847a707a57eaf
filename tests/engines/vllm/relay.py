"""Two clients, one stream: a relay that has both measure the same answers of one server.

The n-th request at one port is answered together with the n-th at the other: the first client's
question goes to the server, and every byte of its answer goes to both as it comes. Whatever else
the machine does meanwhile hits both alike, so what differs is what the clients make of it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from forebay.bench.processes import HOST, free_port


class Asked(NamedTuple):
    body: bytes
    writer: asyncio.StreamWriter


class Relay:
    def __init__(self, server_port: int) -> None:
        self.ports = (free_port(), free_port())
        self._server_port = server_port
        self._waiting: tuple[asyncio.Queue[Asked], ...] = ()

    async def serve(self, ready: threading.Event, over: asyncio.Event) -> None:
        self._waiting = (asyncio.Queue(), asyncio.Queue())
        servers = [
            await asyncio.start_server(partial(self._accept, side), HOST, port)
            for side, port in enumerate(self.ports)
        ]
        pairing = asyncio.create_task(self._pair())
        ready.set()
        await over.wait()
        pairing.cancel()
        for server in servers:
            server.close()

    async def _accept(
        self, side: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            length = next(
                (
                    int(line.split(":")[1])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length:")
                ),
                0,
            )
            body = await reader.readexactly(length)
            if path.endswith("/chat/completions"):
                self._waiting[side].put_nowait(Asked(body, writer))
            else:
                await self._pass_on(f"GET {path}", b"", [writer])

    async def _pair(self) -> None:
        under_way = set()
        while True:
            one, other = [await waiting.get() for waiting in self._waiting]
            task = asyncio.create_task(
                self._pass_on("POST /v1/chat/completions", one.body, [one.writer, other.writer])
            )
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    async def _pass_on(self, line: str, body: bytes, writers: list[asyncio.StreamWriter]) -> None:
        reader, server = await asyncio.open_connection(HOST, self._server_port)
        head = f"{line} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        server.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
        server.write(body)
        while data := await reader.read(1 << 16):
            for writer in writers:
                if not writer.is_closing():
                    writer.write(data)
        for each in (server, *writers):
            each.close()


@contextlib.contextmanager
def relayed(server_port: int) -> Iterator[tuple[int, int]]:
    """The two ports of a relay before that server, on a thread of ours."""
    relay = Relay(server_port)
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(relay.serve(ready, over),))
    thread.start()
    assert ready.wait(10)
    try:
        yield relay.ports
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()
