"""An engine in a process of its own that lies, in every way that a client of a pool can.

Run as `python -m tests.lying_engine SOCKET SEED`. It lies until its input ends, and joins again
whenever the pool hangs up on it. What it stores is in a namespace of its own.
"""

import random
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from tests import pool_process
from tests.clocks import SlowClock

from forebay.pool.client.session import PoolSession, join
from forebay.pool.messages import (
    Abort,
    Ask,
    Cancel,
    Commit,
    Lookup,
    Release,
    Reserve,
    Reserved,
    Settled,
)
from forebay.record.header import payload_hash

CHUNKS, LENGTH = 8, 60_000
PATIENCE_S = 5.0
FAR = (1 << 62) + 1


class Liar:
    """One session, and lies told in it."""

    def __init__(self, session: PoolSession, luck: random.Random) -> None:
        self.session, self.luck = session, luck
        self.chunks, self.chain = pool_process.made(f"lies {luck.random()}", CHUNKS, LENGTH)

    def tell(self) -> None:
        """One of them, at random; each is a method."""
        lies: list[Callable[[], None]] = [
            self.write_behind_a_commit,
            self.name_a_wrong_digest,
            self.never_fill,
            self.ask_too_much,
            self.release_what_is_not_ours,
        ]
        self.luck.choice(lies)()

    def slots(self) -> Reserved | None:
        """Slots for its chunks."""
        runs = self.chain.runs([(position, LENGTH) for position in range(CHUNKS)])
        self.session.post(Reserve(1, runs))
        until = time.monotonic() + PATIENCE_S
        while (answer := self.session.take(until)) is not None:
            if isinstance(answer, Reserved):
                return answer
        return None

    def fill(self, reserved: Reserved) -> list[int]:
        """Copy its chunks into their slots, as it should."""
        slab = self.session.slab
        filled = []
        for offset, chunk in zip(reserved.answers, self.chunks, strict=False):
            view = slab.view(offset, LENGTH) if slab is not None and offset >= 0 else None
            if view is not None:
                view[:] = chunk.payload
                view.release()
                filled.append(offset)
        return filled

    def write_behind_a_commit(self) -> None:
        reserved = self.slots()
        if reserved is None or self.session.slab is None:
            return
        filled = self.fill(reserved)
        digests = b"".join(payload_hash(chunk.payload) for chunk in self.chunks[: len(filled)])
        self.session.post(Commit(reserved.generation, filled, digests))
        for offset in filled:
            view = self.session.slab.view(offset, LENGTH)
            if view is not None:
                view[: LENGTH // 2] = b"\x66" * (LENGTH // 2)
                view.release()

    def name_a_wrong_digest(self) -> None:
        reserved = self.slots()
        if reserved is not None:
            filled = self.fill(reserved)
            digests = self.luck.randbytes(16 * len(filled))
            self.session.post(Commit(reserved.generation, filled, digests))

    def never_fill(self) -> None:
        self.slots()

    def ask_too_much(self) -> None:
        number = self.luck.randrange(1000)
        keys = self.luck.randbytes(8 * 2000)
        self.session.post(Lookup(number, self.chain.namespace, 0, keys))
        self.session.post(Ask(number, self.luck.randrange(9), FAR, FAR, stream=True))

    def release_what_is_not_ours(self) -> None:
        for request in range(20):
            self.session.post(Release(request, list(range(200))))
            self.session.post(Cancel(request + 20))
        offsets = [self.luck.randrange(1 << 24) for _ in range(200)]
        self.session.post(Abort(self.session.generation, offsets))
        self.session.post(Commit(self.session.generation, offsets, bytes(16 * len(offsets))))
        self.session.post(Settled("somebody else"))


def shout(path: str, luck: random.Random) -> None:
    """Bytes that are no message, on a connection of their own."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(PATIENCE_S)
        link.connect(path)
        link.sendall(luck.randbytes(luck.randrange(1, 100_000)))
        link.recv(1 << 16)


def main() -> None:
    path, seed = sys.argv[1:]
    luck, told = random.Random(seed), 0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        with suppress(OSError):  # the pool hangs up, as it should
            shout(path, luck)
        session = join(path, f"liar {luck.random()}", SlowClock(), time.monotonic() + PATIENCE_S)
        if isinstance(session, str):
            continue
        liar = Liar(session, luck)
        for _ in range(luck.randrange(1, 30)):
            liar.tell()
            told += 1
            time.sleep(0.02)
            if session.poll():
                break
        session.close()
    print(told, flush=True)


if __name__ == "__main__":
    main()
