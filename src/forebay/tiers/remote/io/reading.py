"""Loads from a store, several at once, each verified before its result is told.

Tenants take turns by weight.
"""

from collections.abc import Mapping
from dataclasses import replace

from forebay.record.header import Damage
from forebay.record.region import short
from forebay.sys.memory import padded
from forebay.tiers.contract import (
    SOUND,
    EvictionCause,
    Hit,
    LoadOutcome,
    Miss,
    MissReason,
    Removed,
)
from forebay.tiers.quotas import Quota
from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.jobs import RemoteLoad
from forebay.tiers.remote.packs import ReadRecord, verified
from forebay.tiers.remote.process.link import Results
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.turns import FairQueue


class RemoteReading:
    """All loads of one store."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self._waiting: FairQueue[RemoteLoad] = FairQueue()
        self._lanes = list(range(parts.options.read_depth))  # free lanes

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not self._waiting and len(self._lanes) == self._parts.options.read_depth

    def weigh(self, quotas: Mapping[bytes, Quota]) -> None:
        """Set tenants' weights; any thread may call."""
        self._waiting.weigh({tenant: quota.weight for tenant, quota in quotas.items()})

    def add(self, job: RemoteLoad) -> None:
        """Queue a load."""
        self._waiting.put(job, job.place.length, job.name.tenant)

    def step(self, now: float) -> None:
        """Answer loads that are too late, and begin as many as possible."""
        for job in self._waiting.remove(lambda job: job.deadline <= now):
            self._answer(job, Miss(MissReason.DEADLINE))
        while self._waiting and not self._parts.takes_loads:
            self._answer(self._waiting.take(), Miss(self._parts.off_reason))
        while self._waiting and self._lanes and self._parts.allows():
            self._begin(self._waiting.take())

    def flush(self) -> None:
        """Answer everything that waits, since nothing will be read any more."""
        while self._waiting:
            self._answer(self._waiting.take(), Miss(MissReason.TIER_OFF))

    def _answer(self, job: RemoteLoad, outcome: LoadOutcome) -> None:
        self._parts.inbox.load_begins()
        job.done(outcome)

    def _begin(self, job: RemoteLoad) -> None:
        parts, lane = self._parts, self._lanes.pop()
        begun = parts.clock.monotonic()
        parts.inbox.load_begins()
        page, _ = parts.lending.page(lane)
        lent = parts.lending.lend(job.target[: padded(job.place.length)], filled=False)
        request = StoreRequest(0, Action.GET, job.place.name, job.place.offset, [page, lent.buffer])
        parts.speed.began(lane, job.place.length, begun)

        def ended(answer: Answer, _results: Results) -> None:
            parts.lending.give_back(lent, 0 if answer.failure else job.place.length)
            outcome = self._outcome(job, lane, answer)
            is_whole = isinstance(outcome, Hit)
            parts.speed.ended(lane, parts.clock.monotonic(), is_whole=is_whole)
            self._lanes.append(lane)
            job.done(replace(outcome, begun=begun))

        parts.call(request, begun + parts.options.call_s, ended)

    def _outcome(self, job: RemoteLoad, lane: int, answer: Answer) -> LoadOutcome:
        parts = self._parts
        if answer.failure is StoreFailure.ABSENT:
            self._forget_pack(job)
            return Miss(MissReason.ABSENT)
        if answer.failure is not None:
            parts.failed()
            return Miss(MissReason.IO_ERROR)
        _, page = parts.lending.page(lane)
        read = ReadRecord(page, job.target, answer.count)
        found = verified(read, job.name, job.place, parts.keys)
        if isinstance(found, Damage):
            if found not in SOUND:  # verify: a claim costs nobody a remote record
                self._forget(job)
            return Miss(MissReason.of(found), found)
        parts.read_bytes += job.place.length
        used_at = parts.own.catalog.mark_read(short(job.name.key), parts.clock.monotonic())
        return Hit(job.place.length, found, used_at=used_at)

    def _forget(self, job: RemoteLoad) -> None:
        """A record is not what was stored: do not ask for it again."""
        parts, key = self._parts, short(job.name.key)
        if job.row is None:
            parts.own.forget(key, job.place)
            return
        parts.others.damaged(job.row, key, parts.clock.monotonic())
        self._tell_removed(job, EvictionCause.DAMAGED)

    def _forget_pack(self, job: RemoteLoad) -> None:
        """A listed pack is gone, and with it all its records."""
        parts = self._parts
        if job.row is None:
            parts.own.lose(job.place.sequence)
            return
        parts.others.forget_pack(job.place.sequence, parts.clock.monotonic())
        self._tell_removed(job, EvictionCause.SPACE)  # its host has deleted it

    def _tell_removed(self, job: RemoteLoad, cause: EvictionCause) -> None:
        """Another host's record is not available any more."""
        key, length = short(job.name.key), job.place.length
        self._parts.listener.removed([Removed(key, length, was_read=False, cause=cause)])
