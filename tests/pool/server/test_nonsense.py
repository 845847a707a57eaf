"""Well-formed nonsense: any order of messages with any values leaves a pool that serves (T39)."""

import contextlib
import itertools
import random
import socket
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool.server.test_strangers import heard_one_by_one
from tests.pool_process import PatientClient, exact, made, wait_until

from forebay.metrics.reading import count
from forebay.pool import messages, wire
from forebay.pool.client import Receipt
from forebay.pool.messages import PROTOCOL, ClientMessage, Hello
from forebay.testing.samples import NAMESPACE

NUMBERS = (-(1 << 63), -3, -1, 0, 1, 2, 7, 4096, 100_000, 1 << 20, 1 << 31, (1 << 63) - 1)
NUMBERS_LARGE = (*NUMBERS, (1 << 64) - 1)


class Nonsense:
    """Draws messages; now and then their parts are sound, so that they get further."""

    def __init__(self, seed: int, generation: int) -> None:
        self.random = random.Random(seed)
        self.generation = generation
        self.keys = [chunk.name.key for chunk in made("nonsense", 8)[0]]

    def message(self) -> ClientMessage:
        draw = self.random.choice
        number = self.random.choice((*NUMBERS_LARGE, *range(4)))
        match self.random.randrange(10):
            case 0 | 1:
                keys = b"".join(draw(self.keys)[:16] for _ in range(draw((0, 1, 3, 50))))
                keys = draw((keys, keys, self.chain()[:130], keys[:-1], b"x"))
                return messages.Lookup(number, self.namespace(), draw((0, 0, *NUMBERS)), keys)
            case 2:
                first, count = draw((0, *NUMBERS_LARGE)), draw((4, *NUMBERS_LARGE))
                deadline = draw((0, 50, *NUMBERS_LARGE))
                return messages.Ask(number, first, count, deadline, stream=draw((True, False)))
            case 3:
                return messages.Release(number, self.offsets())
            case 4:
                return draw((messages.Cancel(number), messages.Settled(draw(("", "é", "fool 0")))))
            case 5 | 6:
                return messages.Reserve(number, [self.run() for _ in range(draw((0, 1, 2)))])
            case 7:
                return messages.Commit(
                    self.slab(), self.offsets(), draw((b"", bytes(16), b"x" * 33))
                )
            case 8:
                return messages.Abort(self.slab(), self.offsets())
            case _:
                return self.operator()

    def operator(self) -> ClientMessage:
        draw = self.random.choice
        return draw(
            (
                messages.StatsQuery(),
                messages.Resize(draw((-1, -2, 1 << 62)), []),
                messages.Resize(-1, [(draw(("", "/", "\0", "é")), draw(NUMBERS))]),
                messages.Clear(draw(("f", "ffffffff", "zz", "é", "0" * 10_000))),
            )
        )

    def chain(self) -> bytes:
        return b"".join(key[:16] for key in self.keys)

    def namespace(self) -> bytes:
        return self.random.choice((NAMESPACE, NAMESPACE, bytes(32), b"", b"x" * 1000))

    def run(self) -> messages.ChunkRun:
        draw = self.random.choice
        parent = draw((bytes(32), bytes(32), draw(self.keys), b"", b"y" * 32))
        keys = b"".join(self.keys[: draw((1, 2, 8))])
        keys = draw((keys, keys, draw(self.keys), b"", b"z" * 31, draw(self.keys) * 3))
        length = draw((100_000, 100_000, *NUMBERS_LARGE))
        return messages.ChunkRun(self.namespace(), draw((0, 0, *NUMBERS)), parent, keys, length)

    def slab(self) -> int:
        return self.random.choice((self.generation, self.generation, 0, -1))

    def offsets(self) -> list[int]:
        return [
            self.random.choice((*NUMBERS_LARGE, *range(0, 1 << 20, 106_496)))
            for _ in range(self.random.choice((0, 1, 5)))
        ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("with_disk", [False, True])
def test_t39_an_ask_for_anything_is_answered(place: Path, with_disk: bool, stream: bool) -> None:
    """Of a request that was looked up; what is no chunk of it is not promised."""
    settings = pool_process.with_disk(place) if with_disk else pool_process.SMALL
    chunks, chain = made("asked", 4)
    with (
        pool_process.serving(place, settings) as service,
        PatientClient(service.address.path) as client,
        socket.socket(socket.AF_UNIX) as link,
    ):
        client.store(chain, [chunk.payload for chunk in chunks])
        link.settimeout(pool_process.HANG_S)
        link.connect(service.address.path)
        link.sendall(wire.encode(Hello(PROTOCOL, "fool")))
        answers = heard_one_by_one(link)
        next(answers)
        odd = itertools.product((*NUMBERS, 3, 4, 5), (*NUMBERS, 3, 4, 5), (0, -1, 1 << 62))
        for number, (first, count, deadline_ms) in enumerate(odd):
            ask = messages.Ask(number, first, count, deadline_ms, stream=stream)
            lookup = messages.Lookup(number, chain.namespace, 0, chain.shorts())
            for sent in (lookup, ask, messages.Release(number, [])):
                link.sendall(wire.encode(sent))
            promise = next(each for each in answers if not isinstance(each, messages.Found))
            assert isinstance(promise, messages.Promise)
            start = max(0, first)
            assert promise.total == max(0, min(4, start + max(0, count)) - start)
            assert len(promise.offsets) == promise.total


@pytest.mark.parametrize("with_disk", [False, True])
def test_t39_nonsense_is_ignored_and_the_pool_serves(
    place: Path, seed: int, with_disk: bool
) -> None:
    settings = pool_process.with_disk(place) if with_disk else pool_process.SMALL
    with (
        pool_process.serving(place, settings) as service,
        PatientClient(service.address.path) as client,
    ):
        assert client.join()
        assert client.generation is not None
        for turn in range(8):
            nonsense = Nonsense(seed + turn, client.generation)
            fool = f"fool {turn}"
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(service.address.path)
                link.sendall(wire.encode(Hello(PROTOCOL, fool)))
                for _ in range(60):
                    link.sendall(wire.encode(nonsense.message()))
                    with contextlib.suppress(BlockingIOError):
                        link.recv(1 << 20, socket.MSG_DONTWAIT)
                # Slots stay its own while its process, ours, lives: it gives them back.
                every = list(range(0, pool_process.DRAM_BYTES, 4096))
                link.sendall(wire.encode(messages.Abort(client.generation, every)))
                link.sendall(wire.encode(messages.Settled(fool)))

                def has_nothing(link: socket.socket = link) -> bool:
                    with contextlib.suppress(BlockingIOError):
                        link.recv(1 << 20, socket.MSG_DONTWAIT)
                    stats = client.stats()
                    return isinstance(stats, dict) and not count(stats, "leased_slots")

                # Who hangs up before its last messages had their turn takes them along.
                wait_until(has_nothing, "the slots that were given back")
            wait_until(lambda: len(service._server._connections) == 1, "the fool's last word")
            chunks, chain = made(f"sense {turn}")
            receipt = client.store(chain, [chunk.payload for chunk in chunks])
            assert receipt == Receipt(stored=4)
            with client.load(chain) as loaded:
                assert exact(loaded, chunks)
        stats = client.stats()
        assert isinstance(stats, dict)
        assert not count(stats, "leased_slots")
        assert not count(stats, "pinned_bytes")
