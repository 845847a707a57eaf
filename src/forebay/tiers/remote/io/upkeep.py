"""Keeps a remote tier in step with its store and other hosts, one call at a time.

A store that is left alone is probed by a child started for that; after the first success this
host's own packs are found, and the store is used. From then on: poll what others have published,
publish changes, read own packs that no index lists, and now and then check what is left of this
host's objects, and delete what dead hosts left.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from forebay.record.forgotten import (
    FORGOTTEN_BYTES_MAX,
    FORGOTTEN_MAX,
    pack_forgotten,
    unpack_forgotten,
)
from forebay.sys.memory import allocate
from forebay.tiers.remote.accounting.ledger import SPENT_BYTES
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import Publication
from forebay.tiers.remote.index.used import pack_used, used_name
from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.io.polling import HostPolling
from forebay.tiers.remote.io.recovering import Recovering
from forebay.tiers.remote.jobs import RememberOrder
from forebay.tiers.remote.process.link import AnswerDone, Results
from forebay.tiers.remote.process.maintenance import StoreAudit
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest
from forebay.tiers.remote.store import StoreFailure

_USED_SHARE: Final = 1 / 16  # share of a day's requests for publishing what is used most
_AUDIT_SHARE: Final = 1 / 16  # likewise for audits, and as much again for sweeps
_LONG_PUBLISH_S: Final = 60.0  # between two publications while many packs are to be read
_LIFE_SIGNS: Final = 8  # signs of life in the time after which a host counts as dead
_log: Final = logging.getLogger(__name__)


class Upkeep:
    """The maintenance of one store."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self.begun = threading.Event()  # set when the first attempt to use the store has ended
        self._recovering, self._polling = Recovering(parts), HostPolling(parts)
        self._is_busy = False
        self._remember_orders: list[RememberOrder] = []
        self._is_list_due = False  # the list of forgotten tenants has to be put again
        self._published_at = -_LONG_PUBLISH_S
        self._audit_at = self._sweep_at = 0.0
        self._sign_at = 0.0  # when the next sign of life is due, even without changes
        self._used_at = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that a later process would need."""
        parts = self._parts
        is_told = not parts.own.is_changed or not parts.takes_loads or parts.is_over_for_stores
        return is_told and not self._is_busy

    def step(self, now: float, *, is_closing: bool) -> None:
        """Begin the call that is due, if any."""
        parts = self._parts
        if self._is_busy:
            return
        if not parts.takes_loads:
            self.flush()
        if not parts.breaker.is_on:
            if not (is_closing or parts.is_over) and parts.breaker.probe_due(now):
                self._probe()
            return
        spent = parts.ledger.to_persist(parts.clock.day())
        if spent is not None:
            self._persist_spent(spent)
        elif (self._remember_orders or self._is_list_due) and parts.takes_loads:
            self._put_forgotten()
        elif parts.allows():
            self._look_after(now, is_closing=is_closing)

    def _look_after(self, now: float, *, is_closing: bool) -> None:
        """Publish, poll others, sweep: whatever is due and within the budget.

        Signs of life are given even on a day whose requests are used up: otherwise others would
        delete this host's packs.
        """
        parts, options = self._parts, self._parts.options
        is_due = is_closing or now >= self._published_at + self._publish_s
        is_sign = now >= self._sign_at and not is_closing
        is_news = parts.own.is_changed and is_due and not parts.is_over_for_stores
        if is_news or is_sign:
            self._published_at = now
            self._sign_at = now + options.host_age_s / _LIFE_SIGNS
            self._is_list_due = is_sign and bool(parts.remembered)  # it must not look old
            self._publish()
        elif is_closing or parts.is_over:
            return
        elif (request := self._polling.request(now)) is not None:
            self._poll_hosts(request)
        elif now >= self._audit_at and not parts.is_over_for_stores:
            self._audit_at = now + options.audit_s
            self._audit()
        elif parts.used and now >= self._used_at and not parts.is_over_for_stores:
            self._used_at = now + parts.apart_s(1, _USED_SHARE)
            self._publish_used()
        elif now >= self._sweep_at and not parts.is_over_for_stores:
            self._sweep_at = now + options.sweep_s
            age_s, watched_s = int(options.host_age_s), int(options.watched_s)
            self._call(StoreRequest(0, Action.SWEEP, at=age_s, limit=watched_s), self._swept)
        elif (request := self._recovering.request(now)) is not None:
            self._call(request, self._recovering.read, self._recovering.not_read)

    @property
    def _publish_s(self) -> float:
        """Seconds between two publications."""
        publish_s = self._parts.options.publish_s
        return max(publish_s, _LONG_PUBLISH_S) if self._recovering.is_long else publish_s

    def _poll_hosts(self, request: StoreRequest) -> None:
        def polled(answer: Answer, results: Results) -> None:
            self._polling.answered(request, answer, results)
            self._begin_if_known()

        def not_polled(_failure: StoreFailure) -> None:
            self._polling.failed(request)
            self._begin_if_known()

        self._call(request, polled, not_polled)

    def _begin_if_known(self) -> None:
        """Let a starting pool go on once it is known what the store has."""
        if self._polling.has_polled:
            self.begun.set()

    def child_ended(self) -> None:
        """The child is gone; all calls under way have been answered."""
        self._polling.child_ended()
        self.begun.set()

    def _call(
        self,
        request: StoreRequest,
        done: AnswerDone,
        failed: Callable[[StoreFailure], None] | None = None,
    ) -> None:
        """Ask the child; a failure is counted, unless `failed` handles it."""
        self._is_busy = True
        until = self._parts.clock.monotonic() + self._parts.options.maintenance_s

        def ended(answer: Answer, results: Results) -> None:
            self._is_busy = False
            if answer.failure is None:
                done(answer, results)
            elif failed is None:
                self._parts.failed()
            else:
                failed(answer.failure)

        self._parts.call(request, until, ended)

    def _probe(self) -> None:
        link = self._parts.link
        if not link.is_running and not link.start():
            self._parts.trip("cannot be asked")
            self.begun.set()
            return
        self._call(StoreRequest(0, Action.PROBE), self._probed, self._not_yet)

    def _probed(self, _answer: Answer, _results: Results) -> None:
        if self._recovering.is_listed:
            self._audit_at = 0.0  # the store may have lost objects
            self._parts.own.erase_forgotten(self._parts.forgotten)
            self._use()
        elif self._parts.ledger.requests_a_day:
            self._read_spent()
        else:
            self._read_forgotten()

    def _read_spent(self) -> None:
        """Read how many of today's requests an earlier process has used."""
        parts, target = self._parts, allocate(SPENT_BYTES)[:SPENT_BYTES]
        lent = parts.lending.lend(target, filled=False)

        def read(answer: Answer, _results: Results) -> None:
            parts.lending.give_back(lent, answer.count)
            parts.ledger.restore(bytes(target[: answer.count]), parts.clock.day())
            if parts.is_over:
                _log.warning("%s has had its requests of today; it is used tomorrow", parts.path)
                self.begun.set()
            else:
                self._read_forgotten()

        def not_read(failure: StoreFailure) -> None:
            parts.lending.give_back(lent)
            if failure is StoreFailure.ABSENT:
                parts.ledger.restore(b"", parts.clock.day())
                self._read_forgotten()
            else:
                self._not_yet(failure)

        request = StoreRequest(
            0, Action.GET, published.spent_name(parts.host), buffers=[lent.buffer]
        )
        self._call(request, read, not_read)

    def _persist_spent(self, spent: bytes) -> None:
        """Store the number of requests that may be used, before they are."""
        name = published.spent_name(self._parts.host)
        self._put(name, spent, lambda: self._parts.ledger.persisted(spent))

    def _read_forgotten(self) -> None:
        """Read which tenants an earlier process forgot, before anything is served."""
        parts, target = self._parts, allocate(FORGOTTEN_BYTES_MAX)
        lent = parts.lending.lend(target, filled=False)

        def read(answer: Answer, _results: Results) -> None:
            parts.lending.give_back(lent, answer.count)
            found = unpack_forgotten(bytes(target[: answer.count]))
            if found is None:
                _log.warning("%s has a damaged list of forgotten tenants", parts.path)
            parts.remembered = found or frozenset()
            parts.forget(parts.remembered)
            parts.listener.forgotten(parts.remembered)
            self._recover()

        def not_read(failure: StoreFailure) -> None:
            parts.lending.give_back(lent)
            if failure is StoreFailure.ABSENT:
                self._recover()
            else:
                self._not_yet(failure)

        name = published.forgotten_name(parts.host)
        self._call(StoreRequest(0, Action.GET, name, buffers=[lent.buffer]), read, not_read)

    def remember(self, order: RememberOrder) -> None:
        """Queue a tenant to be added to the store's list of forgotten tenants."""
        self._remember_orders.append(order)

    def flush(self) -> None:
        """Answer those who wait: nothing can be put now."""
        for order in self._remember_orders:
            order.end(is_kept=False)
        self._remember_orders = []

    @property
    def _is_list_short(self) -> bool:
        """Whether tenants were noted on drives alone, which are replaced: the store needs them."""
        remembered = self._parts.remembered
        return len(remembered) < FORGOTTEN_MAX and not self._parts.forgotten <= remembered

    def _put_forgotten(self) -> None:
        """Put the whole list of forgotten tenants, with those that callers wait for."""
        parts, orders = self._parts, self._remember_orders
        tenants = parts.remembered | {order.tenant for order in orders}
        more = sorted(parts.forgotten - tenants)  # the rest, as far as there is room
        tenants |= {*more[: max(0, FORGOTTEN_MAX - len(tenants))]}
        self._remember_orders, self._is_list_due = [], False

        def ended(*, is_kept: bool) -> None:
            if is_kept:
                parts.remembered = tenants
                parts.forget(tenants)
            for order in orders:
                order.end(is_kept=is_kept)

        name, data = published.forgotten_name(parts.host), pack_forgotten(tenants)
        self._put(name, data, lambda: ended(is_kept=True), lambda: ended(is_kept=False))

    def _recover(self) -> None:
        self._call(StoreRequest(0, Action.RECOVER), self._recovered, self._not_yet)

    def _not_yet(self, failure: StoreFailure) -> None:
        if not self.begun.is_set():
            path = self._parts.path
            _log.warning("%s cannot be used (%s); it is tried again and again", path, failure.value)
        self._parts.trip("does not answer")
        self.begun.set()

    def _recovered(self, answer: Answer, results: Results) -> None:
        self._recovering.listed(answer, results)
        self._audit_at = self._parts.clock.monotonic() + self._parts.options.audit_s
        self._use()

    def _use(self) -> None:
        self._is_list_due = self._is_list_short
        self._parts.breaker.answered()
        if self.begun.is_set():
            _log.warning("%s answers and is used", self._parts.path)
        self._begin_if_known()

    def _audit(self) -> None:
        known = self._parts.own.sequences()  # packs put from now on do not count as missing

        def audited(_answer: Answer, results: Results) -> None:
            self._audit_at = max(self._audit_at, self._next_audit())
            found = msgspec.msgpack.decode(results[0], type=StoreAudit)
            missing = known - {pack.sequence for pack in found.packs}
            is_lost = bool(self._parts.remembered) and not found.has_forgotten
            self._is_list_due = is_lost or self._is_list_short
            self._parts.own.audited(
                missing, has_tail=found.has_tail, has_snapshot=found.has_snapshot
            )
            if missing:
                _log.info("%d packs of this host are not there any more", len(missing))
            if came := self._parts.own.came_late(found.packs):
                _log.info("%d packs of this host are there that were given up", came)

        self._call(StoreRequest(0, Action.AUDIT), audited)

    def _next_audit(self) -> float:
        """When to do again what was just done, given the requests that it took."""
        parts = self._parts
        apart_s = parts.apart_s(parts.last_maintenance.requests, _AUDIT_SHARE)
        return parts.clock.monotonic() + apart_s

    def _swept(self, answer: Answer, _results: Results) -> None:
        self._sweep_at = max(self._sweep_at, self._next_audit())
        if answer.count:
            _log.info("%d objects of hosts that are gone were deleted", answer.count)

    def _publish(self, done: Callable[[], None] = lambda: None) -> None:
        own, limit = self._parts.own, self._parts.options.tail_entries_max
        tail = own.tail()
        entries = sum(len(pack.entries) for pack in tail.packs) // published.ENTRY_BYTES
        if max(entries, len(tail.deleted)) <= limit:
            self._put_tail(tail, done)
            return
        snapshot = own.snapshot()
        data = published.pack(snapshot)

        def snapshot_put() -> None:
            own.snapshot_put(snapshot, len(data))
            self._put_tail(own.tail(), done)

        self._put(published.snapshot_name(self._parts.host), data, snapshot_put)

    def _publish_used(self) -> None:
        """Publish what is used most, after the index, so that readers find the records."""
        parts = self._parts
        told, parts.used = parts.used, ()

        def put_used() -> None:
            records = [each for each in told if each.tenant not in parts.forgotten]
            self._put(used_name(parts.host), pack_used(records), lambda: None)

        if parts.own.is_changed:
            self._published_at = parts.clock.monotonic()
            self._publish(put_used)
        else:
            put_used()

    def _put_tail(self, tail: Publication, done: Callable[[], None]) -> None:
        self._put(published.tail_name(self._parts.host), published.pack(tail), done)

    def _put(
        self,
        name: str,
        data: bytes,
        done: Callable[[], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Put a part of the index; if that fails it is published again later."""
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
            failed()
            if failure is not StoreFailure.FULL:  # a full store can still be read
                parts.failed()

        self._call(StoreRequest(0, Action.PUT, name, buffers=[lent.buffer]), put, not_put)
