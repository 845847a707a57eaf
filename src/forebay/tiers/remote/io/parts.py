"""State that the parts of a remote tier share; all but the inbox belongs to the tier's thread."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from forebay.record.keyring import RecordKeys
from forebay.sys.clock import Clock
from forebay.sys.memory import zero
from forebay.terms import NOT_WARM, WarmLimit
from forebay.tiers.contract import MissReason, TierListener, UsedRecord
from forebay.tiers.remote.accounting.ledger import NO_REQUESTS, Ledger, RequestCounts, counts_of
from forebay.tiers.remote.accounting.speed import StoreSpeed
from forebay.tiers.remote.breaker import Breaker
from forebay.tiers.remote.index.others import OtherHosts
from forebay.tiers.remote.jobs import Inbox
from forebay.tiers.remote.lending import Lending
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.own import OwnPacks
from forebay.tiers.remote.process.link import AnswerDone, Link, Results
from forebay.tiers.remote.process.messages import MAINTENANCE, Action, Answer, StoreRequest
from forebay.tiers.remote.process.recovery import PACK_GETS_MAX

_DAY_S: Final = 86_400.0
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class RemoteParts:
    """One store, and what is known about it."""

    path: str  # the store, for people
    host: str
    cap_bytes: int
    options: RemoteOptions
    clock: Clock
    listener: TierListener
    link: Link
    lending: Lending
    breaker: Breaker
    own: OwnPacks
    others: OtherHosts
    inbox: Inbox
    ledger: Ledger
    keys: RecordKeys | None = None  # of encrypted records
    speed: StoreSpeed = field(default_factory=StoreSpeed)
    read_bytes: int = 0
    written_bytes: int = 0
    forgotten: frozenset[bytes] = frozenset()  # tenants of which nothing is kept or served
    remembered: frozenset[bytes] = frozenset()  # those of them that are on the store's list
    warm: WarmLimit = NOT_WARM  # how much to fetch when the store is first used
    last_maintenance: RequestCounts = NO_REQUESTS  # requests of the last maintenance
    used: Sequence[UsedRecord] = ()  # to be published; any thread may replace it
    _held_back: int = 0  # requests that maintenance under way may still make
    _forgetting: threading.Lock = field(default_factory=threading.Lock)  # guards `forgotten`

    def forget(self, tenants: frozenset[bytes]) -> None:
        """Keep and serve nothing of these tenants from now on; any thread may call."""
        with self._forgetting:
            self.forgotten |= tenants

    def takes_stores(self, now: float) -> bool:
        """Whether records are stored now."""
        return self.breaker.takes_stores(now) and not self.is_over_for_stores

    @property
    def takes_loads(self) -> bool:
        """Whether records are loaded now."""
        return self.breaker.is_on and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether no requests are left for today."""
        return self.ledger.is_over(self.clock.day())

    @property
    def is_over_for_stores(self) -> bool:
        """Whether only loads may use the store today."""
        return self.ledger.is_over_for_stores(self.clock.day())

    @property
    def off_reason(self) -> MissReason:
        """Why records are not loaded now."""
        return MissReason.BUDGET if self.breaker.is_on else MissReason.TIER_OFF

    def room(self) -> int:
        """How many requests may be made now, in addition to maintenance under way."""
        return self.ledger.room(self.clock.day()) - self._held_back

    def apart_s(self, requests: int, share: float) -> float:
        """Seconds between calls that take so many requests, to use only this share of a day's."""
        budget = share * self.ledger.requests_a_day
        return _DAY_S * requests / budget if budget else 0.0

    def allows(self, requests: int = 1) -> bool:
        """Whether so many requests may be made now."""
        return self.ledger.allows(requests + self._held_back, self.clock.day())

    def call(self, request: StoreRequest, deadline: float, done: AnswerDone) -> None:
        """Ask the child, and count what that asks of the store; see `Link.call`."""
        if request.action in MAINTENANCE:
            self._call_maintenance(request, deadline, done)
            return
        self.ledger.add(_counts(request), self.clock.monotonic(), self.clock.day())

        def ended(answer: Answer, results: Results) -> None:
            if request.action is Action.GET:
                received = RequestCounts(received_bytes=answer.count)
                self.ledger.add(received, self.clock.monotonic(), self.clock.day())
            done(answer, results)

        self.link.call(request, deadline, ended)

    def _call_maintenance(self, request: StoreRequest, deadline: float, done: AnswerDone) -> None:
        """As `call`; if maintenance is cut off, what it has asked for so far counts."""
        buffer, noted = self.lending.counts()
        zero(noted)
        self._held_back = _requests_max(request)

        def ended(answer: Answer, results: Results) -> None:
            self._held_back = 0
            self.last_maintenance = counts_of(noted)
            self.ledger.add(self.last_maintenance, self.clock.monotonic(), self.clock.day())
            done(answer, results)

        self.link.call(msgspec.structs.replace(request, buffers=[buffer]), deadline, ended)

    def failed(self) -> None:
        """Count a failed call of the store."""
        if self.breaker.failed(self.clock.monotonic()):
            _log.warning("%s failed too often and is left alone; it is probed later", self.path)

    def trip(self, why: str) -> None:
        """Leave the store alone until a probe succeeds."""
        if self.breaker.trip(self.clock.monotonic()):
            _log.warning("%s %s and is left alone; it is probed later", self.path, why)


def _requests_max(request: StoreRequest) -> int:
    """How many requests maintenance may make; those of other calls are known afterwards."""
    match request.action:
        case Action.READ_PACKS:
            return PACK_GETS_MAX * len(request.packs)
        case Action.REFRESH:
            return 1 + 2 * request.limit  # a listing, and each host's tail and snapshot
        case Action.USED:
            return 1 + request.limit
    return 0


def _counts(request: StoreRequest) -> RequestCounts:
    """The requests that one call makes of a store."""
    if request.action is Action.PUT:
        return RequestCounts(puts=1, sent_bytes=sum(length for _, _, length in request.buffers))
    if request.action is Action.DELETE:
        return RequestCounts(deletes=1)
    return RequestCounts(gets=1)
