"""Which sleeping engine a waiting request wakes; none where another answers sooner."""

import pytest

from forebay.gateway.config import parse_config
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.engine_state import Condition
from forebay.gateway.placement.power import Power
from forebay.gateway.placement.request import NotPlaced, RoutedRequest
from forebay.gateway.swap.demand import waiting_since
from forebay.testing.clock import ManualClock

WAKE_S = 3.0


def dispatcher(clock: ManualClock, *engines: "tuple[str, str, Power]") -> Dispatcher:
    """Engines by model, GPU and power."""
    tables = [
        {"name": f"e{at}", "model": model, "url": f"http://127.0.0.1:{8000 + at}", "gpu": gpu}
        for at, (model, gpu, _) in enumerate(engines)
    ]
    made = Dispatcher(
        parse_config(
            {
                "engine": [{**table, "swap": "sleep"} for table in tables],
                "gpu": [{"name": gpu} for gpu in sorted({gpu for _, gpu, _ in engines})],
            }
        ),
        clock,
    )
    for at, (_, _, power) in enumerate(engines):
        made.engines[f"e{at}"].set_power(power, "", 0.0)
        made.engines[f"e{at}"].wake_s = WAKE_S
    return made


def wait_for(made: Dispatcher, model: str, holder: str = "") -> None:
    request = RoutedRequest("anonymous", model, holder=holder)
    request.arrived = made.now()
    made.models[model].queue.push(request)


def wanted(made: Dispatcher) -> set[str]:
    return {
        name for name, engine in made.engines.items() if waiting_since(made, engine) is not None
    }


def test_a_request_wants_its_model_s_engine() -> None:
    clock = ManualClock(100.0)
    made = dispatcher(clock, ("a", "g", Power.AWAKE), ("b", "g", Power.ASLEEP))
    assert wanted(made) == set()
    wait_for(made, "b")
    clock.advance(1)
    wait_for(made, "b")
    assert wanted(made) == {"e1"}
    assert waiting_since(made, made.engines["e1"]) == 100.0


@pytest.mark.parametrize("power", [Power.AWAKE, Power.WAKING])
def test_where_another_can_answer_a_second_is_woken_only_if_waiting_costs_more(
    power: Power,
) -> None:
    clock = ManualClock()
    made = dispatcher(clock, ("a", "g", power), ("a", "h", Power.ASLEEP))
    wait_for(made, "a")
    clock.advance(WAKE_S)
    assert wanted(made) == {"e0"}
    clock.advance(0.1)
    assert wanted(made) == {"e0", "e1"}
    made.engines["e0"].condition = Condition.DOWN
    assert wanted(made) == {"e1"}


def test_an_answer_that_is_continued_wakes_the_engine_that_holds_it() -> None:
    made = dispatcher(ManualClock(), ("a", "g", Power.AWAKE), ("a", "h", Power.ASLEEP))
    wait_for(made, "a", holder="e1")
    assert wanted(made) == {"e1"}
    made.engines["e1"].condition = Condition.DOWN
    assert wanted(made) == {"e0"}


def test_of_several_the_one_is_woken_that_is_soonest_there() -> None:
    clock = ManualClock()
    made = dispatcher(
        clock,
        ("b", "g", Power.AWAKE),
        ("a", "g", Power.ASLEEP),
        ("a", "h", Power.ASLEEP),
        ("a", "i", Power.OFF),
    )
    made.engines["e3"].wake_s = 60.0
    wait_for(made, "a")
    assert wanted(made) == {"e1"}
    made.engines["e0"].running = 1  # it would have to end its work first
    assert wanted(made) == {"e2"}
    made.engines["e2"].condition = Condition.DOWN
    assert wanted(made) == {"e3"}


def test_answers_that_break_off_when_an_engine_is_stopped_do_not_count_against_it() -> None:
    made = dispatcher(ManualClock(), ("a", "g", Power.FALLING_ASLEEP), ("b", "g", Power.AWAKE))
    for name, is_used in (("e0", True), ("e1", False)):
        for _ in range(3):
            made.engines[name].failed("it closed the connection", 0.0, is_gone=False)
        assert made.engines[name].is_used is is_used


def test_a_sleeping_engine_is_given_nothing() -> None:
    made = dispatcher(ManualClock(), ("a", "g", Power.ASLEEP), ("b", "g", Power.AWAKE))
    engine = made.engines["e0"]
    assert engine.is_used
    assert not engine.has_room
    assert not engine.takes_long
    request = RoutedRequest("anonymous", "b")
    with pytest.raises(StopIteration) as ended:
        made.place(request).send(None)
    assert not isinstance(ended.value.value, NotPlaced)
    made.models["b"].engines.append(engine)
    assert made.place_again(request) is None, "a retry does not wait for it either"
