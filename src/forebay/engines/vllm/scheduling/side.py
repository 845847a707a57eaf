"""The scheduler's side: what to load, what to store, decided in vLLM's own hooks.

It runs on the thread that schedules, so nothing here waits beyond two limits: `_WAIT_S` a request
and `_STEP_WAIT_S` a step, for answers that are on their way. There is no thread and no I/O but a
non-blocking socket.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from forebay.engines.vllm.copies.contract import Load
from forebay.engines.vllm.pages import Geometry
from forebay.engines.vllm.scheduling.budget import ErrorBudget
from forebay.engines.vllm.scheduling.membership import Membership
from forebay.engines.vllm.scheduling.split import Pace, worth_reading
from forebay.engines.vllm.scheduling.storing import Storing
from forebay.engines.vllm.scheduling.tracked import Loading, Tracked
from forebay.engines.vllm.step import Report, Step
from forebay.identity.keys import ChainRoot, proof_of
from forebay.pool.messages import (
    Ask,
    Cancel,
    Committed,
    Found,
    Lookup,
    PoolMessage,
    Promise,
    Ready,
    Release,
    Reserved,
)
from forebay.record.region import short

_WAIT_S: Final = 0.0003
_STEP_WAIT_S: Final = 0.001
_LOAD_S: Final = 30.0  # a load that has not all arrived by then has failed
_JOIN_S: Final = 2.0
_GRACE_S: Final = 0.5
# Requests told to ask again at a time. vLLM redoes its own lookup at each ask, 0.08 µs a token that
# it has itself: many may wait that have nothing, few that have much.
_AGAIN_MAX: Final = 64
_AGAIN_FEW: Final = 8
_AGAIN_TOKENS: Final = 32_768
_log: Final = logging.getLogger("forebay")


class Limits:
    """When a prefix is worth asking for, and how long a promise may take."""

    def __init__(
        self,
        min_tokens: int,
        lookup_deadline_ms: float,
        load_deadline_ms: float,
        *,
        always_load: bool = False,
    ) -> None:
        self.min_tokens = min_tokens
        self.always_load = always_load  # whatever is known, however long it takes: to measure it
        self.lookup_s = lookup_deadline_ms / 1000
        self.load_deadline_ms = int(load_deadline_ms)
        # The pool keeps the deadline; only one that hangs lets it pass.
        self.promise_s = load_deadline_ms / 1000 + _GRACE_S


class SchedulerSide:
    """One engine's plans. Owned by the scheduler's thread."""

    def __init__(self, membership: Membership, shape: Geometry, limits: Limits) -> None:
        self.counts: Counter[str] = Counter()
        self.budget = ErrorBudget()
        self.root: ChainRoot | None = None  # None: the identity is not known yet, share nothing
        self._pool = membership
        self._shape = shape
        self._limits = limits
        self._tracked: dict[str, Tracked] = {}
        self._by_number: dict[int, Tracked] = {}
        self._storing = Storing(membership, shape, self.counts)
        self._pace = Pace()
        self._numbers = 0
        self._wait_left_s = _STEP_WAIT_S
        self._copying: dict[bytes, str] = {}  # keys on their way into the KV cache → request
        self._serials = 0  # of what the workers are told to load
        self._parts: dict[int, tuple[int, list[int]]] = {}  # serial → (lookup, chunks of a stream)
        self._told: Counter[str] = Counter()  # counts as of the last `take_counts`

    # Requests come and go.

    def arrived(self, request: Any) -> None:
        """A request is new: see how much of it is known."""
        if self.root is None or request.request_id in self._tracked:
            return
        tracked = Tracked(request, self._shape, _salted(self.root, request))
        tracked.wants_load = not getattr(request, "skip_reading_prefix_cache", False)
        tracked.wants_store = tracked.wants_load = tracked.wants_load and not _foreign(request)
        if not tracked.wants_store:
            self.counts["requests.declined"] += 1
        self._tracked[request.request_id] = tracked
        self._look_up(tracked)

    def finished(self, request_id: str) -> None:
        """A request has ended; its blocks are free, and whole until the next forward."""
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        self._storing.loosen(request_id)
        if tracked.loading is None:
            self._cancel(tracked)
            del self._tracked[request_id]

    # The scheduler asks.

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """How many tokens beyond `computed` can be loaded; None: ask again."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not tracked.wants_load or tracked.failed:
            return 0, False
        if not self._pool.is_member:
            return self._missed(tracked, "no_pool")
        if tracked.number == 0:
            self._look_up(tracked)
        if tracked.number == 0:
            return self._missed(tracked, "short" if tracked.is_short else "paused")
        if tracked.found is None:
            self._wait(lambda: tracked.found is not None)
        if tracked.found is None:
            return self._unanswered(tracked)
        if self._worth(tracked, computed) == 0:
            return self._missed(tracked, "not_worth" if tracked.found.known else "unknown")
        tracked.computed = computed
        first = computed // self._shape.chunk_tokens
        if self._is_copied_for_another(tracked, first):
            self.counts["asked_again.copying"] += 1
            return None, False
        return self._promised(tracked, first, computed)

    def allocated(self, request: Any, blocks: list[int], external: int) -> None:
        """The scheduler has given blocks to a request, `external` tokens of them to be loaded."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not external:
            return
        size, promise = self._shape.block_tokens, tracked.promise
        from_block, stop_block = tracked.computed // size, (tracked.computed + external) // size
        deadline = time.monotonic() + _LOAD_S
        nothing = Promise(tracked.number, self._pool.generation, 0, 0, [], [], b"")
        loading = Loading(promise or nothing, blocks[:stop_block], from_block, deadline)
        if promise is None or promise.first * self._shape.chunk_tokens > tracked.computed:
            loading.fail(0)  # verify: no hole before what is loaded
        tracked.loading = loading
        tracked.stored = max(tracked.stored, tracked.loading.stop)
        for chunk in range(tracked.loading.first, tracked.loading.stop):
            self._copying[short(tracked.keys[chunk])] = request.request_id
        self.counts["loads"] += 1
        self.counts["loaded.tokens"] += external

    # A step is built.

    def begin_step(self, output: Any) -> Step:
        """What the workers have to load in this step; the engine waits for it: it comes first."""
        self._pace.built(time.monotonic(), output.total_num_scheduled_tokens)
        changed = self._pool.poll()
        if changed:
            self._pool_changed()
        self._drain()
        for request_id in output.preempted_req_ids or ():
            self._preempted(request_id)
        self._follow(output)
        step = Step(self._pool.engine, self._pool.generation)
        step.loads = list(self._loads())
        self._wait_left_s = _STEP_WAIT_S
        return step

    def add_stores(self, step: Step, output: Any) -> None:
        """What the workers have to store in this step, and what to offer for the next."""
        if self._storing.must_hear:
            self._wait(lambda: not self._storing.must_hear)
        step.stores = self._storing.ready()
        completed = self._completed(output)
        if self.budget.is_spent(time.monotonic()):
            self.counts["stores.paused"] += sum(1 for _ in completed)
        else:
            self._storing.offer(completed)

    def heard(self, report: Report | None, received: Iterable[str], failed: set[str]) -> None:
        """What the workers have done."""
        self._pace.heard(time.monotonic())
        if report is not None:
            self._storing.stored(report)
            self._copied(report)
        for request_id in received:
            self._received(request_id, failed)

    @property
    def has_work(self) -> bool:
        """Whether the engine must go on stepping though it has nothing to compute."""
        loading = any(tracked.loading is not None for tracked in self._tracked.values())
        return loading or self._storing.has_work

    def failed(self) -> None:
        """The pool, or we ourselves, did not do what they should."""
        before = self.budget.pauses
        self.budget.failed(time.monotonic())
        if self.budget.pauses > before:
            self.counts["pool.paused"] += 1
            _log.warning("the pool fails too often: it is left alone for a while")

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last call."""
        news = {name: n - self._told[name] for name, n in self.counts.items()}
        self._told.update(news)
        return {name: n for name, n in news.items() if n}

    def reset(self) -> None:
        """Nothing that was looked up before counts any more."""
        for tracked in list(self._tracked.values()):
            if tracked.loading is None:
                self._cancel(tracked)
                self._tracked.pop(tracked.request.request_id)

    def join(self) -> None:
        """Join the pool before the first request, if it is there."""
        until = time.monotonic() + _JOIN_S
        while not self._pool.poll() and time.monotonic() < until:
            self._pool.take(until)
            if self._pool.is_member:
                break

    def close(self) -> None:
        """Leave the pool."""
        self._pool.close()

    # Asking the pool.

    def _look_up(self, tracked: Tracked) -> None:
        if not tracked.wants_load or tracked.number or not self._pool.is_member:
            return
        tracked.extend()
        tracked.is_short = len(tracked.keys) * self._shape.chunk_tokens < self._limits.min_tokens
        if tracked.is_short or not self.budget.allows(time.monotonic()):
            return
        assert self.root is not None
        self._numbers += 1
        tracked.number = self._numbers
        tracked.looked_up_at = time.monotonic()
        self._by_number[tracked.number] = tracked
        keys = b"".join(map(short, tracked.keys))
        self._pool.post(Lookup(tracked.number, self.root.namespace, 0, keys))
        self.counts["lookups"] += 1

    def _unanswered(self, tracked: Tracked) -> tuple[int | None, bool]:
        """The pool has not answered within the limits: wait a little longer, or count a miss.

        It answers within a tenth of a millisecond, so no pure miss comes here on a machine that
        has a core for the pool. Where it has none, a step of an engine that waits costs less than
        a prompt that is computed though it was known.
        """
        if time.monotonic() < tracked.looked_up_at + self._limits.lookup_s:
            self.counts["asked_again.unanswered"] += 1
            return None, False
        self.failed()
        return self._missed(tracked, "unanswered")

    def _missed(self, tracked: Tracked, reason: str) -> tuple[int, bool]:
        """Nothing to load; counted once a request, though the scheduler may ask often."""
        if not tracked.has_missed:
            tracked.has_missed = True
            self.counts[f"misses.{reason}"] += 1
        return 0, False

    def _worth(self, tracked: Tracked, computed: int) -> int:
        """Tokens that the pool knows beyond what the engine has, if they are enough to bother."""
        assert tracked.found is not None
        more = tracked.found.known * self._shape.chunk_tokens - computed
        return more if more >= max(1, self._limits.min_tokens) else 0

    def _promised(self, tracked: Tracked, first: int, computed: int) -> tuple[int | None, bool]:
        if tracked.asked and tracked.asked_first > first:
            # The engine has lost blocks that it had at the first ask: a promise, whether it has
            # come or not, would leave a hole behind what the engine has now.
            self._cancel(tracked)
            return self.matched(tracked.request, computed)
        if not tracked.asked:
            if not self._may_wait(computed):
                return self._missed(tracked, "too_many_asking")
            known = self._wanted(tracked, first, computed)
            if known * self._shape.chunk_tokens - computed < max(1, self._limits.min_tokens):
                return self._missed(tracked, "computed_sooner")
            tracked.asked = True
            tracked.asked_at = time.monotonic()
            tracked.asked_first = first
            self._reads(tracked, first, known)
            deadline_ms = self._limits.load_deadline_ms
            ask = Ask(tracked.number, first, known - first, deadline_ms, stream=True)
            self._pool.post(ask)
        if tracked.promise is None and tracked.number not in self._pace:
            self._wait(lambda: tracked.promise is not None)  # drives take longer than we may wait
        if tracked.promise is None:
            if time.monotonic() < tracked.asked_at + self._limits.promise_s:
                self.counts["asked_again.reading"] += 1
                return None, False
            self._cancel(tracked)
            tracked.failed = True  # a pool that hangs is not asked again for this request
            self.failed()
            return self._missed(tracked, "no_promise")
        tokens = (tracked.promise.first + tracked.promise.total) * self._shape.chunk_tokens
        if tokens - computed < max(1, self._limits.min_tokens):
            return self._missed(tracked, "promise_too_small")
        return tokens - computed, True

    def _may_wait(self, computed: int) -> bool:
        """Whether one more request may be told to ask again."""
        asking = [each for each in self._by_number.values() if each.asked and each.promise is None]
        if len(asking) < _AGAIN_FEW:
            return True
        tokens = computed + sum(each.computed for each in asking)
        return len(asking) < _AGAIN_MAX and tokens <= _AGAIN_TOKENS

    def _wanted(self, tracked: Tracked, first: int, computed: int) -> int:
        """Chunks, from the first of the prompt, that are here before they would be computed."""
        assert tracked.found is not None
        known, near = tracked.found.known, max(first, tracked.found.ready)
        if known > near and not self._limits.always_load:
            size, now = self._shape.chunk_tokens, time.monotonic()
            token_bytes = self._shape.chunk_bytes // size
            far_tokens = known * size - max(computed, near * size)
            waiting = self._waiting_tokens(tracked)
            known = near + worth_reading(far_tokens, token_bytes, waiting, self._pace, now) // size
        return known

    def _waiting_tokens(self, tracked: Tracked) -> int:
        """Tokens of other prompts that the GPU has still to compute."""
        return sum(
            max(0, each.request.num_prompt_tokens - each.request.num_computed_tokens)
            for each in self._tracked.values()
            if each is not tracked and each.loading is None and not each.asked
        )

    def _is_copied_for_another(self, tracked: Tracked, first: int) -> bool:
        """Whether what is missing is on its way into the KV cache: then it is a local hit soon."""
        if tracked.promise is not None or first >= len(tracked.keys):
            return False
        owner = self._copying.get(short(tracked.keys[first]))
        return owner is not None and owner != tracked.request.request_id

    def _cancel(self, tracked: Tracked) -> None:
        if tracked.number:
            self._pool.post(Cancel(tracked.number))
            self._pace.forget(time.monotonic(), tracked.number)
            self._by_number.pop(tracked.number, None)
            tracked.forget_lookup()

    # Hearing the pool.

    def _wait(self, done: Any) -> None:
        """Wait for the pool, within both limits."""
        begun = time.monotonic()
        until = begun + min(_WAIT_S, self._wait_left_s)
        while not done():
            message = self._pool.take(until)
            if message is None:
                break
            self._hear(message)
        self._wait_left_s = max(0.0, self._wait_left_s - (time.monotonic() - begun))

    def _drain(self) -> None:
        while (message := self._pool.take(0.0)) is not None:
            self._hear(message)

    def _hear(self, message: PoolMessage) -> None:
        if isinstance(message, Reserved):
            self._storing.answered(message)
        elif isinstance(message, Committed):
            self.counts["stored.chunks"] += message.count
        elif isinstance(message, Found | Promise | Ready):
            tracked = self._by_number.get(message.request)
            if tracked is not None:
                self._hear_of(tracked, message)

    def _hear_of(self, tracked: Tracked, message: Found | Promise | Ready) -> None:
        if isinstance(message, Found):
            if tracked.asked:
                return  # what was asked for by what was known then
            tracked.found = message
            tracked.stored = max(tracked.stored, message.known)
            if not message.known:
                self.budget.answered()
        elif isinstance(message, Promise):
            tracked.promise = self._checked(tracked, message)
            self._read(tracked, message.first, len(message.offsets))
        else:
            self._read(tracked, message.chunk, 1)
            whole = message.length == self._shape.chunk_bytes
            sound = whole and message.key == tracked.keys[message.chunk]  # verify: streamed key
            tracked.streamed[message.chunk] = message.offset if sound else -1

    def _reads(self, tracked: Tracked, first: int, known: int) -> None:
        """Chunks up to `known` are asked for."""
        far = known - max(first, tracked.found.ready if tracked.found is not None else 0)
        if far > 0:
            size = far * self._shape.chunk_bytes
            self._pace.reads(time.monotonic(), tracked.number, size)

    def _read(self, tracked: Tracked, first: int, count: int) -> None:
        """Chunks have arrived; those that were not in DRAM say how fast the drives are."""
        ready = tracked.found.ready if tracked.found is not None else 0
        far = max(0, first + count - max(first, ready))
        self._pace.arrived(time.monotonic(), tracked.number, far * self._shape.chunk_bytes)

    def _checked(self, tracked: Tracked, promise: Promise) -> Promise:
        """A promise, cut to nothing if it is not for exactly these chunks."""
        stop = promise.first + len(promise.offsets)
        size = self._shape.chunk_bytes
        sound = (
            promise.generation == self._pool.generation
            and promise.first == tracked.asked_first  # verify: promise begins where asked
            and all(length == size for length in promise.lengths)
        )
        keys = tracked.keys[promise.first : stop]
        if promise.proof != proof_of(keys):  # verify: engine proof
            sound = False
        if sound:
            return promise
        self._missed(tracked, "wrong_promise")
        self.failed()
        return Promise(promise.request, promise.generation, promise.first, 0, [], [], b"")

    # Following the scheduler.

    def _follow(self, output: Any) -> None:
        """Keep every request's block table."""
        for new in output.scheduled_new_reqs:
            tracked = self._tracked.get(new.req_id)
            if tracked is not None:
                tracked.blocks = list(new.block_ids[0])
                self._computes(tracked)
        cached = output.scheduled_cached_reqs
        for request_id, added in zip(cached.req_ids, cached.new_block_ids, strict=True):
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            if request_id in cached.resumed_req_ids:
                tracked.blocks = []
                self._computes(tracked)
            tracked.blocks += added[0] if added else []

    def _computes(self, tracked: Tracked) -> None:
        """The engine computes this request: the pool need not keep anything for it."""
        if tracked.loading is None:
            self._cancel(tracked)

    def _completed(self, output: Any) -> Iterable[Tracked]:
        """Requests that will have a new whole chunk computed when this step is done."""
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        size, now = self._shape.chunk_tokens, time.monotonic()
        for request_id, before in computed.items():
            tracked = self._tracked.get(request_id)
            if tracked is None or not tracked.wants_store or now < tracked.offer_at:
                continue
            done = before + output.num_scheduled_tokens.get(request_id, 0)
            tracked.extend()
            whole = min(done // size, len(tracked.keys))
            if whole > max(tracked.stored, tracked.offered):
                tracked.offered = whole
                yield tracked

    def _preempted(self, request_id: str) -> None:
        tracked = self._tracked.get(request_id)
        if tracked is not None:
            self._storing.loosen(request_id)
            tracked.blocks = []
            self._cancel(tracked)
            self._look_up(tracked)

    def _loads(self) -> Iterable[Load]:
        now = time.monotonic()
        for request_id, tracked in list(self._tracked.items()):
            loading = tracked.loading
            if loading is None or loading.is_told:
                continue
            loading.take(tracked.streamed)
            if now > loading.deadline:
                loading.fail_missing()
            pieces, chunks = loading.take_pieces(self._shape)
            if pieces or loading.is_told:
                self._serials += 1
                last, failed = loading.is_told, loading.failed_blocks(self._shape)
                if not last:
                    self._parts[self._serials] = (tracked.number, chunks)
                yield Load(request_id, loading.generation, pieces, last, failed, self._serials)

    def _copied(self, report: Report) -> None:
        """Parts of streams are in the KV cache: their slots make room for what follows."""
        for serial in report.copied:
            number, chunks = self._parts.pop(serial, (0, []))
            if number in self._by_number:
                self._pool.post(Release(number, chunks))

    def _received(self, request_id: str, failed: set[str]) -> None:
        """A load has ended, well or not."""
        tracked = self._tracked.get(request_id)
        if tracked is None or tracked.loading is None:
            return
        loading, tracked.loading = tracked.loading, None
        self._copying = {k: owner for k, owner in self._copying.items() if owner != request_id}
        if loading.failed or request_id in failed:
            tracked.failed = True
            tracked.stored = tracked.offered = min(tracked.stored, loading.stop)
            self.counts["misses.load_failed"] += 1
            self.failed()
        else:
            self.budget.succeeded()
        if tracked.number:
            self._pool.post(Release(tracked.number, []))
            self._pace.forget(time.monotonic(), tracked.number)
            self._by_number.pop(tracked.number, None)
            tracked.forget_lookup()
        if tracked.request.is_finished():
            del self._tracked[request_id]

    def _pool_changed(self) -> None:
        """A pool came or went: what the old one said means nothing; loads in flight go on."""
        self.counts["pool.joined" if self._pool.is_member else "pool.lost"] += 1
        self.budget.succeeded()  # a new pool has its own budget
        _log.warning("pool %s", "joined" if self._pool.is_member else f"lost: {self._pool.why}")
        self._by_number.clear()
        self._parts.clear()
        self._pace = Pace()
        self._storing.forget()
        for tracked in self._tracked.values():
            tracked.forget_lookup()
            tracked.stored = tracked.offered = 0
            if tracked.loading is not None:
                tracked.loading.fail_missing()


def _salted(root: ChainRoot, request: Any) -> ChainRoot:
    salt = getattr(request, "cache_salt", None) or ""
    return ChainRoot(root.namespace, root.chunk_tokens, root.group, root.realm, salt)


def _foreign(request: Any) -> bool:
    """Whether more than token ids shapes this request's KV, in a way that is not keyed yet."""
    return bool(
        request.lora_request is not None
        or request.mm_features
        or getattr(request, "prompt_embeds", None) is not None
        or request.prompt_token_ids is None
        or request.pooling_params is not None
    )
