"""What keeps a remote tier in step with its store and with other hosts, one call at a time.

A store that is left alone is probed, by a child that is started for it; at the first success other
hosts' index is read and this host's own packs are found. From then on: publish what changed, look
at what others published, and now and then delete what dead hosts left.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from forebay.sys.memory import allocate
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import Publication
from forebay.tiers.remote.index.table import RecordTable
from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.process.chores import FoundPack
from forebay.tiers.remote.process.link import AnswerDone, Results
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest
from forebay.tiers.remote.store import StoreFailure

_LIFE_SIGNS: Final = 8  # in the time after which a host is taken for dead
_log: Final = logging.getLogger(__name__)


class Upkeep:
    """The chores of one store."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self.begun = threading.Event()  # the store has answered for the first time, or has not
        self._is_recovered = False
        self._is_busy = False
        self._version = -1  # of the snapshots that are known
        self._publish_at = self._refresh_at = self._sweep_at = 0.0
        self._sign_at = 0.0  # when there must be a sign of life, changed or not

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that a later process would miss."""
        is_told = not self._parts.own.is_changed or not self._parts.breaker.is_on
        return is_told and not self._is_busy

    def step(self, now: float, *, is_closing: bool) -> None:
        """Begin what is due."""
        parts, options = self._parts, self._parts.options
        if self._is_busy:
            return
        if not parts.breaker.is_on:
            if not is_closing and parts.breaker.probe_due(now):
                self._probe()
            return
        is_due = is_closing or now >= self._publish_at
        if (parts.own.is_changed and is_due) or (now >= self._sign_at and not is_closing):
            self._publish_at = now + options.publish_s
            self._sign_at = now + options.host_age_s / _LIFE_SIGNS
            self._publish()
        elif is_closing:
            return
        elif now >= self._refresh_at:
            self._refresh_at = now + options.refresh_s
            self._call(StoreRequest(0, Action.REFRESH, at=self._version), self._learn)
        elif now >= self._sweep_at:
            self._sweep_at = now + options.sweep_s
            self._call(StoreRequest(0, Action.SWEEP, at=int(options.host_age_s)), self._swept)

    def child_ended(self) -> None:
        """Whatever was under way has been answered."""
        self._version = -1
        self.begun.set()

    def _call(
        self,
        request: StoreRequest,
        done: AnswerDone,
        failed: Callable[[StoreFailure], None] | None = None,
    ) -> None:
        """Ask the child; a failure counts, unless something else is to be done about it."""
        self._is_busy = True
        until = self._parts.clock.monotonic() + self._parts.options.chore_s

        def ended(answer: Answer, results: Results) -> None:
            self._is_busy = False
            if answer.failure is None:
                done(answer, results)
            elif failed is None:
                self._parts.failed()
            else:
                failed(answer.failure)

        self._parts.link.call(request, until, ended)

    def _probe(self) -> None:
        link = self._parts.link
        if not link.is_running and not link.start():
            self._parts.trip("cannot be asked")
            self.begun.set()
            return
        self._call(StoreRequest(0, Action.PROBE), self._probed, self._not_yet)

    def _probed(self, _answer: Answer, _results: Results) -> None:
        if self._is_recovered:
            self._use()
            return
        request = StoreRequest(0, Action.REFRESH, at=self._version)
        self._call(request, self._first_refreshed, self._not_yet)

    def _not_yet(self, failure: StoreFailure) -> None:
        if not self.begun.is_set():
            path = self._parts.path
            _log.warning("%s cannot be used (%s); it is tried again and again", path, failure.value)
        self._parts.trip("does not answer")
        self.begun.set()

    def _first_refreshed(self, answer: Answer, results: Results) -> None:
        self._learn(answer, results)
        self._call(StoreRequest(0, Action.RECOVER), self._recovered, self._not_yet)

    def _recovered(self, _answer: Answer, results: Results) -> None:
        found = msgspec.msgpack.decode(results[0], type=list[FoundPack])
        orphans = self._parts.own.restore(found, self._parts.others)
        self._parts.own.erase_forgotten(self._parts.forgotten)
        if orphans:
            _log.info("%d remote records have lost their prefix and are forgotten", orphans)
        self._is_recovered = True
        self._use()

    def _use(self) -> None:
        self._parts.breaker.answered()
        if self.begun.is_set():
            _log.warning("%s answers and is used", self._parts.path)
        self.begun.set()

    def _learn(self, answer: Answer, results: Results) -> None:
        tables = [RecordTable(result) for result in results]
        snapshots = tables[1] if len(tables) > 1 else None
        self._parts.others.learn(tables[0], snapshots, self._parts.clock.monotonic())
        self._version = answer.count

    def _swept(self, answer: Answer, _results: Results) -> None:
        if answer.count:
            _log.info("%d objects of hosts that are gone were deleted", answer.count)

    def _publish(self) -> None:
        own, limit = self._parts.own, self._parts.options.tail_entries_max
        tail = own.tail()
        entries = sum(len(pack.entries) for pack in tail.packs) // published.ENTRY_BYTES
        if max(entries, len(tail.deleted)) <= limit:
            self._put_tail(tail)
            return
        snapshot = own.snapshot()
        data = published.pack(snapshot)

        def snapshot_put() -> None:
            own.snapshot_put(snapshot, len(data))
            self._put_tail(own.tail())

        self._put(published.snapshot_name(self._parts.host), data, snapshot_put)

    def _put_tail(self, tail: Publication) -> None:
        self._put(published.tail_name(self._parts.host), published.pack(tail), lambda: None)

    def _put(self, name: str, data: bytes, done: Callable[[], None]) -> None:
        """Put a part of the index; what fails is published again later."""
        parts = self._parts
        source = allocate(len(data))[: len(data)]
        source[:] = data
        lent = parts.lending.lend(source, filled=True)

        def put(_answer: Answer, _results: Results) -> None:
            parts.lending.give_back(lent)
            done()

        def not_put(failure: StoreFailure) -> None:
            parts.lending.give_back(lent)
            parts.own.is_changed = True
            if failure is not StoreFailure.FULL:  # a full store can be read
                parts.failed()

        self._call(StoreRequest(0, Action.PUT, name, buffers=[lent.buffer]), put, not_put)
