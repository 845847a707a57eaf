"""Decides when a request goes to which engine, queues the others, and counts what each key uses.

Promised: an engine is given a request only when it can start it; each request counts once for its
key, engine and queue, however it ends; nothing waits longer than the file says. Assumed: one event
loop calls everything, and `end` is called for every request that was placed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay.gateway.config import GatewayConfig
from forebay.gateway.placement.choice import Choice, DialogPlaces, Reason, choose
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.keys import KeyRing
from forebay.gateway.placement.prefixes import LikelyPrefix, PrefixMap
from forebay.gateway.placement.queue import RequestQueue
from forebay.gateway.placement.request import (
    Needs,
    NotPlaced,
    Placement,
    RoutedRequest,
    ServedTokens,
)
from forebay.sys.clock import Clock

MODELS_MAX: Final = 1024  # ever listed by engines, the file's own among them
RETRY_AFTER_S: Final = 2  # if an engine has to come up, or requests have to end
_POOL_BYTES: Final = 1 << 30  # of prompts that a host's pool is assumed to hold; it tells no size
_ANSWER_TOKENS: Final = 256.0  # assumed until answers were seen
_BYTES_PER_TOKEN: Final = 4.0  # assumed until answers were seen
_PER_TOKEN: Final = (1.0, 16.0)  # bounds for bytes per token, whatever an answer reports
_LEARN_SHARE: Final = 0.1
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class ServedModel:
    """One model: its engines, the queue of its requests, and what was learnt of its tokens."""

    name: str
    engines: list[EngineState]
    queue: RequestQueue  # shared with all models of its engines, and of their GPUs
    dialogs: DialogPlaces = field(default_factory=DialogPlaces.none)
    pools: dict[str, PrefixMap] = field(default_factory=dict)  # by host
    bytes_per_token: float = _BYTES_PER_TOKEN
    answer_tokens: float = _ANSWER_TOKENS

    @property
    def waiting(self) -> int:
        """How many requests wait for this model."""
        return self.queue.count(self.name)

    @property
    def answering(self) -> list[EngineState]:
        """The engines that may answer: those of role prefill only if no other is used."""
        found = [each for each in self.engines if each.setting.role != "prefill"]
        return found if any(each.is_used for each in found) else self.engines


def _nothing() -> None:
    """Do nothing: nobody wants to be told of changes."""


class Dispatcher:
    """Places requests on engines, or has them wait."""

    def __init__(self, config: GatewayConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or Clock()
        self.keys = KeyRing(config.keys, self._clock.monotonic())
        self.engines = {each.name: EngineState(each) for each in config.engines}
        self.models: dict[str, ServedModel] = {}
        for engine in self.engines.values():
            self._add_model(engine.setting.model, engine)
        self.waiting = 0  # requests, of all models
        self.on_change: Callable[[], None] = _nothing  # called when a request waits or has ended

    @property
    def queues(self) -> list[RequestQueue]:
        """All queues, each once."""
        return list({id(model.queue): model.queue for model in self.models.values()}.values())

    def add_models(self, engine: EngineState) -> None:
        """An engine has listed its models (adapters are models, too): serve them with it."""
        for name in engine.models:
            self._add_model(name, engine)
        self.dispatch(engine)

    async def place(self, request: RoutedRequest) -> Placement | NotPlaced:
        """Wait until an engine can start a new request, or refuse it. Its key must be known."""
        key = self.keys.states[request.key]
        refusal = key.refusal(self._clock.monotonic()) or self._estimate_cost(request)
        if refusal is not None:
            return refusal
        model = self.models[request.model]
        key.requests += 1
        engines = self._ready(request.needs)
        if engines and not self._is_waited_for(engines, model.queue):
            return self._begin(request, model, engines)
        if self._is_full(request.key):
            key.requests -= 1
            return NotPlaced(503, "all engines are busy and the queue is full", RETRY_AFTER_S)
        return await self._wait(request, model)

    def place_again(self, request: RoutedRequest) -> Placement | None:
        """Another engine for a request that failed before its first byte; None if there is none."""
        model = self.models[request.model]
        self._leave(request)
        request.tried.append(request.engine)
        others = [each for each in model.answering if each.setting.name not in request.tried]
        engines = [each for each in others if each.has_room]
        if not engines:  # better to overload an engine than not to answer; never one on trial
            engines = [each for each in others if each.takes_more]
        if not engines:
            request.engine = ""
            return None
        found = self._begin(request, model, engines)
        return found._replace(reason=Reason.RETRY.value)

    def begin_prefill(self, request: RoutedRequest) -> RoutedRequest | None:
        """Choose another engine to compute the prompt of a placed request; None if that is no use.

        Returns a second request, placed on that engine; `end_prefill` ends it.
        """
        engine, model = self.engines[request.engine], self.models[request.model]
        is_worth = request.uncached_tokens >= self._config.prefill_tokens
        if engine.setting.role != "decode" or not is_worth:
            return None
        engines = [
            each
            for each in model.engines
            if each.setting.role == "prefill"
            and each.setting.host == engine.setting.host
            and each.has_room
        ]
        if not engines:
            return None
        first = RoutedRequest(request.key, request.model, request.chain, request.prompt_bytes, 1)
        first.bytes_per_token, first.is_long = request.bytes_per_token, request.is_long
        self._start(first, choose(first, engines, {}, ""))
        self.prefilled(request)  # its own engine does not compute the prompt
        return first

    def end_prefill(self, first: RoutedRequest, *, is_computed: bool) -> None:
        """End what `begin_prefill` returned; the rate is learnt if the prompt was computed."""
        engine = self.engines[first.engine]
        if is_computed and first.was_alone:
            engine.learn(first, self._clock.monotonic() - first.begun)
        self._leave(first)

    def first_token(self, request: RoutedRequest) -> None:
        """The first bytes of a streamed answer came. Ignored if the request has left its engine."""
        if request.engine and request.was_alone and not request.is_prefilled:
            engine = self.engines[request.engine]
            if request.begun >= engine.power_since:  # else the engine slept meanwhile
                engine.learn(request, self._clock.monotonic() - request.begun)
        self.prefilled(request)

    def prefilled(self, request: RoutedRequest) -> None:
        """Count a prompt as computed. Ignored if it is already, or the request is over."""
        if request.engine and not request.is_prefilled:
            engine = self.engines[request.engine]
            engine.prefilled(request)
            if request.is_long:
                self.dispatch(engine)

    def end(self, request: RoutedRequest, served: ServedTokens) -> None:
        """A placed request is over: account for the tokens it took, and free its place."""
        key = self.keys.states[request.key]
        key.requests -= 1
        model = self.models[request.model]
        if served.prompt and request.prompt_bytes:
            seen = min(max(request.prompt_bytes / served.prompt, _PER_TOKEN[0]), _PER_TOKEN[1])
            model.bytes_per_token += _LEARN_SHARE * (seen - model.bytes_per_token)
        if served.answer:
            model.answer_tokens += _LEARN_SHARE * (served.answer - model.answer_tokens)
        took = request.uncached(served) + served.answer
        key.took(took)
        model.queue.correct(request, took - request.cost)
        if request.engine:
            self._leave(request)

    def failed(self, engine: EngineState, why: str, *, is_gone: bool = False) -> None:
        """A request failed through its engine's fault: the engine may go out of use."""
        was_used = engine.is_used
        engine.failed(why, self._clock.monotonic(), is_gone=is_gone)
        if was_used and not engine.is_used:
            _log.warning("engine %s is not used: %s", engine.setting.name, why)
            self.dispatch(engine)

    def dispatch(self, engine: EngineState | None = None) -> None:
        """Start the requests that can start now: in an engine's queue, or in all queues if None."""
        if engine is not None:
            self._dispatch(self.models[engine.setting.model].queue)
            return
        for queue in self.queues:
            self._dispatch(queue)

    def holder(self, needs: Needs) -> EngineState | None:
        """The only engine that can answer such a request; None if any of its model can.

        If the engine that holds the earlier answer is lost, another one can at least say so.
        """
        engine = self.engines.get(needs.engine)
        if engine is None or engine not in self.models[needs.model].engines:
            return None
        return engine if engine.is_used else None

    def now(self) -> float:
        """The time, by the clock that times requests."""
        return self._clock.monotonic()

    def _add_model(self, name: str, engine: EngineState) -> None:
        model = self.models.get(name)
        if model is None:
            if len(self.models) >= MODELS_MAX:
                return
            weights = {key: state.setting.weight for key, state in self.keys.states.items()}
            model = ServedModel(name, [], RequestQueue(weights.__getitem__))
            self.models[name] = model
        if engine not in model.engines:
            model.engines.append(engine)
            self._share_queue(model, engine)

    def _share_queue(self, model: ServedModel, engine: EngineState) -> None:
        """Merge a model's queue with those of all other models of an engine, or of its GPU."""
        shared, gpu = model.queue, engine.setting.gpu
        for queue in self.queues:
            models = [each for each in self.models.values() if each.queue is queue]
            engines = [each for other in models for each in other.engines]
            if queue is shared or not any(
                each is engine or (gpu and each.setting.gpu == gpu) for each in engines
            ):
                continue
            shared.take(queue)
            for other in models:
                other.queue = shared

    def _estimate_cost(self, request: RoutedRequest) -> NotPlaced | None:
        """Estimate what a request will cost; a refusal if no engine of its model is used."""
        model = self.models[request.model]
        if not any(engine.is_used for engine in model.engines):
            return NotPlaced(503, f"no engine of {model.name} is up", RETRY_AFTER_S)
        request.arrived = self._clock.monotonic()
        request.bytes_per_token = model.bytes_per_token
        held = [engine.prefixes.likely(request.chain) for engine in model.engines]
        held += self._pools(model, request).values()
        uncached = (request.prompt_bytes - max(held).size_bytes) / model.bytes_per_token
        request.output_tokens = model.answer_tokens
        if request.answer_tokens_max:
            request.output_tokens = min(model.answer_tokens, request.answer_tokens_max)
        request.cost = uncached + request.output_tokens
        request.is_long = uncached >= self._config.long_prompt_tokens
        return None

    def _is_full(self, key: str) -> bool:
        """Whether no more requests of a key may wait: it must leave as many places to others."""
        room = self._config.queue_requests_max - self.waiting
        if len(self.keys.states) == 1 or room <= 0:
            return room <= 0
        return sum(queue.waiting_of(key) for queue in self.queues) >= room

    def _pools(self, model: ServedModel, request: RoutedRequest) -> dict[str, LikelyPrefix]:
        return {host: held.likely(request.chain) for host, held in model.pools.items()}

    def _ready(self, needs: Needs) -> list[EngineState]:
        """The engines that can start such a request now."""
        holder = self.holder(needs)
        engines = self.models[needs.model].answering if holder is None else [holder]
        if needs.is_long:
            return [engine for engine in engines if engine.takes_long]
        return [engine for engine in engines if engine.has_room]

    def _is_waited_for(self, engines: Sequence[EngineState], queue: RequestQueue) -> bool:
        """Whether any request waits for a model of one of these engines."""
        return any(
            engine in self.models[name].engines for name in queue.models for engine in engines
        )

    async def _wait(self, request: RoutedRequest, model: ServedModel) -> Placement | NotPlaced:
        request.waiting = asyncio.get_running_loop().create_future()
        model.queue.push(request)
        self.waiting += 1
        self._dispatch(
            model.queue
        )  # it may overtake requests that wait, as a short prompt overtakes long ones
        self.on_change()
        placed: Placement | NotPlaced | None = None
        try:
            async with asyncio.timeout(self._config.queue_s):
                placed = await request.waiting
        except TimeoutError:
            if request.engine:  # it was placed at that very moment
                placed = request.waiting.result()
            else:
                placed = NotPlaced(503, "no engine became free in time", RETRY_AFTER_S)
        finally:
            if not request.engine:
                self.keys.states[request.key].requests -= 1
                self.waiting -= model.queue.remove(request)
            elif placed is None:  # the client disconnected while it was being placed
                self.end(request, ServedTokens())
        return placed

    def _dispatch(self, queue: RequestQueue) -> None:
        for name in queue.models:
            if not any(engine.is_used for engine in self.models[name].engines):
                self._refuse_all(name, queue)
        while (request := queue.pop(lambda needs: bool(self._ready(needs)))) is not None:
            self.waiting -= 1
            assert request.waiting is not None
            if not request.waiting.done():  # else its client has just disconnected
                engines = self._ready(request.needs)
                found = self._begin(request, self.models[request.model], engines)
                request.waiting.set_result(found)

    def _refuse_all(self, name: str, queue: RequestQueue) -> None:
        refusal = NotPlaced(503, f"no engine of {name} is up", RETRY_AFTER_S)
        for request in queue.of(name):
            self.waiting -= queue.remove(request)
            assert request.waiting is not None
            if not request.waiting.done():
                request.waiting.set_result(refusal)

    def _begin(
        self, request: RoutedRequest, model: ServedModel, engines: Sequence[EngineState]
    ) -> Placement:
        last = model.dialogs.last_engine(request)
        found: Choice = choose(request, engines, self._pools(model, request), last)
        engine, name = found.engine, found.engine.setting.name
        self._start(request, found)
        model.dialogs.remember(request, name)
        if engine.setting.pool:
            pool = model.pools.setdefault(engine.setting.host, PrefixMap())
            pool.add(request.chain, _POOL_BYTES)
        reason = found.reason
        if engine.wake_s and request.arrived < engine.power_since:
            reason = Reason.WOKEN
        return Placement(name, reason.value, found.expected_s)

    def _start(self, request: RoutedRequest, found: Choice) -> None:
        request.engine, request.begun = found.engine.setting.name, self._clock.monotonic()
        request.uncached_tokens = found.uncached_tokens
        request.loaded_tokens = found.loaded_tokens
        request.is_prefilled = False
        found.engine.begin(request)

    def _leave(self, request: RoutedRequest) -> None:
        engine = self.engines[request.engine]
        engine.end(request)
        if not engine.running:
            engine.idle_since = self._clock.monotonic()
        self.dispatch(engine)
        self.on_change()
