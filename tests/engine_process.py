"""An engine in a process of its own: joins a pool, enters a state, and can be killed there.

Run as `python -m tests.engine_process STATE SOCKET`, where STATE is a public method of `Engine`. It
prints `ready` once it is in that state. For every line on its input it finishes what it had begun,
looks whether there is a pool, and prints a report in JSON.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from tests import pool_process
from tests.clocks import SLOWER
from tests.pool_process import PatientClient

from forebay.pool.client import Known, Loaded
from forebay.pool.client.session import PoolSession, join
from forebay.pool.client.slab import MappedSlab
from forebay.pool.messages import Ask, Commit, Found, Lookup, Promise, Reserve, Reserved
from forebay.record.header import payload_hash

CHUNKS: Final = 4
LENGTH: Final = 100_000
LONG_S: Final = 60.0
TIMEOUT_S: Final = 2.0  # on the client's clock, which is slow


class Engine:
    """One client of the pool and what it holds."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.client = PatientClient(socket)
        self.clock = self.client._clock
        assert self.client.join()
        self.mine, self.my_chain = pool_process.made(f"own {time.monotonic_ns()}", CHUNKS, LENGTH)
        self.shared, self.shared_chain = pool_process.made("shared", CHUNKS, LENGTH)
        self.offsets: list[int] = []
        self.stop = threading.Event()
        self.writer: threading.Thread | None = None

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
        answer = self.link.take(self.clock.monotonic() + TIMEOUT_S)
        assert isinstance(answer, Reserved)
        assert all(offset >= 0 for offset in answer.answers)
        self.offsets = answer.answers
        return self._commit

    def copying(self) -> Callable[[], str]:
        """It writes into its slots without end."""
        self.reserved()
        views = [self.slab.view(offset, LENGTH) for offset in self.offsets]
        self.writer = threading.Thread(target=self._overwrite, args=(views,), daemon=True)
        self.writer.start()
        return self._commit

    def writing_detached(self) -> Callable[[], str]:
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
        self._block = self.client.load(self.shared_chain)
        loaded = self._block.__enter__()
        assert pool_process.exact(loaded, self.shared), loaded
        return lambda: self._leave(loaded)

    def reading_detached(self) -> Callable[[], str]:
        """It reads from the slab after its connection is gone."""
        finish = self.leased()
        assert self.link.connection is not None
        self.link.connection.close()
        return finish

    def waiting(self) -> Callable[[], str]:
        """It has asked for chunks that take long to read."""
        line, chain = self.link, self.shared_chain
        line.post(Lookup(1, chain.namespace, 0, chain.shorts()))
        assert isinstance(line.take(self.clock.monotonic() + TIMEOUT_S), Found)
        line.post(Ask(1, 0, CHUNKS, int(LONG_S * 1000), stream=False))
        assert line.take(self.clock.monotonic() + 0.1 / SLOWER) is None
        return self._promised

    def paired(self) -> Callable[[], str]:
        """It is one of two processes of an engine that has slots; the other one said `pair`."""
        link = join(self.socket, "pair", self.clock, self.clock.monotonic() + TIMEOUT_S)
        assert isinstance(link, PoolSession)
        self.client.close()
        self.client._session = self.client._calls.session = link
        return self.reserved()

    def joined(self) -> Callable[[], str]:
        """It is the other one, and holds nothing itself."""
        link = join(self.socket, "pair", self.clock, self.clock.monotonic() + TIMEOUT_S)
        assert isinstance(link, PoolSession)
        self.other = link
        return lambda: "joined"

    def look(self) -> dict[str, object]:
        """One call: known, or why not."""
        outcome = self.client.lookup(self.shared_chain, TIMEOUT_S)
        return {"lookup": "known" if isinstance(outcome, Known) else str(outcome.reason)}

    def _overwrite(self, views: list[memoryview | None]) -> None:
        while not self.stop.wait(0.001):
            for view in views:
                assert view is not None
                view[:] = b"\xa5" * LENGTH
        for view in views:
            assert view is not None
            view.release()

    def _commit(self) -> str:
        self.stop.set()
        if self.writer is not None:
            self.writer.join(pool_process.HANG_S)
        views = [self.slab.view(offset, LENGTH) for offset in self.offsets]
        digests = b"".join(payload_hash(view) for view in views if view is not None)
        self.link.post(Commit(self.link.generation, self.offsets, digests))
        return type(self.link.take(self.clock.monotonic() + TIMEOUT_S)).__name__

    def _promised(self) -> str:
        answer = self.link.take(self.clock.monotonic() + TIMEOUT_S)
        return "promised" if isinstance(answer, Promise) else "nothing"

    def _leave(self, loaded: object) -> str:
        assert isinstance(loaded, Loaded)
        is_exact = pool_process.exact(loaded, self.shared)
        self._block.__exit__(None, None, None)
        return "exact" if is_exact else "WRONG BYTES"


def main() -> None:
    state, socket = sys.argv[1:]
    engine = Engine(socket)
    finish: Callable[[], str] = getattr(engine, state)()
    print("ready", flush=True)
    for _ in sys.stdin:
        report = {"finished": finish(), **engine.look()}
        finish = lambda: "before"  # noqa: E731 - it finishes once
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
