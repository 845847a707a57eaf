"""Pages of one rank in the pool: looked up, loaded and stored, each within a deadline.

SGLang calls from three threads, one for each of these. So there are three clients of the pool; a
call uses one of them, and if another call is using it, waits no longer than for the pool. Whatever
goes wrong means fewer pages; nothing is raised except for bugs, which the boundary turns into fewer
pages, too. Until there is a namespace, the pool is not asked at all.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from forebay.engines.scheduling.error_budget import ErrorBudget
from forebay.engines.sglang.pages import copy_record
from forebay.identity.keys import page_keys
from forebay.pool.client import Chain, Client, Loaded
from forebay.settings import Settings
from forebay.sys.clock import Clock
from forebay.tiers.contract import Miss, MissReason

_STORE_S: Final = 2.0  # deadline of one call, however much it stores
# Reasons that say something about the pool, and not just about what was asked for.
_FAILURES: Final = frozenset({MissReason.DEADLINE, MissReason.WRONG_RECORD})
_Answer = TypeVar("_Answer")
PageBuffers = Sequence[Sequence[memoryview]]  # by page, its pieces


class _Seat:
    """One client, used by one call at a time."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self.client = client
        self.timeout_s = timeout_s  # of one call
        self.turn = threading.Lock()


class PageStore:
    """One rank's access to the pool. Any thread may call any method; close it when none does."""

    def __init__(
        self,
        socket_path: str,
        settings: Settings,
        namespace: Callable[[], bytes | None],
        clock: Clock | None = None,
    ) -> None:
        """`namespace` is called in each of our calls, one at a time; None: it is not known yet."""
        self.counts: Counter[str] = Counter()
        self._clock = clock or Clock()
        self._realm = settings.realm
        self._namespace = namespace
        self._lock = threading.Lock()  # guards the namespace, the budget and the counts
        self._budget = ErrorBudget(self.counts)
        lookup_s, load_s = settings.lookup_deadline_ms / 1000, settings.load_deadline_ms / 1000

        def seat(timeout_s: float) -> _Seat:
            client = Client(socket_path, self._clock, pool_uids=settings.allow_uid)
            return _Seat(client, timeout_s)

        self._lookups, self._loads, self._stores = seat(lookup_s), seat(load_s), seat(_STORE_S)

    def exists(self, pages: Sequence[bytes], prefix: Sequence[bytes] = ()) -> int:
        """How many of these pages, counted from the first, the pool has after that prefix."""

        def look_up(client: Client, namespace: bytes, until: float) -> int:
            chain = self._chain(namespace, [*prefix, *pages])
            known = client.lookup(chain, until - self._clock.monotonic())
            self._judge(known, until)
            return 0 if isinstance(known, Miss) else max(0, known.chunks - len(prefix))

        found = self._ask(self._lookups, 0, look_up)
        self._count("found", found, len(pages))
        return found

    def load(self, pages: Sequence[bytes], buffers: PageBuffers) -> int:
        """How many of these pages, counted from the first, were loaded and verified.

        Buffers of the other pages may hold anything.
        """
        assert len(pages) == len(buffers)

        def load(client: Client, namespace: bytes, until: float) -> int:
            chain, done = self._chain(namespace, pages), 0
            while done < len(pages) and (left_s := until - self._clock.monotonic()) > 0:
                with client.load(chain, done, left_s) as loaded:
                    self._judge(loaded, until)
                    if isinstance(loaded, Miss):
                        break
                    copied = self._copy(loaded, buffers[done:], until)
                done += copied
                if copied < max(1, len(loaded.chunks)):
                    break
            return done

        done = self._ask(self._loads, 0, load)
        self._count("loaded", done, len(pages))
        return done

    def store(
        self, pages: Sequence[bytes], buffers: PageBuffers, prefix: Sequence[bytes] = ()
    ) -> bool:
        """Whether the pool now has all of these pages, after that prefix."""
        assert len(pages) == len(buffers)
        parent = prefix[-1:]

        def store(client: Client, namespace: bytes, until: float) -> bool:
            chain = self._chain(namespace, [*parent, *pages])
            left_s = until - self._clock.monotonic()
            receipt = client.store(chain, buffers, len(parent), left_s)
            is_useless = not (receipt.stored or receipt.had or receipt.unwanted)
            self._judge(Miss(MissReason.NO_POOL) if is_useless else receipt, until)
            self._count("stored", receipt.stored, receipt.stored)
            self._count("refused", receipt.unwanted, receipt.unwanted)
            self._count("lost", receipt.lost + receipt.late, receipt.lost + receipt.late)
            return receipt.stored + receipt.had == len(pages)

        return self._ask(self._stores, False, store)

    def failed(self) -> None:
        """A call behind the boundary has failed: count it against the pool's error budget."""
        with self._lock:
            self._budget.failed(self._clock.monotonic())

    def close(self) -> None:
        """Leave the pool."""
        for seat in (self._lookups, self._loads, self._stores):
            seat.client.close()

    def _chain(self, namespace: bytes, pages: Sequence[bytes]) -> Chain:
        return Chain(namespace, page_keys(namespace, self._realm, pages))

    def _ask(
        self, seat: _Seat, nothing: _Answer, work: Callable[[Client, bytes, float], _Answer]
    ) -> _Answer:
        """The work's answer if it came in time; `nothing` while the pool may not be asked."""
        now = self._clock.monotonic()
        until = now + seat.timeout_s
        with self._lock:
            namespace = self._namespace()
            if namespace is None or not self._budget.allows(now):
                return nothing
        if not seat.turn.acquire(timeout=seat.timeout_s):
            return nothing
        try:
            return work(seat.client, namespace, until)
        finally:
            seat.turn.release()

    def _copy(self, loaded: Loaded, buffers: PageBuffers, until: float) -> int:
        """Copy loaded records until one does not fit or the time is over; how many were copied."""
        for number, (record, pieces) in enumerate(zip(loaded.chunks, buffers, strict=False)):
            if self._clock.monotonic() > until or not copy_record(record, pieces):
                return number
        return min(len(loaded.chunks), len(buffers))

    def _judge(self, answer: object, until: float) -> None:
        """Count an answer as success or failure of the pool; one that used up its time failed."""
        now = self._clock.monotonic()
        with self._lock:
            if not isinstance(answer, Miss):
                self._budget.succeeded()
            elif answer.reason in _FAILURES or now >= until:
                self._budget.failed(now)
            else:
                self._budget.found_nothing()

    def _count(self, name: str, pages: int, asked: int) -> None:
        with self._lock:
            self.counts[name] += pages
            if pages < asked:
                self.counts[f"not {name}"] += asked - pages
