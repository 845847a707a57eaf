"""Which resting engine a waiting request is for. Pure: reads the books of placement alone.

A request waits for its model. Where another engine of the model is awake or waking, a resting one
is wanted only after the request has waited for longer than waking takes: until then waiting costs
less. Of several that rest, the one that is soonest there is wanted.
"""

from collections.abc import Mapping

from forebay.gateway.placement.dispatcher import Dispatcher, ServedModel
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.power import RESTING, Power

_COMING = frozenset({Power.AWAKE, Power.WAKING})


def waiting_since(dispatcher: Dispatcher, engine: EngineState) -> float | None:
    """When the oldest request came that waits for this engine; None: none does."""
    found = [
        min(request.arrived for request in model.queue)
        for model in dispatcher.models.values()
        if len(model.queue) and _is_for(model, engine, dispatcher)
    ]
    return min(found, default=None)


def _is_for(model: ServedModel, engine: EngineState, dispatcher: Dispatcher) -> bool:
    if engine not in model.engines or not engine.is_used:
        return False
    if engine.power not in RESTING:
        return True
    others = [each for each in model.engines if each is not engine and each.is_used]
    if any(each.power in _COMING for each in others):
        oldest = min(request.arrived for request in model.queue)
        if dispatcher.now() - oldest <= engine.wake_s:
            return False
    resting = [each for each in others if each.power in RESTING]
    costs = {each.setting.name: _cost(each, dispatcher.engines) for each in (*resting, engine)}
    return min(costs, key=lambda name: (costs[name], name)) == engine.setting.name


def _cost(engine: EngineState, engines: Mapping[str, EngineState]) -> tuple[bool, float]:
    """What waking an engine costs: another that has work has to end it first."""
    is_taken = any(
        each.setting.gpu == engine.setting.gpu and each is not engine and each.running
        for each in engines.values()
        if each.power is Power.AWAKE
    )
    return is_taken, engine.wake_s
