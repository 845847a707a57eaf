"""A synchronous client: every call has a deadline, answers with a value and never raises.

A pool that is gone makes every call a miss at once; each call looks whether it is back, and joins
it anew. A client belongs to one thread. After a fork, the child's copy joins for itself.
"""

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

import msgspec

from forebay.pool import messages
from forebay.pool.client.chain import Chain
from forebay.pool.client.link import Link, join
from forebay.pool.client.outcomes import Done, Known, Loaded, Receipt
from forebay.pool.client.promised import views_of
from forebay.pool.client.storing import Storing
from forebay.pool.client.streaming import Streaming
from forebay.pool.messages import (
    Abort,
    Ask,
    Cancel,
    Clear,
    ClientMessage,
    Found,
    Lookup,
    PoolMessage,
    Promise,
    Release,
    Reserved,
    Resize,
    Settled,
    StatsQuery,
    StatsReply,
)
from forebay.sys.clock import Clock
from forebay.tiers.contract import Miss, MissReason

TIMEOUT_S: Final = 2.0
_JOIN_S_MAX: Final = 1.0  # a pool that takes longer to welcome us is not waited for
_PAUSE_S: Final = 0.5  # and is left alone for so long
_ASK_SHARE: Final = 0.9  # of the time left, so that the pool's answer is here before it is over

_Answer = TypeVar("_Answer", bound=PoolMessage)


class Looked(NamedTuple):
    """A request that the pool knows."""

    link: Link
    request: int
    known: int
    ready: int


