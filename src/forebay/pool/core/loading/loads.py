"""Loads, from lookup to release: what engines say of them, handed to those who act on it.

Lookup: the longest known prefix is found; what DRAM has of it is retained, and the rest read ahead
(`retention`, `promotions`). Ask: chunks are pinned and read, and promised (`acquisition`). Release:
they are unpinned. Records of other groups than the chain's are looked up one by one, and asked for
with the chunks that they go with. What was promised may be being read after its connection is over:
see `orphaned_pins`. The states of a load are drawn in `request`.
"""

from typing import Final

from forebay.decisions import Decision
from forebay.identity.tenants import masked
from forebay.metrics.labels import ABSENT, DRAM
from forebay.pool.core.hashing import Hasher
from forebay.pool.core.loading.acquisition import Acquisition
from forebay.pool.core.loading.awaited import AwaitedLookups
from forebay.pool.core.loading.request import LoadRequest, LoadState
from forebay.pool.core.loading.retention import RETAIN_S
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.recent.requests import LookupNote, RecentRequests
from forebay.pool.core.stack import FarRun
from forebay.pool.core.warming.dialogs import DialogReads
from forebay.pool.core.warming.use_counts import UseCounts
from forebay.pool.messages import (
    AnswersEnded,
    Ask,
    Found,
    Lookup,
    Release,
    StoreRun,
    short_keys,
)
from forebay.pool.policy.ahead import is_read_ahead
from forebay.pool.policy.contract import Ending
from forebay.pool.session import Session
from forebay.record.header import NAMESPACE_BYTES
from forebay.record.region import SHORT_KEY_BYTES

DEADLINE_S_MAX: Final = 60.0  # of an ask; a later one is taken for this


