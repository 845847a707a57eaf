"""Polls other hosts, a few per call: what they publish and, once, what they use most.

Other work that is due is done between two calls, so a round over many hosts delays nothing. A round
ends when a call returns results.
"""

from typing import Final

from forebay.record.header import Damage
from forebay.tiers.contract import UsedRecord, WarmStart
from forebay.tiers.remote.index.table import RecordTable
from forebay.tiers.remote.index.used import unpack_used
from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.process.link import Results
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest

_SHARE: Final = 0.25  # share of a day's requests for polling other hosts
_WARM_TRIES: Final = 3  # tries to find out what hosts use most
_HOSTS_AT_ONCE: Final = 32  # hosts asked by one call, which must end in time on a slow store, too
_REQUESTS_MIN: Final = 3  # requests of a call for one host: tail, snapshot, a listing


class HostPolling:
    """What other hosts tell about themselves. Owned by the tier's thread."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self.has_polled = False  # at least one round has ended, or failed
        self._version = -1  # version of the snapshots that are known
        self._refresh_at = 0.0
        self._is_refreshing = self._is_warming = False  # a round is under way
        self._warm_tries = _WARM_TRIES if parts.warm.limit_bytes else 0  # tries left
        self._used: list[UsedRecord] = []  # most used records, until they are offered
        self._requests = 0  # requests of this round
        self._round_requests = 2  # requests of the last round

    def request(self, now: float) -> StoreRequest | None:
        """The request to make now, if any."""
        parts = self._parts
        if not parts.allows(_REQUESTS_MIN):
            return None
        limit = min(_HOSTS_AT_ONCE, (parts.room() - 1) // 2)
        # Before the first round, so that this round knows all records that hosts tell about.
        is_first = not (self.has_polled or self._is_refreshing) and self._warm_tries == _WARM_TRIES
        if self._is_warming or is_first:
            return self._ask_for_used(limit)
        if self._is_refreshing or now >= self._refresh_at:
            if not self._is_refreshing:
                self._is_refreshing, self._requests = True, 0
                self._refresh_at = now + self._refresh_s()
            return StoreRequest(0, Action.REFRESH, at=self._version, limit=limit)
        return self._ask_for_used(limit) if self._warm_tries else None

    def _ask_for_used(self, limit: int) -> StoreRequest:
        self._warm_tries -= not self._is_warming
        self._is_warming = True
        return StoreRequest(0, Action.USED, limit=limit)

    def _refresh_s(self) -> float:
        """Seconds until the next round, so that polling does not use up the budget."""
        apart_s = self._parts.apart_s(self._round_requests, _SHARE)
        return max(self._parts.options.refresh_s, apart_s)

    def answered(self, request: StoreRequest, answer: Answer, results: Results) -> None:
        """A call was answered; it has results if all hosts of the round were asked."""
        if request.action is Action.REFRESH:
            self._requests += self._parts.last_maintenance.requests
            if results:
                self._learn(answer, results)
        elif results:
            self._warm_up(results)

    def _learn(self, answer: Answer, results: Results) -> None:
        tables = [RecordTable(result) for result in results]
        snapshots = tables[1] if len(tables) > 1 else None
        self._parts.others.learn(tables[0], snapshots, self._parts.clock.monotonic())
        self._version, self._round_requests = answer.count, self._requests
        self._end_round()
        if self._used:
            self._parts.listener.warm_start(WarmStart(self._used, *self._parts.warm))
            self._used = []

    def _end_round(self) -> None:
        """End a round, leaving time for other work before the next one."""
        parts = self._parts
        earliest = parts.clock.monotonic() + parts.options.refresh_s
        self._refresh_at = max(self._refresh_at, earliest)
        self._is_refreshing, self.has_polled = False, True

    def _warm_up(self, results: Results) -> None:
        """Take the most used records; they are offered after the next round.

        A host publishes where a record lies before it tells of its use, so that round finds it.
        """
        self._is_warming, self._warm_tries = False, 0
        records = unpack_used(results[0])
        self._used = [] if isinstance(records, Damage) else records

    def failed(self, request: StoreRequest) -> None:
        """The round failed; a later one starts anew."""
        if request.action is Action.REFRESH:
            self._end_round()
        else:
            self._is_warming = False
        self._parts.failed()

    def child_ended(self) -> None:
        """The next child knows no round, and no version."""
        self._version = -1
        self._is_refreshing = self._is_warming = False
