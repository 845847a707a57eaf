"""The scheduler's side: what to load, what to store, decided in vLLM's own hooks.

It runs on the thread that schedules, so nothing here waits beyond one limit, for answers that are
on their way: `_STEP_WAIT_S` a step for all that is asked, and once more if a chunk would be lost
whose blocks are free. There is no thread and no I/O but a non-blocking socket. What is asked for is
`asking`'s, what is being loaded `loads`', what is being stored `storing`'s; here they meet the
scheduler and the pool.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from forebay.engines.boundary import Boundary
from forebay.engines.geometry import Geometry
from forebay.engines.scheduling.error_budget import ErrorBudget
from forebay.engines.scheduling.loads import EngineLoads
from forebay.engines.scheduling.lookups import LoadLimits, Lookups, Matched
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.scheduling.stores import EngineStores
from forebay.engines.step import WorkerReport
from forebay.engines.vllm.metadata import StepMetadata
from forebay.identity.keys import ChainRoot
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Committed, Found, PoolMessage, Promise, Ready, Reserved

_STEP_WAIT_S: Final = 0.001  # a long ask takes 0.4 to 0.8 ms; a step that is lost costs ten of it
_JOIN_S: Final = 2.0
_log: Final = logging.getLogger("forebay")


class SchedulerConnector:
    """One engine's plans. Owned by the scheduler's thread."""

    def __init__(self, session: PoolSession, shape: Geometry, limits: LoadLimits) -> None:
        self.counts: Counter[str] = Counter()
        self.budget = ErrorBudget()
        self.root: ChainRoot | None = None  # None: the identity is not known yet, share nothing
        self._pool = session
        self._shape = shape
        self._tracked: dict[str, TrackedRequest] = {}
        self._asking = Lookups(
            session,
            shape,
            limits,
            budget=self.budget,
            counts=self.counts,
            tracked=self._tracked,
        )
        self._asking.failed, self._asking.wait = self.failed, self._wait
        self._loads = EngineLoads(session, shape, self._asking, self.counts)
        self._storing = EngineStores(session, shape, self.counts)
        self._steps = 0  # built so far
        self._wait_left_s = _STEP_WAIT_S
        self._heard = 0  # the last step of which the workers have told
        self._is_fresh = False  # the pool was heard since this step is being built
        self._told: Counter[str] = Counter()  # counts as of the last `take_counts`

    # Requests come and go.

    def arrived(self, request: Any) -> None:
        """A request is new: see how much of it is known."""
        if self.root is None or request.request_id in self._tracked:
            return
        tracked = TrackedRequest(request, self._shape, _salted(self.root, request))
        tracked.wants_load = not getattr(request, "skip_reading_prefix_cache", False)
        tracked.wants_store = tracked.wants_load = tracked.wants_load and not _foreign(request)
        if not tracked.wants_store:
            self.counts["requests.declined"] += 1
        self._tracked[request.request_id] = tracked
        self._asking.look_up(tracked)

    def finished(self, request_id: str) -> None:
        """A request has ended; its blocks are free, and whole until the next forward."""
        self._storing.loosen(request_id)  # after a reset it is not tracked, and yet being stored
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        if tracked.loading is None:
            self._asking.cancel(tracked)
            del self._tracked[request_id]

    # The scheduler asks.

    def matched(self, request: Any, computed: int) -> Matched:
        """How many tokens beyond `computed` can be loaded; None: ask again."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not tracked.wants_load or tracked.failed:
            return 0, False
        if not self._is_fresh:
            self._listen()  # a step is long: what was read meanwhile need not be computed
            self._is_fresh = True
        return self._asking.matched(tracked, computed, self._loads.copying)

    def allocated(self, request: Any, blocks: list[int], external: int) -> None:
        """The scheduler has given blocks to a request, `external` tokens of them to be loaded."""
        tracked = self._tracked.get(request.request_id)
        if tracked is not None and external:
            self._loads.allocated(tracked, blocks, external)

    # A step is built.

    def build(self, output: Any, boundary: Boundary) -> StepMetadata:
        """What the workers have to do in this step."""
        step = boundary.call(self._lost_track, lambda: self.begin_step(output))
        # A mistake in what is stored must not lose what the engine waits for.
        drop_loose = partial(self._storing.drop, all_of_it=False)
        boundary.call(drop_loose, lambda: self.add_stores(step, output))
        return step

    def begin_step(self, output: Any) -> StepMetadata:
        """What the workers have to load in this step; the engine waits for it: it comes first."""
        self._steps += 1
        self._asking.pace.built(time.monotonic(), self._steps, output.total_num_scheduled_tokens)
        self._listen()
        for request_id in output.preempted_req_ids or ():
            self._preempted(request_id)
        self._follow(output)
        gone = (*output.finished_req_ids, *(output.preempted_req_ids or ()))
        freed = max(map(self._storing.freed, gone), default=0)
        step = StepMetadata(
            self._steps, self._heard, freed, self._pool.engine, self._pool.generation
        )
        step.loads = list(self._loads.told(self._tracked))
        self._wait_left_s, self._is_fresh = _STEP_WAIT_S, False  # for the stores
        return step

    def add_stores(self, step: StepMetadata, output: Any) -> None:
        """What the workers have to store in this step, and what to offer for the next."""
        if self._storing.must_hear:
            self._wait(lambda: not self._storing.must_hear)
        step.stores = self._storing.ready(step.number)
        completed = self._storing.completed(self._computed(output))
        if self.budget.is_spent(time.monotonic()):
            self.counts["stores.paused"] += sum(1 for _ in completed)
        else:
            self._storing.offer(completed)
        self._wait_left_s = _STEP_WAIT_S  # for the next step's asks

    def heard(self, report: WorkerReport | None, received: Iterable[str], failed: set[str]) -> None:
        """What the workers have done."""
        # Workers that do not say in which step they are may have told of anything.
        self._heard = max(self._heard, report.step if report is not None else self._steps)
        if report is not None:
            self._asking.pace.heard(time.monotonic(), report.step)
            self._storing.stored(report.stored, report.missed)
            self._loads.over(report.over)
        for request_id in received:
            self._received(request_id, failed)

    @property
    def is_joined(self) -> bool:
        """Whether there is a pool."""
        return self._pool.is_joined

    @property
    def has_work(self) -> bool:
        """Whether the engine must go on stepping though it has nothing to compute."""
        loading = any(tracked.loading is not None for tracked in self._tracked.values())
        return loading or self._loads.is_landing or self._storing.has_work

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
                self._asking.cancel(tracked)
                self._tracked.pop(tracked.request.request_id)

    def join(self) -> None:
        """Join the pool before the first request, if it is there."""
        self._pool.wait_until_joined(time.monotonic() + _JOIN_S)
        self._pool.poll()  # that it is joined is known from the start

    def close(self) -> None:
        """Leave the pool."""
        self._pool.close()

    # Hearing the pool.

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait for the pool, within the limit."""
        begun = time.monotonic()
        until = begun + self._wait_left_s
        while not done():
            message = self._pool.take(until)
            if message is None:
                break
            self._hear(message)
        self._wait_left_s = max(0.0, self._wait_left_s - (time.monotonic() - begun))

    def _listen(self) -> None:
        """Hear all that the pool has said, and whether it is still the same one."""
        if self._pool.poll():
            self._pool_changed()
        while (message := self._pool.take(0.0)) is not None:
            self._hear(message)

    def _hear(self, message: PoolMessage) -> None:
        if isinstance(message, Reserved):
            self._storing.answered(message)
        elif isinstance(message, Committed):
            self.counts["stored.chunks"] += message.count
        elif isinstance(message, Found | Promise | Ready):
            self._asking.heard(message)

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

    def _computes(self, tracked: TrackedRequest) -> None:
        """The engine computes this request: the pool need not keep anything for it."""
        if tracked.loading is None:
            self._asking.cancel(tracked)

    def _lost_track(self) -> StepMetadata:
        """A step could not be built: whose block is whose is not known any more."""
        self._storing.drop(all_of_it=True)
        for tracked in self._tracked.values():
            tracked.wants_store = False
        return StepMetadata()

    def _computed(self, output: Any) -> Iterator[tuple[TrackedRequest, int]]:
        """Requests of this step, with the tokens that will be computed when it is done."""
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, before in computed.items():
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                yield tracked, before + output.num_scheduled_tokens.get(request_id, 0)

    def _preempted(self, request_id: str) -> None:
        self._storing.loosen(request_id)
        tracked = self._tracked.get(request_id)
        if tracked is not None:
            tracked.blocks = []
            self._asking.cancel(tracked)
            self._asking.look_up(tracked)

    def _received(self, request_id: str, failed: set[str]) -> None:
        """A load has ended, well or not."""
        tracked = self._tracked.get(request_id)
        if tracked is None or tracked.loading is None:
            return
        if self._loads.received(tracked, failed=request_id in failed):
            self.budget.succeeded()
        else:
            self.failed()
        if tracked.request.is_finished():
            del self._tracked[request_id]

    def _pool_changed(self) -> None:
        """A pool came or went: what the old one said means nothing; copies in flight go on."""
        self.counts["pool.joined" if self._pool.is_joined else "pool.lost"] += 1
        self.budget.succeeded()  # a new pool has its own budget
        _log.warning("pool %s", "joined" if self._pool.is_joined else f"lost: {self._pool.why}")
        self._asking.pool_changed()
        self._loads.pool_changed()
        self._storing.forget()
        for tracked in self._tracked.values():
            tracked.forget_lookup()
            tracked.stored = tracked.offered = 0
            if tracked.loading is not None:
                tracked.loading.fail_untold()


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
