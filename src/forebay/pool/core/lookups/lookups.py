"""Lookups: answers how much of a chain is known, and begins a load with the answer.

The longest known prefix is told as soon as chunks of it that are being stored are here. From then
on it is retained and read ahead (`loading.read_ahead`), until the engine asks for it.
"""

from forebay.decisions import Decision
from forebay.identity.tenants import masked
from forebay.metrics.labels import ABSENT, DRAM
from forebay.pool.core.loading.read_ahead import LoadParts, ReadAhead
from forebay.pool.core.loading.request import LoadRequest, unrepeated
from forebay.pool.core.loading.retention import RETAIN_S
from forebay.pool.core.lookups.awaited import AwaitedLookups
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.recent.requests import LookupNote, RecentRequests
from forebay.pool.core.stack import FarRun
from forebay.pool.core.warming.demand import ChunkDemand
from forebay.pool.core.warming.dialogs import DialogReads
from forebay.pool.messages import AnswersEnded, Found, Lookup, StoreRun, short_keys
from forebay.pool.policy.ahead import is_read_ahead
from forebay.pool.policy.contract import Ending
from forebay.pool.session import Session
from forebay.record.header import NAMESPACE_BYTES
from forebay.record.region import SHORT_KEY_BYTES


class ChainLookups:
    """Everything that engines want to know, or tell, about chains. Owned by the pool's thread."""

    def __init__(
        self, parts: CoreParts, demand: ChunkDemand, loads: LoadParts, read_ahead: ReadAhead
    ) -> None:
        self._dram, self._stack, self._metrics = parts.dram, parts.stack, parts.metrics.loads
        self._tier_names = parts.metrics.tier_names
        self._clock, self._tenants, self._barrier = parts.clock, parts.tenants, parts.barrier
        self._of_tenants = parts.metrics.tenants
        self._demand, self._read_ahead = demand, read_ahead
        self._requests, self._promotions = loads.requests, loads.promotions
        self.recent = RecentRequests(parts.metrics)
        self.dialogs = DialogReads(parts, read_ahead)
        self.awaited = AwaitedLookups(parts.dram.chunks)

    def lookup(self, session: Session, message: Lookup) -> None:
        """Answer how much of a chain is known, perhaps once more of it has been stored."""
        if message.awaits > 0:
            mask = self._tenants.of_salt(message.salt_hash).short_mask
            keys = short_keys(masked(message.keys, mask))
            if self.awaited.add(session, message, keys, self._clock.monotonic()):
                session.send(Found(message.request, 0, 0, coming=True))
                return
        self._answer(session, message)

    def stored(self) -> None:
        """Chunks were stored, or will not be: answer the lookups that waited for them."""
        for session, message in self.awaited.take_due(self._clock.monotonic()):
            # A failure here must not harm the engine that stored, nor other lookups.
            if not self._barrier.call("an awaited lookup", self._answer, session, message):
                session.send(Found(message.request, 0, 0))

    def _answer(self, session: Session, message: Lookup) -> None:
        """Answer how much is known; retain what DRAM has of it, and begin to read the rest."""
        begun = self._clock.monotonic()
        tenant = self._tenants.of_salt(message.salt_hash)
        is_sensible = len(message.namespace) == NAMESPACE_BYTES  # verify: no record has another
        joined = message.keys if is_sensible else b""
        keys = unrepeated(short_keys(masked(joined, tenant.short_mask)))
        ready = self._dram.chunks.ready_prefix(keys)
        known, is_unknown, below, far = self._stack.prefix(keys, ready)
        if ready < known and not self._can_be_loaded(keys[ready]):  # verify: loadable
            known, is_unknown, below, far = ready, False, [], []
        if keys:
            self.dialogs.looked_up(keys[-1], message.namespace, message.group)
        self._demand.asked_for(tenant.id, keys, known, now=ready < known)
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
            self._requests.add(request)
            self._read_ahead.add(request)

    def _ahead_stop(self, message: Lookup, keys: list[bytes], far: list[FarRun]) -> int:
        """Where reading ahead ends: at the first chunk for which a store is slower than the GPU."""
        for run in far:
            size_bytes = run.chunks * (self._stack.length_of(keys[run.first]) or 0)
            if not is_read_ahead(size_bytes, run.speed, message.gpu_bytes_a_s):
                return run.first
        return len(keys)

    def _count(self, chunks: int, known: int, below: list[int]) -> None:
        """Count an answered lookup; `below` is the number of chunks in each lower tier."""
        self._metrics.lookups.add()
        found = self._metrics.lookup_chunks
        found.add(known - sum(below), (DRAM,))
        found.add(chunks - known, (ABSENT,))
        for name, count in zip(self._tier_names[1:], below, strict=False):
            found.add(count, (name,))

    def _why_no_more(self, message: Lookup, keys: list[bytes], known: int) -> Decision | None:
        """Why no more of a chain is known; None if it never was, as far as is remembered."""
        is_elsewhere = self.recent.prompts.seen(message.tag, message.namespace)
        if known >= len(keys):
            return None
        why = self._promotions.why_gone(keys[known])
        if why is None and not known and is_elsewhere:
            why = Decision.OTHER_MODEL
        return why

    def _which(self, joined: bytes) -> bytes:
        """A bit for each of these records, the lowest first: whether any tier has it."""
        bits = 0
        for number, key in enumerate(short_keys(joined)):
            if self._dram.chunks.is_condemned(key):
                continue
            in_dram = self._dram.chunks.is_coming_or_ready(key)
            if in_dram or (self._stack.has(key) and self._can_be_loaded(key)):
                bits |= 1 << number
        return bits.to_bytes(-(-len(joined) // (8 * SHORT_KEY_BYTES)), "little")

    def _can_be_loaded(self, key: bytes) -> bool:
        """Whether a slot can hold this chunk, which may be from a time when DRAM was larger."""
        length = self._stack.length_of(key)
        return length is None or self._dram.slab.fits(length)

    def ended(self, message: AnswersEnded) -> None:
        """Tell the policies how answers ended."""
        now = self._clock.monotonic()
        for end in (each.bounded() for each in message.ends):
            tenant = self._tenants.of_salt(end.salt_hash)
            ending = Ending(
                end.ending,
                end.session,
                end.returns_in_s,
                end.keep_s,
                end.priority,
            )
            key, ended_at = masked(end.key, tenant.short_mask), now - end.age_ms / 1000
            self._dram.policies.of(tenant.id).ended(key, ending, ended_at)

    def disconnected(self, session: Session) -> None:
        """A session is over."""
        self.recent.disconnected(session)
        self.awaited.disconnected(session)
