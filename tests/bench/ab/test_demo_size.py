"""The demo is as large as its time and this machine's speed allow, and never too small to show."""

import pytest

from forebay.bench.ab.demo_size import (
    LEAST_DIALOGS,
    MOST_DIALOGS,
    EngineSpeed,
    cache_tokens,
    context_tokens,
    least_tokens,
    seconds_of,
    sized,
)

SPEEDS = [20.0, 100.0, 180.0, 400.0, 1500.0, 20_000.0]
CONTEXTS = [context_tokens(2, has_gpu=False), context_tokens(32, has_gpu=False)]


def speed(rate: float) -> EngineSpeed:
    return EngineSpeed(rate, token_s=0.03, start_s=30.0)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("rate", SPEEDS)
@pytest.mark.parametrize("left_s", [10.0, 60.0, 130.0, 600.0])
def test_it_fits_or_is_the_least(rate: float, context: int, left_s: float) -> None:
    found = sized(speed(rate), context, left_s)
    dialogs = found.dialogs
    assert found.expected_s == seconds_of(dialogs, speed(rate))
    if found.fits:
        assert found.expected_s <= left_s
    else:
        assert (dialogs.hold, dialogs.first_tokens) == (LEAST_DIALOGS, least_tokens(context))
        assert dialogs.turns == 3


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("rate", SPEEDS)
def test_a_dialog_is_lost_to_the_engine_when_it_returns_and_never_too_long(
    rate: float, context: int
) -> None:
    dialogs = sized(speed(rate), context, 130.0).dialogs
    assert (dialogs.hold - 1) * dialogs.first_tokens >= cache_tokens(context)
    per_turn = dialogs.turn_tokens + dialogs.answer_tokens
    assert dialogs.first_tokens + dialogs.turns * per_turn < context


def test_a_turn_comes_back_before_the_restart_and_one_after_it() -> None:
    assert all(sized(speed(rate), CONTEXTS[0], 130.0).dialogs.turns >= 3 for rate in SPEEDS)


def test_more_time_or_a_faster_machine_gives_more() -> None:
    def tokens(rate: float, left_s: float) -> int:
        dialogs = sized(speed(rate), CONTEXTS[0], left_s).dialogs
        return dialogs.hold * dialogs.turns * dialogs.first_tokens

    assert tokens(180.0, 130.0) <= tokens(180.0, 200.0) <= tokens(400.0, 200.0)
    fast = sized(speed(20_000.0), CONTEXTS[0], 600.0).dialogs
    assert (fast.hold, fast.turns) == (MOST_DIALOGS, 4)