class Client:
    """One member of a pool."""

    def __init__(self, socket: str, clock: Clock | None = None) -> None:
        """Nothing is joined yet; `socket` is a path, as `forebay.pool.life.socket_path` has it."""
        self.why = ""  # there is no pool, in one sentence, where that is so
        self._socket = socket
        self._clock = clock or Clock()
        self._link: Link | None = None
        self._old: Link | None = None  # lost, and somebody still reads from its slab
        self._former = ""  # our name when we were lost, until the pool hears that nobody reads
        self._join_again = 0.0
        self._process = os.getpid()
        self._number = 0  # of the last request or batch; never used twice
        self._abandoned: set[int] = set()  # batches whose answer came too late
        self._posted: Counter[type] = Counter()  # messages, by the kind of their answer
        self._answered: Counter[type] = Counter()

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
        """Whether there is a pool; `why` says why not. Other calls do this by themselves."""
        return self._joined(self._clock.monotonic() + timeout_s) is not None

    @property
    def generation(self) -> int | None:
        """Of the slab that is mapped now; None while there is no pool."""
        return self._link.generation if self._link is not None else None

    def lookup(self, chain: Chain, timeout_s: float = TIMEOUT_S) -> Known | Miss:
        """How much of a chain the pool has; pins nothing."""
        until = self._clock.monotonic() + timeout_s
        found = self.look(chain, until)
        if isinstance(found, Miss):
            return found
        found.link.line.post(Cancel(found.request))
        return Known(found.known, found.ready)

    @contextlib.contextmanager
    def load(
        self, chain: Chain, first: int = 0, timeout_s: float = TIMEOUT_S
    ) -> Iterator[Loaded | Miss]:
        """Chunks of a chain from `first` on, as many as the pool promises at once, verified.

        They lie in the pool's memory, read-only, and are pinned until the block ends; then the
        views are released, and nothing that was cut from them may be used any more.
        """
        promise = self._promised(chain, first, self._clock.monotonic() + timeout_s)
        if isinstance(promise, Miss):
            yield promise
            return
        link, request, loaded = promise
        try:
            yield loaded
        finally:
            for view in loaded.chunks:
                view.release()
            link.line.post(Release(request, []))

    def stream(
        self, chain: Chain, first: int = 0, timeout_s: float = TIMEOUT_S
    ) -> Iterator[tuple[int, memoryview]]:
        """Chunks from `first` on with their positions, also more than the pool's memory holds.

        Each is verified, read-only, and valid until the next one is asked for. Ends before the
        first chunk that cannot be had; no step takes longer than `timeout_s`.
        """
        streaming = Streaming(self, self._clock, chain, timeout_s)
        return streaming.run(first)

    def store(
        self,
        chain: Chain,
        payloads: Sequence[bytes | memoryview],
        first: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> Receipt:
        """Store the payloads of chunks first, first + 1, …; what finds no slot is tried again."""
        assert first + len(payloads) <= len(chain.keys)
        until = self._clock.monotonic() + timeout_s
        if not payloads:
            return Receipt()
        link = self._joined(until)
        if link is None:
            return Receipt(lost=len(payloads))
        return Storing(self, self._clock, link, chain, payloads, first).run(until)

    def stats(self, timeout_s: float = TIMEOUT_S) -> dict[str, object] | Miss:
        """The pool's numbers, as `forebay stats --json` prints them."""
        reply = self._ask_pool(StatsQuery(), StatsReply, timeout_s)
        if isinstance(reply, Miss):
            return reply
        try:
            return msgspec.json.decode(reply.json, type=dict[str, object])
        except msgspec.MsgspecError:
            return Miss(MissReason.CORRUPT)

    def resize(
        self,
        dram_bytes: int | None,
        disk: Sequence[tuple[str, int]] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> Done | Miss:
        """Change a running pool's caps."""
        wish = Resize(-1 if dram_bytes is None else dram_bytes, list(disk))
        return self._operate(wish, timeout_s)

    def clear(self, namespace: str, timeout_s: float = TIMEOUT_S) -> Done | Miss:
        """Delete a namespace (the first hex digits of it), or everything: ''."""
        return self._operate(Clear(namespace), timeout_s)

    def close(self) -> None:
        """Leave the pool; what is still being read stays mapped until it is let go of.

        The pool keeps it where it is until this process ends.
        """
        for link in (self._link, self._old):
            if link is not None:
                link.close()
        self._link = self._old = None

    def call(
        self, link: Link, message: ClientMessage, kind: type[_Answer], until: float
    ) -> _Answer | Miss:
        """Say something whose answers come in order, one a message, and wait for this one's."""
        self._posted[kind] += 1
        number = self._posted[kind]
        link.line.post(message)
        return self.wait(link, kind, lambda _: self._answered[kind] == number, until)

    def wait(
        self, link: Link, kind: type[_Answer], wanted: Callable[[_Answer], bool], until: float
    ) -> _Answer | Miss:
        """The answer that is wanted; older ones that come before it are put away."""
        while (message := link.line.take(until)) is not None:
            self._answered[type(message)] += 1
            if isinstance(message, kind) and wanted(message):
                return message
            self._put_away(link, message)
        return Miss(MissReason.NO_POOL if link.line.is_over else MissReason.DEADLINE)

    def number(self) -> int:
        """One that no request or batch of this client has had."""
        self._number += 1
        return self._number

    def abandon(self, batch: int) -> None:
        """Nobody waits for this batch's answer any more; slots that it brings go back at once."""
        self._abandoned.add(batch)

    def _operate(self, wish: Resize | Clear, timeout_s: float) -> Done | Miss:
        done = self._ask_pool(wish, messages.AdminReply, timeout_s)
        return done if isinstance(done, Miss) else Done(done.ok, done.sentence)

    def _ask_pool(
        self, message: ClientMessage, kind: type[_Answer], timeout_s: float
    ) -> _Answer | Miss:
        until = self._clock.monotonic() + timeout_s
        link = self._joined(until)
        if link is None:
            return Miss(MissReason.NO_POOL)
        return self.call(link, message, kind, until)

    def _put_away(self, link: Link, message: PoolMessage) -> None:
        """A late answer: nobody wants it, but it may have brought slots."""
        if isinstance(message, Reserved) and message.batch in self._abandoned:
            self._abandoned.discard(message.batch)
            offsets = [answer for answer in message.answers if answer >= 0]
            if offsets:
                link.line.post(Abort(message.generation, offsets))

    def look(self, chain: Chain, until: float) -> Looked | Miss:
        """A request that was looked up; the caller asks for it, or cancels it."""
        link = self._joined(until)
        if link is None:
            return Miss(MissReason.NO_POOL)
        request = self.number()
        link.line.post(Lookup(request, chain.namespace, chain.group, chain.shorts()))
        found = self.wait(link, Found, lambda found: found.request == request, until)
        if isinstance(found, Miss):
            link.line.post(Cancel(request))
            return found
        return Looked(link, request, found.known, found.ready)

    def _promised(self, chain: Chain, first: int, until: float) -> tuple[Link, int, Loaded] | Miss:
        found = self.look(chain, until)
        if isinstance(found, Miss):
            return found
        link, request = found.link, found.request
        promise: Promise | Miss = Miss(MissReason.ABSENT)
        if found.known > first:
            left_ms = max(0.0, until - self._clock.monotonic()) * 1000
            count = found.known - first
            link.line.post(Ask(request, first, count, int(left_ms * _ASK_SHARE), stream=False))
            promise = self.wait(link, Promise, lambda promise: promise.request == request, until)
        loaded = promise if isinstance(promise, Miss) else _loaded(link, chain, promise)
        if isinstance(loaded, Miss):
            link.line.post(Cancel(request))
            return loaded
        return link, request, loaded

    def _joined(self, until: float) -> Link | None:
        """The link, joined anew if it was lost; None if there is no pool."""
        if self._process != os.getpid():
            self._leave_to_parent()
        if self._link is not None:
            self._link.line.pump()
            if not self._link.line.is_over:
                return self._link
            self._old, self._link = self._link, None
            self.why = "the pool went away."
        now = self._clock.monotonic()
        if now < self._join_again:
            return None
        if self._old is not None:
            if not self._old.close():
                self.why = "what was loaded from a pool that went away is still being read."
                return None
            if self._number:  # else nothing can have been promised to it
                self._former = self._old.engine
            self._old = None
        return self._join(now, until)

    def _join(self, now: float, until: float) -> Link | None:
        self._abandoned.clear()
        self._posted.clear()
        self._answered.clear()
        # A new name at every join: what was lent to the old one is given back by its own rules.
        joined = join(
            self._socket, secrets.token_hex(8), self._clock, min(until, now + _JOIN_S_MAX)
        )
        if isinstance(joined, str):
            self.why = joined
            after = self._clock.monotonic()
            if after - now > _JOIN_S_MAX / 2:  # it is there and does not answer
                self._join_again = after + _PAUSE_S
            return None
        self.why = ""
        self._link = joined
        if self._former:
            joined.line.post(Settled(self._former))
            self._former = ""
        return joined

    def _leave_to_parent(self) -> None:
        """After a fork the connection and its leases are the parent's: close our copies only."""
        self._process, self._former = os.getpid(), ""
        self.close()


def _loaded(link: Link, chain: Chain, promise: Promise) -> Loaded | Miss:
    """The views that a promise means, if it is one for exactly these chunks of this slab."""
    if not promise.total:
        return Miss(MissReason.DEADLINE)
    views = views_of(link, chain, promise)
    if views is None or len(views) != promise.total:
        return Miss(MissReason.WRONG_RECORD)
    return Loaded(promise.first, tuple(views))
