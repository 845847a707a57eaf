"""A process that joins a pool, gets itself into a state, and can be killed there.

Run as `python -m tests.member STATE SOCKET`. It says `ready` once it is in that state; every line
that it then reads makes it finish what it was about and look whether there is a pool, and say in
JSON how that went.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from tests import poolside

from forebay.pool.client import Client, Known, Loaded
from forebay.pool.client.session import PoolSession, join
from forebay.pool.client.slab import MappedSlab
from forebay.pool.messages import Ask, Commit, Found, Lookup, Promise, Reserve, Reserved
from forebay.sys.clock import Clock

CHUNKS: Final = 4
LENGTH: Final = 100_000
LONG_S: Final = 60.0
TIMEOUT_S: Final = 1.0


class Member:
    """One client and what it holds."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.client = Client(socket)
        assert self.client.join(10)
        self.mine, self.my_chain = poolside.made(f"member {time.monotonic_ns()}", CHUNKS, LENGTH)
        self.shared, self.shared_chain = poolside.made("shared", CHUNKS, LENGTH)
        self.offsets: list[int] = []
        self.stop = threading.Event()
        self.scribbler: threading.Thread | None = None

    @property
    def link(self) -> PoolSession:
        return self.client._session

    @property
    def slab(self) -> MappedSlab:
        assert self.link.slab is not None
        return self.link.slab

    def reserved(self) -> Callable[[], str]:
        """Slots are lent to it."""
        runs = self.my_chain.runs([(position, LENGTH) for position in range(CHUNKS)])
        self.link.post(Reserve(1, runs))
        answer = self.link.take(time.monotonic() + 5)
        assert isinstance(answer, Reserved)
        assert all(offset >= 0 for offset in answer.answers)
        self.offsets = answer.answers
        return self._commit

    def copying(self) -> Callable[[], str]:
        """It writes into its slots without end."""
        self.reserved()
        views = [self.slab.view(offset, LENGTH) for offset in self.offsets]
        self.scribbler = threading.Thread(target=self._scribble, args=(views,), daemon=True)
        self.scribbler.start()
        return self._commit

    def detached(self) -> Callable[[], str]:
        """It goes on writing after its connection is gone."""
        finish = self.copying()
        assert self.link.connection is not None
        self.link.connection.close()
        return finish

    def committed(self) -> Callable[[], str]:
        """All that it had is stored."""
        receipt = self.client.store(self.my_chain, [chunk.payload for chunk in self.mine])
        assert receipt.stored == CHUNKS, receipt
        return lambda: "stored"

    def leased(self) -> Callable[[], str]:
        """It reads from the slab."""
        self._block = self.client.load(self.shared_chain, timeout_s=10)
        loaded = self._block.__enter__()
        assert poolside.exact(loaded, self.shared), loaded
        return lambda: self._leave(loaded)

    def unheard(self) -> Callable[[], str]:
        """It reads from the slab after its connection is gone."""
        finish = self.leased()
        assert self.link.connection is not None
        self.link.connection.close()
        return finish

    def waiting(self) -> Callable[[], str]:
        """It has asked for chunks that take long to read."""
        line, chain = self.link, self.shared_chain
        line.post(Lookup(1, chain.namespace, 0, chain.shorts()))
        assert isinstance(line.take(time.monotonic() + 5), Found)
        line.post(Ask(1, 0, CHUNKS, int(LONG_S * 1000), stream=False))
        assert line.take(time.monotonic() + 0.1) is None
        return self._promised

    def paired(self) -> Callable[[], str]:
        """It is one of two processes of an engine that has slots; the other one said `pair`."""
        link = join(self.socket, "pair", Clock(), time.monotonic() + 5)
        assert isinstance(link, PoolSession)
        self.client.close()
        self.client._session = self.client._calls.session = link
        return self.reserved()

    def joined(self) -> Callable[[], str]:
        """It is the other one, and holds nothing itself."""
        link = join(self.socket, "pair", Clock(), time.monotonic() + 5)
        assert isinstance(link, PoolSession)
        self.other = link
        return lambda: "joined"

    def look(self) -> dict[str, object]:
        """One call, and how long it took."""
        started = time.monotonic()
        outcome = self.client.lookup(self.shared_chain, TIMEOUT_S)
        return {"took_s": time.monotonic() - started, "pool": isinstance(outcome, Known)}

    def _scribble(self, views: list[memoryview | None]) -> None:
        while not self.stop.wait(0.001):
            for view in views:
                assert view is not None
                view[:] = b"\xa5" * LENGTH
        for view in views:
            assert view is not None
            view.release()

    def _commit(self) -> str:
        self.stop.set()
        if self.scribbler is not None:
            self.scribbler.join(5)
        self.link.post(Commit(self.link.generation, self.offsets))
        return type(self.link.take(time.monotonic() + TIMEOUT_S)).__name__

    def _promised(self) -> str:
        answer = self.link.take(time.monotonic() + TIMEOUT_S)
        return "promised" if isinstance(answer, Promise) else "nothing"

    def _leave(self, loaded: object) -> str:
        assert isinstance(loaded, Loaded)
        is_exact = poolside.exact(loaded, self.shared)
        self._block.__exit__(None, None, None)
        return "exact" if is_exact else "WRONG BYTES"


def main() -> None:
    state, socket = sys.argv[1:]
    member = Member(socket)
    finish: Callable[[], str] = getattr(member, state)()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.monotonic()
        finished = finish()
        report = {"finished": finished, "finish_s": time.monotonic() - started, **member.look()}
        finish = lambda: "before"  # noqa: E731 - it finishes once
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
