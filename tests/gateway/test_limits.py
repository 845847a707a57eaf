"""Clients that are slow, silent or many: each ends by a limit, and others are served meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from tests.pool_process import HANG_S

from forebay.barrier import Barrier
from forebay.gateway.http.messages import BodyFault, IncomingRequest
from forebay.gateway.http.server import FrontLimits, FrontServer

HEAD: Final = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
Play = Callable[["Served"], Awaitable[None]]


class Served:
    """A server whose answers are what the handler found in a request's body."""

    def __init__(self, **limits: Any) -> None:
        self.found: list[bytes | BodyFault] = []
        self.over = asyncio.Event()  # a handler that wrote without end has ended
        self.server = FrontServer(self.handle, FrontLimits(**limits), Barrier())
        self.port = 0

    async def handle(self, incoming: IncomingRequest) -> None:
        body = await incoming.read_body(incoming.header("Owner"))
        self.found.append(body)
        if body == b"large":
            await incoming.answer(200, {}, bytes(1 << 16))
            return
        if body != b"stream":
            await incoming.answer(200, {}, b"answer")
            return
        await incoming.begin(200, [])
        try:
            while True:
                await incoming.write(bytes(1 << 16))
        finally:
            self.over.set()

    async def connect(self) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)

    async def is_serving(self) -> bool:
        reader, writer = await self.connect()
        writer.write(HEAD % 2 + b"ok")
        found = await reader.readuntil(b"answer")
        writer.close()
        return found.startswith(b"HTTP/1.1 200 ")


def serve(play: Play, **limits: Any) -> None:
    async def run() -> None:
        served = Served(**limits)
        served.port = await served.server.start("127.0.0.1", 0)
        async with asyncio.timeout(HANG_S):
            await play(served)
        await served.server.close(1.0)
        assert served.server.bodies_bytes == 0
        assert served.server.barrier.caught == 0

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nX: "])
def test_a_silent_client_is_hung_up_on(sent: bytes) -> None:
    async def play(served: Served) -> None:
        reader, writer = await served.connect()
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()

    serve(play, idle_s=0.05)


def test_t64_a_body_that_does_not_come_is_given_up() -> None:
    async def play(served: Served) -> None:
        reader, writer = await served.connect()
        writer.write(HEAD % 100 + b"some")
        await reader.readuntil(b"answer")
        assert served.found == [BodyFault.TOO_SLOW]
        writer.close()
        assert await served.is_serving()

    serve(play, body_s=0.05)


def test_t64_bodies_of_all_clients_have_a_limit_together() -> None:
    async def play(served: Served) -> None:
        clients = [await served.connect() for _ in range(3)]
        for _, writer in clients[:2]:
            writer.write(HEAD % 1000 + bytes(999))
        while served.server.bodies_bytes < 1998:  # noqa: ASYNC110 - nothing else tells it
            await asyncio.sleep(0.01)
        reader, writer = clients[2]
        writer.write(HEAD % 1000 + bytes(1000))
        await reader.readuntil(b"answer")
        assert served.found == [BodyFault.TOO_MANY]
        for _, writer in clients:
            writer.close()
        while served.server.bodies_bytes:  # noqa: ASYNC110 - nothing else tells it
            await asyncio.sleep(0.01)
        assert await served.is_serving()

    serve(play, bodies_bytes_max=2500)


def test_t64_a_client_that_takes_nothing_is_hung_up_on() -> None:
    async def play(served: Served) -> None:
        _, writer = await served.connect()
        writer.write(HEAD % 6 + b"stream")  # and read nothing of what comes
        await served.over.wait()
        assert await served.is_serving()
        writer.close()

    serve(play, write_s=0.05)


def test_a_client_that_takes_none_of_many_answers_is_hung_up_on() -> None:
    async def play(served: Served) -> None:
        _, writer = await served.connect()
        with suppress(ConnectionError):
            while True:
                writer.write((HEAD % 5 + b"large") * 100)
                await writer.drain()
        assert await served.is_serving()

    serve(play, write_s=0.05)


def test_t64_bodies_of_one_owner_leave_room_for_others() -> None:
    async def play(served: Served) -> None:
        clients = [await served.connect() for _ in range(3)]
        owned = [HEAD[:-2] % 1000 + b"Owner: %b\r\n\r\n" % owner for owner in (b"a", b"a", b"b")]
        clients[0][1].write(owned[0] + bytes(999))
        while served.server.bodies_bytes < 999:  # noqa: ASYNC110 - nothing else tells it
            await asyncio.sleep(0.01)
        for (reader, writer), head in list(zip(clients, owned, strict=True))[1:]:
            writer.write(head + bytes(1000))
            await reader.readuntil(b"answer")
        assert served.found == [BodyFault.TOO_MANY, bytes(1000)]
        for _, writer in clients:
            writer.close()
        while served.server.bodies_bytes:  # noqa: ASYNC110 - nothing else tells it
            await asyncio.sleep(0.01)
        assert not any(served.server.owners_bytes.values())

    serve(play, bodies_bytes_max=3000)


def test_connections_have_a_limit() -> None:
    async def play(served: Served) -> None:
        clients = [await served.connect() for _ in range(2)]
        for reader, writer in clients:
            writer.write(HEAD % 2 + b"ok")
            await reader.readuntil(b"answer")
        reader, writer = await served.connect()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        for _, writer in clients:
            writer.close()
        while served.server.connections:  # noqa: ASYNC110 - nothing else tells it
            await asyncio.sleep(0.01)
        assert await served.is_serving()

    serve(play, connections_max=2)