class Loads:
    """All requests of all sessions. Owned by the pool's thread."""

    def __init__(self, parts: CoreParts, hasher: Hasher | None) -> None:
        self.uses = UseCounts(parts)
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics.loads
        self._tier_names = parts.metrics.tier_names
        self._clock, self._tenants, self._barrier = parts.clock, parts.tenants, parts.barrier
        self._of_tenants = parts.metrics.tenants
        self.recent = RecentRequests(parts.metrics)
        self.acquisition = Acquisition(parts, hasher)
        self.dialogs = DialogReads(parts, self.acquisition)
        self._requests = self.acquisition.requests
        self.awaited = AwaitedLookups(parts.dram.chunks)
        # Lookups that a tenant's policy is to hear of: keys, how many are known.
        self._unreported: list[tuple[bytes, list[bytes], int]] = []

    def lookup(self, session: Session, message: Lookup) -> None:
        """Answer how much is known, as soon as what is being stored for it is here."""
        if message.awaits > 0:
            mask = self._tenants.of_salt(message.salt_hash).short_mask
            keys = short_keys(masked(message.keys, mask))
            if self.awaited.add(session, message, keys, self._clock.monotonic()):
                session.send(Found(message.request, 0, 0, coming=True))
                return
        self._answer(session, message)

    def stored(self) -> None:
        """Chunks were stored, or will not be: answer who waited for them."""
        for session, message in self.awaited.take_due(self._clock.monotonic()):
            # Not at the cost of whoever has stored them, nor of others that waited.
            if not self._barrier.call("an awaited lookup", self._answer, session, message):
                session.send(Found(message.request, 0, 0))

    def _answer(self, session: Session, message: Lookup) -> None:
        """Answer how much is known; retain what is here of it, and begin to read the rest."""
        begun = self._clock.monotonic()
        tenant = self._tenants.of_salt(message.salt_hash)
        is_sensible = len(message.namespace) == NAMESPACE_BYTES  # verify: no record has another
        joined = message.keys if is_sensible else b""
        keys = _unrepeated(short_keys(masked(joined, tenant.short_mask)))
        ready = self._dram.chunks.ready_prefix(keys)
        known, is_unknown, below, far = self._stack.prefix(keys, ready)
        if ready < known and not self._can_be_loaded(keys[ready]):  # verify: loadable
            known, is_unknown, below, far = ready, False, [], []
        self._unreported.append((tenant.id, keys, known))
        if keys:
            self.dialogs.looked_up(keys[-1], message.namespace, message.group)
        if ready < known:
            self.catch_up()  # before slots are freed for what will be read ahead
        stores = [
            StoreRun(each.first, each.chunks, 1000 * each.speed.first_s, each.speed.bytes_a_s)
            for each in far
        ]
        has = self._which(masked(message.local, tenant.short_mask))
        session.send(Found(message.request, known, ready, has, stores))
        self._count(len(keys), known, below)
        self._of_tenants.looked_up(tenant.name, len(keys), known)
        self._metrics.lookup_seconds.observe(self._clock.monotonic() - begun)
        beyond = self._why_no_more(message, keys, known)
        note = LookupNote(message.namespace, [known - sum(below), *below], beyond)
        self.recent.looked_up(session, message.request, note)
        is_new = self._requests.get(session, message.request) is None
        followed = len(keys) if is_unknown else known
        if followed and is_new and not self._requests.admits(session, followed):  # verify: keys
            self._metrics.lookups_not_followed.add()
        elif followed and is_new:
            number, group = message.request, message.group
            request = LoadRequest(session, number, note, group, keys[:known])
            request.tenant = tenant.id
            request.next = request.told = ready
            request.deadline = self._clock.monotonic() + RETAIN_S
            request.unknown_keys = keys[known:] if is_unknown else []
            request.keys_counted = followed
            request.ahead_stop = self._ahead_stop(message, keys, far)
            self.acquisition.add(request)

    def _ahead_stop(self, message: Lookup, keys: list[bytes], far: list[FarRun]) -> int:
        """Where reading ahead ends: before what a store brings later than the GPU computes it."""
        for run in far:
            size_bytes = run.chunks * (self._stack.length_of(keys[run.first]) or 0)
            if not is_read_ahead(size_bytes, run.speed, message.gpu_bytes_a_s):
                return run.first
        return len(keys)

    def _count(self, chunks: int, known: int, below: list[int]) -> None:
        """A lookup was answered; `below` are the chunks that each lower tier has."""
        self._metrics.lookups.add()
        found = self._metrics.lookup_chunks
        found.add(known - sum(below), (DRAM,))
        found.add(chunks - known, (ABSENT,))
        for name, count in zip(self._tier_names[1:], below, strict=False):
            found.add(count, (name,))

    def _why_no_more(self, message: Lookup, keys: list[bytes], known: int) -> Decision | None:
        """Why no more of a chain is known; None: it never was, as far as is remembered."""
        is_elsewhere = self.recent.prompts.seen(message.tag, message.namespace)
        if known >= len(keys):
            return None
        why = self.acquisition.why_gone(keys[known])
        if why is None and not known and is_elsewhere:
            why = Decision.OTHER_MODEL
        return why

    def _which(self, joined: bytes) -> bytes:
        """A bit for each of these records, the lowest first: whether some tier has it."""
        bits = 0
        for number, key in enumerate(short_keys(joined)):
            in_dram = self._dram.chunks.is_coming_or_ready(key)
            if in_dram or (self._stack.has(key) and self._can_be_loaded(key)):
                bits |= 1 << number
        return bits.to_bytes(-(-len(joined) // (8 * SHORT_KEY_BYTES)), "little")

    def _can_be_loaded(self, key: bytes) -> bool:
        """Whether a slot can hold what lower tiers have; a smaller DRAM before may have had it."""
        length = self._stack.length_of(key)
        return length is None or self._dram.slab.fits(length)

    def ask(self, session: Session, message: Ask) -> None:
        """Begin to acquire the chunks of a request; the promise follows, now or later."""
        request = self._requests.get(session, message.request)
        if request is None or request.state is not LoadState.ARRIVED:
            self.acquisition.refuse(session, message.request, message.first)
            return
        now, wait_s = self._clock.monotonic(), max(0, message.deadline_ms) / 1000
        wait_s = min(wait_s, DEADLINE_S_MAX)
        request.half_time, request.deadline = now + wait_s / 2, now + wait_s
        request.stream = message.stream
        if message.local and not self._add_local(request, message):
            self.acquisition.refuse(session, message.request, message.first)
            return
        self.acquisition.begin(request, message.first, message.count)

    def _add_local(self, request: LoadRequest, message: Ask) -> bool:
        """A request asks for records of other groups too; False: it may not."""
        mask = self._tenants.mask(request.tenant)[:SHORT_KEY_BYTES]
        runs = [
            (run.group, _unrepeated(short_keys(masked(run.keys, mask)))) for run in message.local
        ]
        count = sum(len(keys) for _, keys in runs)
        chunks = message.first + message.count
        is_known = 0 <= message.first <= chunks <= len(request.keys)
        if not (is_known and self._requests.admits_more(request, count)):
            return False
        request.add_local(chunks, runs)
        self._unreported += [(request.tenant, keys, len(keys)) for _, keys in runs]
        return True

    def ended(self, message: AnswersEnded) -> None:
        """Tell the policies how answers ended."""
        now = self._clock.monotonic()
        for end in (each.bounded() for each in message.ends):
            tenant = self._tenants.of_salt(end.salt_hash)
            ending = Ending(
                end.ending,
                end.after,
                end.answer_tokens,
                end.duration_ms / 1000,
                end.session,
                end.returns_in_s,
                end.keep_s,
                end.priority,
            )
            key, ended_at = masked(end.key, tenant.short_mask), now - end.age_ms / 1000
            self._dram.policies.of(tenant.id).ended(key, ending, ended_at)

    def release(self, session: Session, message: Release) -> None:
        """Unpin what an engine has copied."""
        request = self._requests.get(session, message.request)
        if request is not None:
            self.acquisition.release(request, message.chunks)
            self.acquisition.pump()

    def cancel(self, session: Session, number: int) -> None:
        """Forget a request in whatever state."""
        self.awaited.cancel(session, number)
        request = self._requests.get(session, number)
        if request is not None:
            self.acquisition.end(request)
            self.acquisition.pump()

    def disconnected(self, session: Session) -> None:
        """Forget all of a session's requests; what they were promised may still be being read."""
        self.recent.disconnected(session)
        self.awaited.disconnected(session)
        for request in self._requests.of(session):
            if request.state is LoadState.PROMISED and request.held:
                self.acquisition.orphaned_pins.take_over(request)
            self.acquisition.end(request)
        self.acquisition.pump()

    def settled(self, engine: str) -> None:
        """An engine reads no promised chunk any more, on any of its connections: unpin them."""
        for chunk in self.acquisition.orphaned_pins.end(engine):
            self._dram.unpin_for_load(engine, chunk)
        for request in self._requests.of_engine(engine):
            self.acquisition.end(request)
        self.acquisition.pump()

    def lends(self, engine: str) -> bool:
        """Whether an engine may be reading what was promised on a connection that is over."""
        return engine in self.acquisition.orphaned_pins

    def catch_up(self) -> None:
        """Do what answers need not wait for: tell the policy, let go of what was retained."""
        self.acquisition.answered()
        if self._unreported:
            now = self._clock.monotonic()
            unreported, self._unreported = self._unreported, []
            for tenant, keys, known in unreported:
                self._dram.policies.of(tenant).requested(keys, known, now)
                self._stack.asked(keys[:known])
                self.uses.asked_for(keys[:known])

    def tick(self, now: float) -> None:
        """Look at deadlines; then whoever waited for room may go on."""
        self.stored()
        self.acquisition.expire(now)
        self.acquisition.pump()

    def retain_nothing(self) -> None:
        """Retain nothing for those that have not been promised it: an operator comes first."""
        for request in list(self._requests):
            if request.state < LoadState.PROMISED:
                self.acquisition.stop_retaining(request)


def _unrepeated(keys: list[bytes]) -> list[bytes]:
    """A chain up to its first repeated key: a true one has none, since keys name whole prefixes."""
    if len(set(keys)) == len(keys):
        return keys
    seen: set[bytes] = set()
    for at, key in enumerate(keys):
        if key in seen:
            return keys[:at]
        seen.add(key)
    return keys
