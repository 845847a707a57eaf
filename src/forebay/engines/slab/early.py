"""A slab that is mapped and registered before the first step names one.

ARCHITECTURE.md, "A slab before the first request", has the contract. A thread finds the pool, maps
its slab and attaches it to the worker's copies; the model's thread ends the attempt with `take`,
and gets the mapping if it is the one that it needs. A failed attempt leaves nothing behind: then
the first step maps the slab itself.
"""

import threading
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from forebay.engines.boundary import Boundary
from forebay.engines.copies.contract import Copies, WorkerSlab
from forebay.errors import StartupError
from forebay.pool.client.session import REFUSED, UNTRUSTED, PoolSession, join
from forebay.pool.client.slab import MappedSlab
from forebay.sys.clock import Clock

_JOIN_S: Final = 1.0
_RETRY_S: Final = 0.25  # between attempts to join
_SEARCH_S: Final = 300.0  # how long to look for a pool that is started at the same time
_END_S: Final = 2.0  # how long to wait for the thread when the engine ends

StartPool = Callable[[], object]  # waits until a pool answers; StartupError if none can be had
View = Callable[[MappedSlab, int], WorkerSlab]  # a worker's view of a mapping of this generation


class PoolPlace(NamedTuple):
    """Where an engine's pool is, and how it is started."""

    socket_path: str
    uids: Collection[int] = ()  # users, besides this one and root, whose pool is trusted
    start: StartPool | None = None  # None: an engine does not start one


class EarlySlab:
    """One attempt. Everything but `_run` is called by the thread that drives the model."""

    def __init__(
        self, place: PoolPlace, copies: Copies, view: View, slot_bytes: int, clock: Clock
    ) -> None:
        """`slot_bytes` is the size of slots in the view."""
        self._place, self._copies, self._clock = place, copies, clock
        self._view, self._slot_bytes = view, slot_bytes
        self._lock = threading.Lock()  # guards what follows
        self._mapped: MappedSlab | None = None  # attached to the copies
        self._generation = 0  # generation of that slab
        self._is_taken = False
        self._over = threading.Event()  # nothing more may be attached
        self._thread = threading.Thread(target=self._run, name="forebay-early-slab", daemon=True)
        self._thread.start()

    def take(self, generation: int, slot_bytes: int) -> MappedSlab | None:
        """End the attempt; its mapping, once, if it is of this slab and has these slots.

        The mapping stays attached to the copies. Whoever gets None detaches it and closes this
        before mapping another slab.
        """
        with self._lock:
            self._over.set()
            is_same = self._generation == generation and self._slot_bytes == slot_bytes
            if self._is_taken or not is_same:
                return None
            self._is_taken = True
            return self._mapped

    def end(self) -> None:
        """End the attempt, and wait for its thread for a moment at most."""
        with self._lock:
            self._over.set()
        self._thread.join(_END_S)

    def close(self) -> bool:
        """Unmap the slab, which must be detached; False if it is still being read: try again."""
        if self._mapped is not None and not self._mapped.close():
            return False
        self._mapped, self._generation = None, 0
        return True

    def _run(self) -> None:
        Boundary().call(lambda: None, self._attach)

    def _attach(self) -> None:
        session = self._join()
        if session is None:
            return
        generation = session.generation
        mapped = session.leave_slab()
        assert mapped is not None
        with self._lock:
            if not self._over.is_set():
                self._copies.attach(self._view(mapped, generation))
                self._mapped, self._generation = mapped, generation
                return
        mapped.close()

    def _join(self) -> PoolSession | None:
        """A session under a new name, with the slab; None if there is none in time."""
        start, until = self._place.start, self._clock.monotonic() + _SEARCH_S
        path, uids = self._place.socket_path, self._place.uids
        while not self._over.is_set() and (now := self._clock.monotonic()) < until:
            session = join(path, "", self._clock, now + _JOIN_S, uids)
            if isinstance(session, PoolSession):
                return session
            if session.startswith((REFUSED, UNTRUSTED)):
                return None
            if start is None:
                self._over.wait(_RETRY_S)
                continue
            try:
                start()
            except StartupError:
                return None  # the scheduler's side meets the same error, and logs it
            start = None
        return None
