"""From lookup to promise: how much of a request can be loaded, and whether to wait for it.

All of this runs in the scheduler's own hooks. For a pool that has not answered they wait within a
small limit for the whole step; beyond it the request is asked about again later, for a limited
time.

Where a model has local groups, the lookup also asks which of their records there are, and a hit
ends where all groups can serve it (`groups`). It is loaded whole or not at all: at a smaller number
of chunks other local records would be needed.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from forebay.decisions import Decision
from forebay.engines.geometry import Geometry
from forebay.engines.groups import PrefixHit, hit_of, longest_hit, record_blocks
from forebay.engines.scheduling.error_budget import ErrorBudget
from forebay.engines.scheduling.judgement import LoadJudgement
from forebay.engines.scheduling.load_or_recompute import ThroughputEstimate
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.scheduling.request_load import ASKED, FOUND, LOOKED_UP, NONE, PROMISED
from forebay.engines.scheduling.salts import SaltMemory
from forebay.identity.keys import prompt_tag
from forebay.pool.client.session import PoolSession
from forebay.pool.client.slab import is_promise_for, is_ready_for
from forebay.pool.messages import (
    AWAIT_S,
    KEYS_MAX,
    Ask,
    Cancel,
    Found,
    KeyRun,
    Lookup,
    Promise,
    Ready,
)
from forebay.record.region import short

_GRACE_S: Final = 0.5
# Requests that may be told to ask again at a time. vLLM redoes its own lookup at each ask, 0.08 µs
# per token that it has itself: so many may wait that have few tokens, and few that have many.
_AGAIN_MAX: Final = 64
_AGAIN_FEW: Final = 8
_AGAIN_TOKENS: Final = 32_768
Matched: TypeAlias = tuple[int | None, bool]  # tokens to load (None: ask again), and if it loads
Wait: TypeAlias = Callable[[Callable[[], bool]], None]  # waits for this, within the step's limit


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """When a prefix is worth asking for, and how long a promise may take."""

    min_tokens: int
    lookup_deadline_ms: float
    load_deadline_ms: float
    always_load: bool = False  # load all that is known, however slow: for measurements
    # The engine can be told of a load of several groups that has failed. If not, only what all
    # workers can copy at once is asked for: the engine would end.
    may_fail: bool = True

    @property
    def lookup_s(self) -> float:
        """How long the scheduler waits for the answer to a lookup."""
        return self.lookup_deadline_ms / 1000

    @property
    def promise_s(self) -> float:
        """How long a promise may take; the pool keeps the deadline given to it unless it hangs."""
        return self.load_deadline_ms / 1000 + _GRACE_S


class Lookups:
    """What one engine looks up and asks for. Owned by the scheduler's thread."""

    def __init__(
        self,
        pool: PoolSession,
        shape: Geometry,
        limits: LoadLimits,
        *,
        budget: ErrorBudget,
        counts: Counter[str],
        requests: Mapping[str, TrackedRequest],
    ) -> None:
        self._pool = pool
        self._shape = shape
        self._chunk_lengths = _lengths_of(shape, shape.chunk_blocks)
        self._limits = limits
        self._budget = budget
        self._counts = counts
        self._requests = requests
        self._by_number: dict[int, TrackedRequest] = {}
        self._numbers = 0
        self._reach: dict[int, tuple[int, int]] = {}  # rank → its slab, and the end of its reach
        self._judgement = LoadJudgement(shape, limits.min_tokens, requests)
        # Is told what the pool has of a request: chunks, and how many of them in DRAM.
        self.when_found: Callable[[TrackedRequest, int, int], None] | None = None
        self._salts = SaltMemory()

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    @property
    def estimate(self) -> ThroughputEstimate:
        """The measured speeds of the GPU and the drives."""
        return self._judgement.estimate

    @property
    def must_not_fail(self) -> bool:
        """Whether a failed load would end the engine."""
        return bool(self._shape.local) and not self._limits.may_fail

    def reached(self, told: Mapping[int, tuple[int, int]]) -> None:
        """Workers tell which slab they have, and up to which offset they can copy."""
        self._reach.update(told)

    def look_up(self, tracked: TrackedRequest) -> None:
        """Ask the pool how much of a request it knows."""
        load = tracked.load
        if not (load.is_wanted and load.state is NONE and self._pool.is_joined):
            return
        tracked.extend()
        self._salts.remember(tracked)
        load.is_short = len(tracked.keys) * self._shape.chunk_tokens < self._limits.min_tokens
        if load.is_short or not self._budget.allows(time.monotonic()):
            return
        self._numbers += 1
        load.look_up(self._numbers, time.monotonic())
        self._by_number[load.number] = tracked
        keys = b"".join(map(short, tracked.keys[:KEYS_MAX]))
        root = tracked.root
        local = b"".join(short(tracked.key_of(record)) for record in self._local_records(tracked))
        tag = prompt_tag(root, tracked.request.all_token_ids)
        names = (root.namespace, root.group, keys, local, tag)
        told = (self._judgement.gpu_bytes_a_s, self._pool.salt_hash(root.salt), _awaited(tracked))
        self._pool.post(Lookup(load.number, *names, *told))
        self._counts["lookups"] += 1
        tracked.attribution.lookup = load.number
        tracked.looked_up = tracked.keys[:KEYS_MAX][-1]

    def matched(
        self, tracked: TrackedRequest, computed: int, copying: Mapping[bytes, str], wait: Wait
    ) -> Matched:
        """How many tokens after `computed` can be loaded.

        `copying` are keys that are being copied into the KV cache, each with its request.
        """
        load = tracked.load
        tracked.attribution.asked(time.monotonic())
        if not self._pool.is_joined:
            return self._missed(tracked, Decision.NO_POOL)
        if load.state is NONE:
            self.look_up(tracked)
        if load.state is NONE:
            return self._missed(tracked, Decision.SHORT if load.is_short else Decision.PAUSED)
        if load.state is LOOKED_UP and not load.is_coming:
            wait(lambda: load.state is not LOOKED_UP or load.is_coming)
        if load.state is LOOKED_UP:
            return self._unanswered(tracked, computed)
        if load.known * self._shape.chunk_tokens - computed < self._limits.min_tokens:
            return self._missed(tracked, self._why_too_little(tracked, computed))
        load.computed = computed
        first = computed // self._shape.chunk_tokens
        if self._is_copied_for_another(tracked, first, copying):
            if load.state is PROMISED:
                self.cancel(tracked)  # the other may need the room
            self._counts["asked_again.copying"] += 1
            return None, False
        if load.is_asking and load.first > first:
            # The engine has lost blocks that it had at the first ask: a promise, whether it has
            # come or not, would leave a hole behind what the engine has now.
            self.cancel(tracked)
            return self.matched(tracked, computed, copying, wait)
        return self._promised(tracked, first, wait)

    def cancel(self, tracked: TrackedRequest) -> None:
        """Forget a request's lookup, and have the pool forget it."""
        if tracked.load.number:
            self._pool.post(Cancel(tracked.load.number))
            self._forget(tracked)

    def end(self, tracked: TrackedRequest) -> int:
        """A load has ended: forget its lookup and return its number, still to be released."""
        number = tracked.load.number
        if number:
            self._forget(tracked)
        return number

    def session_changed(self) -> None:
        """Forget what another pool has answered."""
        self._by_number.clear()
        self._judgement = LoadJudgement(self._shape, self._limits.min_tokens, self._requests)

    def answered(self, message: Found | Promise | Ready) -> None:
        """The pool has answered, or brought something."""
        tracked = self._by_number.get(message.request)
        if tracked is None:
            return
        if isinstance(message, Found):
            self._found(tracked, message)
        elif isinstance(message, Promise):
            tracked.load.take_promise(self._checked(tracked, message))
            tracked.load.sources.update(enumerate(message.sources, message.first))
            self._judgement.arrived(tracked, message.first, len(message.offsets))
        else:
            self._judgement.arrived(tracked, message.chunk, 1)
            is_sound = is_ready_for(message, tracked.load.keys, self._pool.generation)
            is_whole = is_sound and message.length in self._lengths_at(tracked, message.chunk)
            if is_whole:
                self._note_raw(tracked, message.chunk, message.length)
            tracked.load.streamed[message.chunk] = message.offset if is_whole else -1
            tracked.load.sources[message.chunk] = message.source

    def _found(self, tracked: TrackedRequest, found: Found) -> None:
        load, before = tracked.load, tracked.load.found
        if not load.may_find:
            return
        if found.coming:
            load.is_coming = True
            return
        if before is not None and found.known < before.known:
            tracked.store.lacks(found.known)  # the pool has lost some: it is stored again
        if before is not None:  # some fields come with the first answer alone
            has, stores = found.has or before.has, found.stores or before.stores
            found = msgspec.structs.replace(found, has=has, stores=stores)
        load.take_found(found, self._servable(tracked, found))
        self._attribute(tracked, is_first=before is None)
        tracked.store.has(found.known)
        if load.known < found.known:
            tracked.store.junction = found.known
        if not found.known:
            self._budget.found_nothing()
        if self.when_found is not None:
            self.when_found(tracked, found.known, found.ready)

    def _attribute(self, tracked: TrackedRequest, *, is_first: bool) -> None:
        """Note what the pool knew; what counts as in DRAM is what was there at the first answer."""
        attribution, load, size = tracked.attribution, tracked.load, self._shape.chunk_tokens
        attribution.found = load.known * size
        if is_first:
            attribution.lookup_s = time.monotonic() - load.looked_up_at
            attribution.ready = load.ready * size

    def _local_records(self, tracked: TrackedRequest) -> list[tuple[int, int]]:
        """The local records that a hit of this request could need, in the order of the answer."""
        local = len(self._shape.local)
        if not local:
            return []
        most = (len(tracked.request.all_token_ids) - 1) // self._shape.chunk_tokens
        chunks = min(len(tracked.keys), most, KEYS_MAX // local)
        return [(group + 1, chunk) for group in range(local) for chunk in range(chunks)]

    def _servable(self, tracked: TrackedRequest, found: Found) -> PrefixHit:
        """The hit that all groups can serve, without the prompt's last token."""
        if not self._shape.local:
            return PrefixHit(found.known)
        records = self._local_records(tracked)
        bits = int.from_bytes(found.has, "little")
        there = {record for at, record in enumerate(records) if bits >> at & 1}
        most = len(records) // len(self._shape.local)
        return longest_hit(self._shape, min(found.known, most), lambda *each: each in there)

    def _why_too_little(self, tracked: TrackedRequest, computed: int) -> Decision:
        """Why there is nothing to load: the pool knows no more than the engine, or hardly more."""
        if not tracked.load.known:
            is_salted = self._salts.is_known_elsewhere(tracked)
            return Decision.OTHER_SALT if is_salted else Decision.UNKNOWN
        return Decision.NOT_WORTH if computed else Decision.TOO_LITTLE

    def _unanswered(self, tracked: TrackedRequest, computed: int) -> Matched:
        """The pool has not answered in time: ask again a little later, or count a miss.

        A pool answers within a tenth of a millisecond, so on a machine with a free core for it no
        miss is caused here. Without one, a step that waits costs less than computing a prompt that
        is known.
        """
        is_coming = tracked.load.is_coming  # in a step or two of the engine that stores it
        most = len(tracked.keys) * self._shape.chunk_tokens
        if is_coming and most - computed < self._limits.min_tokens:  # the engine has it itself
            return self._missed(tracked, Decision.NOT_WORTH)
        limit_s = self._limits.lookup_s + (AWAIT_S if is_coming else 0.0)
        if time.monotonic() < tracked.load.looked_up_at + limit_s:
            self._counts["asked_again.coming" if is_coming else "asked_again.unanswered"] += 1
            return None, False
        self._budget.failed(time.monotonic())
        return self._missed(tracked, Decision.UNANSWERED)

    def _missed(self, tracked: TrackedRequest, decision: Decision) -> Matched:
        """Nothing to load; counted once per request, however often the scheduler asks."""
        tracked.attribution.decision = decision
        if not tracked.load.has_missed:
            tracked.load.has_missed = True
            self._counts[f"misses.{decision}"] += 1
        return 0, False

    def _promised(self, tracked: TrackedRequest, first: int, wait: Wait) -> Matched:
        load, limits = tracked.load, self._limits
        if load.state is FOUND:
            if self.must_not_fail and not self._can_all_copy():
                return self._missed(tracked, Decision.NO_POOL)
            if not self._may_wait(load.computed):
                return self._missed(tracked, Decision.TOO_MANY_ASKING)
            judgement = self._judgement
            known = load.known if limits.always_load else judgement.wanted(tracked, first)
            if known * self._shape.chunk_tokens - load.computed < limits.min_tokens:
                return self._missed(tracked, judgement.why_less(tracked, first, known))
            self._ask(tracked, first, known)
        if load.state is ASKED and not self._judgement.is_reading(load.number):
            wait(lambda: load.state is not ASKED)  # drives may take longer than that
        if load.state is ASKED:
            if time.monotonic() < load.asked_at + limits.promise_s:
                self._counts["asked_again.reading"] += 1
                return None, False
            self.cancel(tracked)
            load.fail()  # a pool that hangs is not asked again for this request
            self._budget.failed(time.monotonic())
            return self._missed(tracked, Decision.NO_PROMISE)
        return self._usable(tracked)

    def _usable(self, tracked: TrackedRequest) -> Matched:
        """How much of its promise a request can load."""
        load = tracked.load
        promise, hit, tokens = load.promise, load.asked_hit, 0
        if promise is not None:
            if self.must_not_fail and not self._can_all_copy(promise.offsets):
                return self._missed(tracked, Decision.NO_POOL)
            records = promise.first + promise.total
            is_usable = records == hit.records or not hit.local  # verify: all that a hit needs
            tokens = min(records, hit.chunks) * self._shape.chunk_tokens if is_usable else 0
        if tokens - load.computed < self._limits.min_tokens:
            is_wrong = tracked.attribution.decision is Decision.WRONG_PROMISE
            return self._missed(tracked, Decision.WRONG_PROMISE if is_wrong else Decision.NO_ROOM)
        return tokens - load.computed, True

    def _ask(self, tracked: TrackedRequest, first: int, known: int) -> None:
        load, now = tracked.load, time.monotonic()
        hit = hit_of(self._shape, known)
        keys = [tracked.key_of(record) for record in hit.local]
        load.ask(first, hit, tracked.keys[:known] + keys if keys else tracked.keys, now)
        self._judgement.asked(tracked, first, known, now)
        most_ms = self._limits.load_deadline_ms
        deadline_ms = self._judgement.deadline_ms(tracked, first, known, most_ms)
        runs: dict[int, list[bytes]] = {}
        for (group, _), key in zip(hit.local, keys, strict=True):
            runs.setdefault(group, []).append(short(key))
        local = [KeyRun(group, b"".join(mine)) for group, mine in runs.items()]
        is_stream = not self.must_not_fail
        self._pool.post(
            Ask(load.number, first, known - first, deadline_ms, stream=is_stream, local=local)
        )

    def _can_all_copy(self, offsets: Iterable[int] = ()) -> bool:
        """Whether every rank can copy from this pool's slab, and from these slots if any."""
        furthest = max(offsets, default=0)
        told = [self._reach.get(rank, (0, 0)) for rank in range(self._shape.ranks)]
        return all(each == self._pool.generation and furthest < stop for each, stop in told)

    def _may_wait(self, computed: int) -> bool:
        """Whether one more request may be told to ask again."""
        asking = [each.load for each in self._by_number.values() if each.load.state is ASKED]
        if len(asking) < _AGAIN_FEW:
            return True
        tokens = computed + sum(load.computed for load in asking)
        return len(asking) < _AGAIN_MAX and tokens <= _AGAIN_TOKENS

    def _is_copied_for_another(
        self, tracked: TrackedRequest, first: int, copying: Mapping[bytes, str]
    ) -> bool:
        """Whether another request is copying what this one lacks, so that the engine soon has it.

        Before a promise its first missing chunk decides; after a promise its last chunk, since then
        the request loads nothing that the other one does not load.
        """
        promise = tracked.load.promise
        at = first
        if promise is not None:
            at = min(promise.first + promise.total, tracked.load.asked_hit.chunks) - 1
        if not first <= at < len(tracked.keys):
            return False
        owner = copying.get(short(tracked.keys[at]))
        return owner is not None and owner != tracked.request.request_id

    def _checked(self, tracked: TrackedRequest, promise: Promise) -> Promise:
        """The promise, or an empty one if it is not for exactly these chunks."""
        is_sound = (
            is_promise_for(promise, tracked.load.keys, self._pool.generation)
            and promise.first == tracked.load.first  # verify: promise begins where asked
            and self._take_lengths(tracked, promise)
        )
        if is_sound:
            return promise
        self._missed(tracked, Decision.WRONG_PROMISE)
        self._budget.failed(time.monotonic())
        return Promise(promise.request, promise.generation, promise.first, 0, [], [], b"")

    def _take_lengths(self, tracked: TrackedRequest, promise: Promise) -> bool:
        """Note which records are raw; False if one has an impossible payload size."""
        chunks = max(0, tracked.load.asked_hit.chunks - promise.first)
        of_chunks, of_local = {*promise.lengths[:chunks]}, promise.lengths[chunks:]
        local = enumerate(of_local, promise.first + chunks)
        is_sound = of_chunks <= {*self._chunk_lengths} and all(
            length in self._lengths_at(tracked, at) for at, length in local
        )
        if is_sound and (of_local or of_chunks - {self._chunk_lengths[0]}):
            for at, length in enumerate(promise.lengths, promise.first):
                self._note_raw(tracked, at, length)
        return is_sound

    def _lengths_at(self, tracked: TrackedRequest, position: int) -> tuple[int, ...]:
        """The payload sizes that the record at a position may have; the second is the raw one."""
        hit = tracked.load.asked_hit
        if position < hit.chunks:
            return self._chunk_lengths
        if position >= hit.records:
            return ()
        number, chunk = hit.record_at(position)
        group = self._shape.groups[number]
        return _lengths_of(group, len(record_blocks(group, chunk)))

    def _note_raw(self, tracked: TrackedRequest, position: int, length: int) -> None:
        """Note that a record is raw, as only its payload size tells."""
        if length in self._lengths_at(tracked, position)[1:]:
            tracked.load.raw.add(position)

    def _forget(self, tracked: TrackedRequest) -> None:
        self._judgement.forget(tracked.load.number)
        self._by_number.pop(tracked.load.number, None)
        tracked.load.forget()


def _lengths_of(group: Geometry, blocks: int) -> tuple[int, ...]:
    """The payload sizes that a record of so many blocks may have; the second is the raw one."""
    whole = group.record_bytes(blocks)
    return (whole, group.record_bytes(blocks, is_raw=True)) if group.is_encoded else (whole,)


def _awaited(tracked: TrackedRequest) -> int:
    """Chunks of a prompt that another engine has just computed, without the last token's."""
    if not tracked.hints.computed_tokens:
        return 0
    tokens = min(tracked.hints.computed_tokens, tracked.request.num_prompt_tokens - 1)
    return max(0, tokens) // tracked.shape.chunk_tokens
