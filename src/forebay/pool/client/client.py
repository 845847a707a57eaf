"""A synchronous client: every call has a deadline, returns a value and never raises.

If the pool is gone, a call is a miss at once; each call checks whether it is back, and joins it
again. A client belongs to one thread. After a fork, the child's copy joins for itself.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from forebay.pool import messages
from forebay.pool.client.calls import Calls
from forebay.pool.client.chain import Chain
from forebay.pool.client.outcomes import AdminOutcome, Known, Loaded, Receipt
from forebay.pool.client.session import PoolSession
from forebay.pool.client.slab import views_of
from forebay.pool.client.storing import Payload, StoreCall
from forebay.pool.client.streaming import StreamCall
from forebay.pool.messages import (
    NAMESPACE_RULE,
    REQUEST_LETTERS_MAX,
    AdminMessage,
    Ask,
    Cancel,
    Clear,
    ClientMessage,
    Forget,
    PoolMessage,
    Promise,
    Release,
    RequestsQuery,
    RequestsReply,
    Resize,
    Rotate,
    SetTenants,
    StatsQuery,
    StatsReply,
    is_namespace,
    row_of,
)
from forebay.sys.clock import Clock
from forebay.tenants import TenantSetting
from forebay.tiers.contract import Miss, MissReason

TIMEOUT_S: Final = 2.0
_JOIN_S_MAX: Final = 1.0  # how long a load or a store waits for a pool's welcome
_ASK_SHARE: Final = 0.9  # share of the time left, so that the pool's answer arrives in time

_Answer = TypeVar("_Answer", bound=PoolMessage)


class Client:
    """A pool's client."""

    def __init__(
        self,
        socket: str,
        clock: Clock | None = None,
        *,
        pool_uids: Collection[int] = (),
        is_operator: bool = False,
    ) -> None:
        """Joins nothing yet; `socket` is a path (`forebay.pool.service.socket_path`).

        `pool_uids` are users, besides this one and root, whose pool is trusted. An operator only
        looks, clears and resizes: it neither loads nor stores, and maps no memory.
        """
        self._clock = clock or Clock()
        self._session = PoolSession(socket, self._clock, pool_uids=pool_uids)
        self._session.is_operator = is_operator
        self._calls = Calls(self._session, self._clock)
        self._process = os.getpid()

    @property
    def why(self) -> str:
        """Why there is no pool, in one sentence."""
        return self._session.why

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def join(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether there is a pool, waiting for its welcome up to `timeout_s`; else see `why`.

        Other calls join by themselves; a load or a store waits for a second at most.
        """
        return self._joins(self._clock.monotonic() + timeout_s, timeout_s)

    @property
    def generation(self) -> int | None:
        """The generation of the mapped slab; None while there is no pool."""
        return self._session.generation or None

    def lookup(self, chain: Chain, timeout_s: float = TIMEOUT_S) -> Known | Miss:
        """How much of a chain the pool has; pins nothing."""
        until = self._clock.monotonic() + timeout_s
        if not self._joins(until):
            return Miss(MissReason.NO_POOL)
        found = self._calls.look_up(chain, until)
        if isinstance(found, Miss):
            return found
        self._session.post(Cancel(found.request))
        return Known(found.known, found.ready)

    @contextlib.contextmanager
    def load(
        self, chain: Chain, first: int = 0, timeout_s: float = TIMEOUT_S
    ) -> Iterator[Loaded | Miss]:
        """Yields chunks of a chain from `first` on, as many as the pool promises at once, verified.

        They lie in the pool's memory, read-only, and are pinned until the `with` block ends. Then
        the views are released; nothing sliced from them may be used any more.
        """
        promise = self._promised(chain, first, self._clock.monotonic() + timeout_s)
        if isinstance(promise, Miss):
            yield promise
            return
        request, loaded = promise
        try:
            yield loaded
        finally:
            for view in loaded.chunks:
                view.release()
            self._session.post(Release(request, []))

    def stream(
        self, chain: Chain, first: int = 0, timeout_s: float = TIMEOUT_S
    ) -> Iterator[tuple[int, memoryview]]:
        """Yields chunks from `first` on with their positions, even more than DRAM can hold.

        Each is verified, read-only, and valid until the next one is asked for. Ends before the
        first chunk that fails; no step takes longer than `timeout_s`.
        """
        if self._joins(self._clock.monotonic() + timeout_s):
            yield from StreamCall(self._calls, chain, timeout_s).run(first)

    def store(
        self,
        chain: Chain,
        payloads: Sequence[Payload],
        first: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> Receipt:
        """Store the payloads of chunks first, first + 1, …; retries those that find no slot.

        A payload may be several buffers, which are stored one after the other.
        """
        assert first + len(payloads) <= len(chain.keys)
        until = self._clock.monotonic() + timeout_s
        if not payloads:
            return Receipt()
        if not self._joins(until):
            return Receipt(lost=len(payloads))
        return StoreCall(self._calls, chain, payloads, first).run(until)

    def stats(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | Miss:
        """The pool's numbers, as `forebay stats --json` prints them."""
        reply = self._ask_pool(StatsQuery(), StatsReply, timeout_s)
        return reply if isinstance(reply, Miss) else _object(reply.json)

    def requests(
        self, request: str = "", last: int = 1, after: int = 0, timeout_s: float = TIMEOUT_S
    ) -> dict[str, object] | Miss:
        """The last requests of engines, as `forebay why --json` prints them."""
        query = RequestsQuery(request[:REQUEST_LETTERS_MAX], last, after)
        reply = self._ask_pool(query, RequestsReply, timeout_s)
        return reply if isinstance(reply, Miss) else _object(reply.json)

    def resize(
        self,
        dram_bytes: int | None,
        disk: Sequence[tuple[str, int]] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> AdminOutcome | Miss:
        """Change a running pool's caps."""
        wish = Resize(-1 if dram_bytes is None else dram_bytes, list(disk))
        return self._operate(wish, timeout_s)

    def clear(
        self, namespace: str | None, timeout_s: float = TIMEOUT_S, *, scrub: bool = False
    ) -> AdminOutcome | Miss:
        """Delete a namespace, named by its first 8 to 64 hex digits, or everything (None)."""
        if namespace is not None and not is_namespace(namespace):
            return AdminOutcome(ok=False, sentence=NAMESPACE_RULE)
        return self._operate(Clear(namespace, scrub), timeout_s)

    def set_tenants(
        self, tenants: Sequence[TenantSetting], timeout_s: float = TIMEOUT_S
    ) -> AdminOutcome | Miss:
        """Give a running pool other tenants."""
        return self._operate(SetTenants([row_of(each) for each in tenants]), timeout_s)

    def forget(
        self, tenant: str, timeout_s: float = TIMEOUT_S, *, scrub: bool = False
    ) -> AdminOutcome | Miss:
        """Delete everything of a tenant, in every tier; answers when it is gone."""
        return self._operate(Forget(tenant, scrub), timeout_s)

    def rotate(self, timeout_s: float = TIMEOUT_S) -> AdminOutcome | Miss:
        """Have the pool read its keys again, and encrypt new records under new ones."""
        return self._operate(Rotate(), timeout_s)

    def close(self) -> None:
        """Leave the pool. What is still being read stays mapped until its views are released.

        The pool keeps it in place until this process ends.
        """
        self._session.close()

    def _operate(self, wish: AdminMessage, timeout_s: float) -> AdminOutcome | Miss:
        done = self._ask_pool(wish, messages.AdminReply, timeout_s)
        return done if isinstance(done, Miss) else AdminOutcome(done.ok, done.sentence)

    def _ask_pool(
        self, message: ClientMessage, kind: type[_Answer], timeout_s: float
    ) -> _Answer | Miss:
        until = self._clock.monotonic() + timeout_s
        if not self._joins(until, timeout_s):
            return Miss(MissReason.NO_POOL)
        return self._calls.call(message, kind, until)

    def _promised(self, chain: Chain, first: int, until: float) -> tuple[int, Loaded] | Miss:
        if not self._joins(until):
            return Miss(MissReason.NO_POOL)
        found = self._calls.look_up(chain, until)
        if isinstance(found, Miss):
            return found
        request = found.request
        promise: Promise | Miss = Miss(MissReason.ABSENT)
        if found.known > first:
            left_ms = max(0.0, until - self._clock.monotonic()) * 1000
            ask = Ask(request, first, found.known - first, int(left_ms * _ASK_SHARE), stream=False)
            self._session.post(ask)
            promise = self._calls.wait(Promise, lambda promise: promise.request == request, until)
        loaded = promise if isinstance(promise, Miss) else self._loaded(chain, promise)
        if isinstance(loaded, Miss):
            self._session.post(Cancel(request))
            return loaded
        return request, loaded

    def _loaded(self, chain: Chain, promise: Promise) -> Loaded | Miss:
        """The views of a promise; a miss if it is not for exactly these chunks of this slab."""
        if not promise.total:
            return Miss(MissReason.DEADLINE)
        slab = self._session.slab
        assert slab is not None
        views = views_of(slab, promise, chain.keys, self._session.generation)
        if views is None or len(views) != promise.total:
            return Miss(MissReason.WRONG_RECORD)
        return Loaded(promise.first, tuple(views))

    def _joins(self, until: float, wait_s: float = _JOIN_S_MAX) -> bool:
        """Whether there is a pool; a lost one is joined again, within `wait_s`."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._session.disown()
        if self._session.connection is not None:
            self._session.connection.pump()  # notices if the pool is gone
        limit = min(until, self._clock.monotonic() + wait_s)
        if not self._session.wait_until_joined(limit):
            return False
        self._calls.begin()
        return True


def _object(text: bytes) -> dict[str, object] | Miss:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return Miss(MissReason.CORRUPT)
    return found if isinstance(found, dict) else Miss(MissReason.CORRUPT)
