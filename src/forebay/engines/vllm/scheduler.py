"""The scheduler's half of the connector: decides in vLLM's hooks what to load and to store.

It runs on the thread that schedules, so it never waits longer than `_STEP_WAIT_S` a step for
answers that are on their way, and once more if a chunk whose blocks are free would be lost. It has
no thread and does no I/O except on a non-blocking socket. `Lookups` asks the pool, `EngineLoads`
and `EngineStores` follow what is copied; here they meet vLLM's scheduler.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from forebay.decisions import Decision
from forebay.engines.boundary import Boundary
from forebay.engines.copies.contract import LoadPart
from forebay.engines.geometry import Geometry
from forebay.engines.groups import kept_states
from forebay.engines.reporting.attribution import Attribution, RequestOutcome
from forebay.engines.reporting.endings import Endings
from forebay.engines.reporting.hints import hints_of
from forebay.engines.reporting.reporter import Reporter
from forebay.engines.scheduling.error_budget import ErrorBudget
from forebay.engines.scheduling.loads import EngineLoads
from forebay.engines.scheduling.lookups import LoadLimits, Lookups, Matched
from forebay.engines.scheduling.request import TrackedRequest
from forebay.engines.scheduling.request_load import FAILED
from forebay.engines.scheduling.stores import EngineStores, LocalRecord
from forebay.engines.step import WorkerReport
from forebay.engines.vllm import versions
from forebay.engines.vllm.inputs import Inputs, KeyedRequest
from forebay.engines.vllm.kinds import KINDS
from forebay.engines.vllm.metadata import StepMetadata
from forebay.identity.keys import ChainRoot
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import (
    AnswerEnd,
    Committed,
    Found,
    PoolMessage,
    Promise,
    Ready,
    Reserved,
)
from forebay.record.region import short

if TYPE_CHECKING:
    from forebay.engines.vllm.observing.events import PoolEvents

_HASH_WAIT_S: Final = 0.0003  # wait for one request's inputs, within a step's wait
_STEP_WAIT_S: Final = 0.001  # a long Ask takes 0.4 to 0.8 ms; a lost step costs ten times this
_JOIN_S: Final = 2.0
_log: Final = logging.getLogger("forebay")


class SchedulerConnector:
    """One engine's plans. Owned by the scheduler's thread."""

    def __init__(
        self,
        session: PoolSession,
        shape: Geometry,
        limits: LoadLimits,
        inputs: Inputs | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.budget = ErrorBudget(self.counts)
        self.root: ChainRoot | None = None  # None: the namespace is not known yet, share nothing
        self._pool = session
        self._shape = shape
        each = tuple(group.shard_block_bytes for group in shape.groups)
        self._widest = each if shape.shards > 1 else ()
        self._inputs = inputs or Inputs(None, shape.chunk_tokens)
        self._unidentified: set[str] = set()  # requests whose inputs are being hashed
        self._requests: dict[str, TrackedRequest] = {}
        self._lookups = Lookups(
            session,
            shape,
            limits,
            budget=self.budget,
            counts=self.counts,
            requests=self._requests,
        )
        self._loads = EngineLoads(session, shape, self._lookups, self.counts)
        self._stores = EngineStores(session, shape, self.counts)
        self.reporter = Reporter(session)
        self._endings = Endings()
        self._unsent: list[LoadPart] = []  # parts to tell the workers with the next step
        self._steps = 0  # built number of the last step built
        self._reported_step = 0  # number of the last step that workers have reported
        self._wait_left_s = _STEP_WAIT_S  # what is left of this step's limit
        self._has_listened = False  # the pool's messages were read since the last step was built
        self._taken_counts: Counter[str] = Counter()  # counts as of the last `take_counts`
        self._events: PoolEvents | None = None  # None: nobody wants them

    def publish(self, cache: Any) -> None:
        """From now on make events about the pool's chunks; `cache` is vLLM's KV cache."""
        # Imported only if somebody wants events.
        from forebay.engines.vllm.observing.events import PoolEvents  # noqa: PLC0415

        self._events = PoolEvents(self._shape, cache, self.counts)
        self._stores.when_committed = self._events.stored
        self._lookups.when_found = self._events.found

    def take_events(self) -> list[Any]:
        """What is new in the pool and what is gone, as vLLM's events."""
        return [] if self._events is None else self._events.take()

    # Requests come and go.

    def arrived(self, request: Any) -> None:
        """A new request: ask the pool how much of it is known."""
        if request.request_id in self._requests:
            return
        self._inputs.begin(request)
        if self.root is None:
            self._inputs.forget(request.request_id)
        else:
            self._identify(self.root, request)

    def _identify(self, root: ChainRoot, request: Any) -> None:
        """Look a request up once it is known what its keys cover."""
        found = self._inputs.identify(root, request)
        if found is None:
            self._unidentified.add(request.request_id)
            return
        self._forget_inputs(request.request_id)
        if isinstance(found, KeyedRequest):
            hints = hints_of(getattr(request, "kv_transfer_params", None))
            tracked = TrackedRequest(request, self._shape, found.root, found.parts, hints=hints)
        else:
            self.counts[f"declined.{found}"] += 1
            tracked = TrackedRequest(request, self._shape, root, is_shared=False)
            tracked.attribution.decision = Decision.NOT_SHARED
            tracked.attribution.detail = KINDS[found].why
        self._requests[request.request_id] = tracked
        self._lookups.look_up(tracked)

    def _forget_inputs(self, request_id: str) -> None:
        self._inputs.forget(request_id)
        self._unidentified.discard(request_id)

    def finished(self, request_id: str) -> None:
        """A request has ended; its blocks are free, and whole until the next forward."""
        # After a reset it is no longer tracked, though it may still be being stored.
        self._stores.blocks_freed(request_id)
        self._forget_inputs(request_id)
        tracked = self._requests.get(request_id)
        if tracked is not None and not tracked.load.is_loading:
            del self._requests[request_id]
            self._lookups.cancel(tracked)
            self._ended(tracked)  # last: if it fails, nothing is held for the request

    # The scheduler asks for matches.

    def matched(self, request: Any, computed: int) -> Matched:
        """How many tokens beyond `computed` can be loaded; None: ask again."""
        if request.request_id in self._unidentified and self.root is not None:
            self._wait_for_hash(request.request_id)
            self._identify(self.root, request)
            if request.request_id in self._unidentified:
                self.counts["asked_again.hashing"] += 1
                return None, False
        tracked = self._requests.get(request.request_id)
        if tracked is None or not tracked.load.is_wanted:
            return 0, False
        if tracked.load.state is FAILED:
            return 0, False
        if not self._has_listened:
            self._listen()  # steps are long: what was read meanwhile need not be computed
            self._has_listened = True
        return self._lookups.matched(tracked, computed, self._loads.copying, self._wait)

    def allocated(self, request: Any, tables: Sequence[Sequence[int]], external: int) -> None:
        """The scheduler has given blocks to a request, `external` tokens of them to be loaded."""
        tracked = self._requests.get(request.request_id)
        if tracked is not None and external:
            self._loads.allocated(tracked, tables, external)

    def hit_sources(self, request: Any) -> Counter[str]:
        """The tokens that a load which has just begun takes from each tier, by its name."""
        tracked, names = self._requests.get(request.request_id), self._pool.tiers
        if tracked is None:
            return Counter()
        expected = self._loads.expected(tracked)
        found: Counter[str] = Counter()
        for tier, tokens in expected.items():
            # A pool without lower tiers has all of it in DRAM.
            found[names[min(tier, len(names) - 1)] if names else ""] += tokens
        return +found

    # A step is built.

    def build(self, output: Any, boundary: Boundary) -> StepMetadata:
        """What the workers have to do in this step."""
        step = boundary.call(self._lost_track, lambda: self.begin_step(output))
        # A mistake in what is stored must not lose what the engine waits for.
        boundary.call(self._stores.drop_freed, lambda: self.add_stores(step, output))
        return step

    def begin_step(self, output: Any) -> StepMetadata:
        """The workers' loads of this step, planned first since the engine waits for them."""
        self._steps += 1
        tokens = output.total_num_scheduled_tokens
        self._lookups.estimate.built(time.monotonic(), self._steps, tokens)
        # Before listening: a lost pool would take back what it promised.
        if self._lookups.must_not_fail:
            self._unsent.extend(self._loads.next_parts(self._requests))
        self._listen()
        self._lose(self._inputs.poll())
        for request_id in output.preempted_req_ids or ():
            self._preempted(request_id)
        self._follow(output)
        gone = (*output.finished_req_ids, *(output.preempted_req_ids or ()))
        step = StepMetadata(
            self._steps,
            self._reported_step,
            max(map(self._stores.take_last_step, gone), default=0),
            self._pool.engine,
            self._pool.generation,
            self._widest,
        )
        self._unsent.extend(self._loads.next_parts(self._requests))
        self.reporter.send()
        step.loads, self._unsent = self._unsent, []
        self._wait_left_s, self._has_listened = _STEP_WAIT_S, False  # for the stores
        return step

    def add_stores(self, step: StepMetadata, output: Any) -> None:
        """Add the workers' stores of this step, and offer what it computes for the next one."""
        if self._stores.must_wait:
            self._wait(lambda: not self._stores.must_wait)
        step.stores = self._stores.next_stores(step.number)
        computed = list(self._computed(output))
        completed = self._stores.completed((each, tokens) for each, _, tokens in computed)
        if self.budget.is_spent(time.monotonic()):
            self.counts["stores.paused"] += sum(1 for _ in completed)
        else:
            local = self._stores.local_records(computed)
            self._stores.offer(completed, chain(local, self._states(output)))
        self._wait_left_s = _STEP_WAIT_S  # for the next step's asks

    def reported(
        self, report: WorkerReport | None, received: Iterable[str], failed: set[str]
    ) -> None:
        """Take over what the workers have done."""
        # Without a report from the workers, this may belong to any step so far.
        step = report.step if report is not None else self._steps
        self._reported_step = max(self._reported_step, step)
        if report is not None:
            self._lookups.estimate.reported(time.monotonic(), report.step)
            self._stores.copied(report.stored)
            self._loads.copied(report.over)
            self._lookups.reached(report.reach)
        for request_id in received:
            self._load_ended(request_id, failed)

    @property
    def is_joined(self) -> bool:
        """Whether there is a pool now."""
        return self._pool.is_joined

    @property
    def has_work(self) -> bool:
        """Whether the engine must go on stepping even with nothing to compute."""
        if self._loads.is_landing or self._stores.has_work or self.reporter.has_unsent:
            return True
        return any(tracked.load.progress is not None for tracked in self._requests.values())

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last call."""
        news = {name: n - self._taken_counts[name] for name, n in self.counts.items()}
        self._taken_counts.update(news)
        return {name: n for name, n in news.items() if n}

    def drop_offers(self) -> None:
        """Offer no chunk computed so far: the engine's memory may be overwritten from now on.

        Workers have copied what they were told to copy before they hear of anything later.
        """
        self._stores.drop_offers()

    def reset(self) -> None:
        """Forget everything that was looked up."""
        if self._events is not None:
            self._events.lost()
        for request_id in list(self._unidentified):
            self._forget_inputs(request_id)
        for tracked in list(self._requests.values()):
            if not tracked.load.is_loading:
                self._lookups.cancel(tracked)
                self._requests.pop(tracked.request.request_id)

    def join(self) -> None:
        """Join the pool before the first request, if it answers."""
        self._pool.wait_until_joined(time.monotonic() + _JOIN_S)
        self._pool.poll()  # so that it counts as joined from the start

    def look_after_pool(self) -> None:
        """While the engine is idle: notice that the pool is gone, and join the next one."""
        self.reporter.send()
        self._listen()

    def close(self) -> None:
        """Leave the pool."""
        self._pool.close()
        self._inputs.close()

    # Listening to the pool.

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for the pool, within this step's limit."""
        begun = time.monotonic()
        until = begun + self._wait_left_s
        while self._pool.is_joined and not is_done():
            message = self._pool.take(until)
            if message is None:
                break
            self._dispatch(message)
        self._wait_left_s = max(0.0, self._wait_left_s - (time.monotonic() - begun))

    def _wait_for_hash(self, request_id: str) -> None:
        """Let the hashing thread have the interpreter lock, which busy steps rarely give up."""
        begun = time.monotonic()
        self._inputs.wait(request_id, min(_HASH_WAIT_S, self._wait_left_s))
        self._wait_left_s = max(0.0, self._wait_left_s - (time.monotonic() - begun))

    def _listen(self) -> None:
        """Read all that the pool has said, and notice if its session has changed."""
        self._check_session()
        while (message := self._pool.take(0.0)) is not None:
            self._dispatch(message)
        # A welcome may have come with the rest. Noticed later, it would make us forget lookups that
        # were made in between, and the pool would keep those for ever.
        self._check_session()

    def _check_session(self) -> None:
        if self._pool.poll():
            self._session_changed()

    def _dispatch(self, message: PoolMessage) -> None:
        if isinstance(message, Reserved):
            self._stores.answered(message)
        elif isinstance(message, Committed):
            self.counts["stored.chunks"] += message.count
        elif isinstance(message, Found | Promise | Ready):
            self._lookups.answered(message)

    # Following the scheduler.

    def _follow(self, output: Any) -> None:
        """Follow the block table of every request in this step."""
        for new in output.scheduled_new_reqs:
            tracked = self._requests.get(new.req_id)
            if tracked is not None:
                tracked.tables = [list(ids) for ids in new.block_ids]
                self._is_computed(tracked, new.num_computed_tokens)
            else:
                self.reporter.tell(untracked_outcome(new, Decision.HASHING_WEIGHTS))
        cached = output.scheduled_cached_reqs
        each = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for request_id, added, computed in each:
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            if request_id in cached.resumed_req_ids:
                tracked.tables = [[] for _ in tracked.tables]
                self._is_computed(tracked, computed)
            for table, ids in zip(tracked.tables, added or (), strict=False):
                table.extend(ids)

    def _is_computed(self, tracked: TrackedRequest, computed: int) -> None:
        """The engine computes this request, having `computed` tokens of it: tell its outcome.

        The pool need not keep anything for it.
        """
        if not tracked.attribution.is_told:
            self._tell(
                tracked, tracked.attribution.decision or self._why_unasked(tracked), computed
            )
        if not tracked.load.is_loading:
            self._lookups.cancel(tracked)

    def _why_unasked(self, tracked: TrackedRequest) -> Decision:
        """Why a request is computed although the scheduler never asked about it."""
        if not tracked.load.is_wanted:
            return Decision.NOT_SHARED
        return Decision.UNKNOWN if self._pool.is_joined else Decision.NO_POOL

    def _ended(self, tracked: TrackedRequest) -> None:
        """A request has ended, perhaps before the engine computed anything of it."""
        if not tracked.attribution.is_told:
            self._tell(tracked, Decision.ENDED, len(tracked.request.all_token_ids))
        if tracked.looked_up is not None:
            self._tell_end(tracked, tracked.looked_up)

    def _tell_end(self, tracked: TrackedRequest, key: bytes) -> None:
        """Tell how the answer ended; `key` is the last key of the request's lookup."""
        request, hints = tracked.request, tracked.hints
        answer = request.all_token_ids[request.num_prompt_tokens :]
        ending = self._endings.classify(versions.finish_reason(request), answer)
        after = hints.ended or self._endings.before(tracked.keys)
        self._endings.remember(key, ending)
        salt_hash = self._pool.salt_hash(tracked.root.salt)
        self.reporter.tell_end(
            AnswerEnd(
                short(key),
                ending,
                after,
                len(answer),
                duration_ms=int(1000 * (time.monotonic() - tracked.arrived_at)),
                salt_hash=salt_hash,
                session=hints.session_hash(tracked.root),
                returns_in_s=hints.returns_in_s,
                keep_s=hints.keep_s,
                priority=hints.priority,
                stores=hints.store,
            )
        )

    def _tell(self, tracked: TrackedRequest, decision: Decision, computed: int) -> None:
        """Tell a request's outcome."""
        known, request = tracked.attribution, tracked.request
        known.is_told = True
        if known.asked_at and not known.begun_at:
            known.wait_s = time.monotonic() - known.asked_at
        loaded, speed = known.loaded.total(), self._lookups.estimate.tokens_a_s
        outcome = RequestOutcome(
            request_id=request.request_id,
            decision=decision,
            detail=known.detail,
            lookup=known.lookup,
            prompt_tokens=request.num_prompt_tokens,
            engine_tokens=known.engine_tokens(decision, computed),
            found_tokens=known.found,
            found_dram_tokens=known.ready,
            loaded=self.reporter.loaded_by_tier(known),
            computed_tokens=max(0, len(request.all_token_ids) - computed),
            lookup_ms=known.lookup_s * 1000,
            wait_ms=known.wait_s * 1000,
            load_ms=known.load_s * 1000,
            saved_gpu_ms=loaded / speed * 1000 if speed else 0.0,
            was_preempted=known.was_preempted,
            began_ns=known.began_ns,
            ended_ns=time.time_ns(),
        )
        self.reporter.tell(outcome)

    def _lose(self, adapters: set[bytes]) -> None:
        """Stop loading and storing requests of these adapters, whose files may have changed."""
        if adapters:
            for tracked in self._requests.values():
                if tracked.root.adapter in adapters:
                    tracked.store.is_wanted = tracked.load.is_wanted = False

    def _lost_track(self) -> StepMetadata:
        """A step could not be built, so nobody knows which block is whose: store nothing."""
        self._stores.drop_all()
        for tracked in self._requests.values():
            tracked.store.is_wanted = False
        return StepMetadata()

    def _computed(self, output: Any) -> Iterator[tuple[TrackedRequest, int, int]]:
        """Requests of this step, with the tokens computed before it and after it."""
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, before in computed.items():
            tracked = self._requests.get(request_id)
            if tracked is not None:
                yield tracked, before, before + output.num_scheduled_tokens.get(request_id, 0)

    def _states(self, output: Any) -> Iterator[LocalRecord]:
        """Local records of the states that the engine keeps after this step."""
        for request_id, handed in versions.kept_states(output).items():
            tracked = self._requests.get(request_id)
            if tracked is None or not tracked.store.is_wanted:
                continue
            tracked.extend()
            for record, piece in kept_states(self._shape, handed):
                if record[1] < len(tracked.keys):
                    yield tracked, record, piece

    def _preempted(self, request_id: str) -> None:
        self._stores.blocks_freed(request_id)
        tracked = self._requests.get(request_id)
        if tracked is not None:
            tracked.tables = [[] for _ in tracked.tables]
            decision, detail = tracked.attribution.decision, tracked.attribution.detail
            tracked.attribution = Attribution(was_preempted=True)
            if not tracked.load.is_wanted:
                tracked.attribution.decision, tracked.attribution.detail = decision, detail
            self._lookups.cancel(tracked)
            self._lookups.look_up(tracked)

    def _load_ended(self, request_id: str, failed: set[str]) -> None:
        """The engine continues with a request, whose load has succeeded or failed."""
        tracked = self._requests.get(request_id)
        if tracked is None or not tracked.load.is_loading:
            return
        if self._loads.ended(tracked, failed=request_id in failed):
            self.budget.succeeded()
        else:
            self.budget.failed(time.monotonic())
        if tracked.request.is_finished():
            del self._requests[request_id]
            self._ended(tracked)

    def _session_changed(self) -> None:
        """Another pool, or none: forget what the old one said; copies in flight go on."""
        self.counts["pool.joined" if self._pool.is_joined else "pool.lost"] += 1
        self.budget.succeeded()  # a new pool has its own budget
        _log.warning("pool %s", "joined" if self._pool.is_joined else f"lost: {self._pool.why}")
        if self._events is not None:
            self._events.lost()
        self._lookups.session_changed()
        self._loads.session_changed()
        self._stores.session_changed()
        for tracked in self._requests.values():
            tracked.load.session_changed()
            tracked.store.lacks(0)


def untracked_outcome(new: Any, decision: Decision) -> RequestOutcome:
    """The outcome of a request that an engine schedules and does not share."""
    prompt = len(getattr(new, "prompt_token_ids", None) or ())  # none if it is of embeddings
    now = time.time_ns()
    computed = new.num_computed_tokens
    return RequestOutcome(
        request_id=new.req_id,
        decision=decision,
        prompt_tokens=prompt,
        engine_tokens=computed,
        computed_tokens=max(0, prompt - computed),
        began_ns=now,
        ended_ns=now,
    )
