"""Which sleeping engine a waiting request is for. Pure: only reads the state of placement.

A request waits for its model. If another engine of the model is awake or waking, one at rest is
wanted only after the request has waited longer than waking takes: until then waiting costs less. Of
several at rest, the one that would be awake soonest is wanted. A request that continues an answer
is for the engine that holds that answer.
"""

from collections.abc import Mapping

from forebay.gateway.placement.dispatcher import Dispatcher, ServedModel
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.power import RESTING, Power

_COMING = frozenset({Power.AWAKE, Power.WAKING})


def waiting_since(dispatcher: Dispatcher, engine: EngineState) -> float | None:
    """When the oldest request that is for this engine came; None if none waits for it."""
    found: list[float] = []
    for model in dispatcher.models.values():
        if engine not in model.engines or not engine.is_used:
            continue
        waiting = [
            (dispatcher.holder(each.needs), each.arrived) for each in model.queue.of(model.name)
        ]
        found += [arrived for holder, arrived in waiting if holder is engine]
        free = [arrived for holder, arrived in waiting if holder is None]
        if free and _is_for(model, engine, dispatcher, min(free)):
            found.append(min(free))
    return min(found, default=None)


def _is_for(model: ServedModel, engine: EngineState, dispatcher: Dispatcher, oldest: float) -> bool:
    if engine.power not in RESTING:
        return True
    others = [each for each in model.engines if each is not engine and each.is_used]
    if any(each.power in _COMING for each in others) and dispatcher.now() - oldest <= engine.wake_s:
        return False
    resting = [each for each in others if each.power in RESTING]
    costs = {each.setting.name: _cost(each, dispatcher.engines) for each in (*resting, engine)}
    return min(costs, key=lambda name: (costs[name], name)) == engine.setting.name


def _cost(engine: EngineState, engines: Mapping[str, EngineState]) -> tuple[bool, float]:
    """The cost of waking an engine: whether another one on its GPU has work, then its wake time."""
    is_taken = any(
        each.setting.gpu == engine.setting.gpu and each is not engine and each.running
        for each in engines.values()
        if each.power is Power.AWAKE
    )
    return is_taken, engine.wake_s
