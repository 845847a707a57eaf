"""How much the demo does: as much as fits its time at this machine's speed.

When a dialog comes back, the engine's own cache must have lost it, or there would be nothing to
compare. The turns of the other dialogs take its place, so `LEAST_DIALOGS` of them must not fit:
their histories have a minimum length. Above that, histories grow first, then the number of dialogs.
"""

from typing import Final, NamedTuple

from forebay.bench.load.workloads import Dialogs

LEAST_DIALOGS: Final = 3
MOST_DIALOGS: Final = 5
TURN_TOKENS: Final = 32
ANSWER_TOKENS: Final = 8
_TURNS: Final = (4, 3)  # the last one comes after the restart; fewer if time is short
_TEMPLATE_TOKENS: Final = 24  # around a question and its answer
_BLOCK_TOKENS: Final = 64  # a cache ends within a block, and keeps one for itself
# A turn that returns: what the pool cannot have (the question, part of a chunk), and the load.
_RETURN_TOKENS: Final = 128
_RETURN_S: Final = 0.2
_LONGER: Final = 0.8  # of the speed measured on a short prompt, since longer ones are slower
_PAUSE_S: Final = 0.2  # after each turn, until the pool has written
_STOP_S: Final = 5.0  # an engine and a pool end before they start again
_CONTEXT_TOKENS: Final = 1536
_LARGE_CONTEXT_TOKENS: Final = 4096  # where a machine computes it soon enough
_MANY_CORES: Final = 8


class EngineSpeed(NamedTuple):
    """The measured speed of one engine, alone on the machine."""

    prompt_tokens_per_s: float
    token_s: float  # a token after the first
    start_s: float  # from nothing until it answers


class DemoSize(NamedTuple):
    """The size of a demo, and whether it fits its time."""

    dialogs: Dialogs
    expected_s: float  # from now to the end
    fits: bool  # otherwise this is the least that shows anything


def context_tokens(cores: int, *, has_gpu: bool) -> int:
    """The maximum length of a dialog; chosen before anything is measured."""
    return _LARGE_CONTEXT_TOKENS if has_gpu or cores >= _MANY_CORES else _CONTEXT_TOKENS


def cache_tokens(context: int) -> int:
    """The size of an engine's KV cache: it holds one context and no more."""
    return context + _BLOCK_TOKENS


def sized(speed: EngineSpeed, context: int, left_s: float) -> DemoSize:
    """The largest demo that ends within `left_s`, else the smallest possible one."""
    least = least_tokens(context)
    for turns in _TURNS:
        most = _most_tokens(context, turns)
        if seconds_of(_dialogs(LEAST_DIALOGS, turns, least), speed) > left_s:
            continue
        count, tokens = LEAST_DIALOGS, least
        while tokens < most and seconds_of(_dialogs(count, turns, tokens + 16), speed) <= left_s:
            tokens = min(most, tokens + 16)
        while (
            count < MOST_DIALOGS and seconds_of(_dialogs(count + 1, turns, tokens), speed) <= left_s
        ):
            count += 1
        dialogs = _dialogs(count, turns, tokens)
        return DemoSize(dialogs, seconds_of(dialogs, speed), fits=True)
    dialogs = _dialogs(LEAST_DIALOGS, _TURNS[-1], least)
    return DemoSize(dialogs, seconds_of(dialogs, speed), fits=False)


def least_tokens(context: int) -> int:
    """The minimum length of a history, so that the other dialogs together fill the cache."""
    return -(-cache_tokens(context) // (LEAST_DIALOGS - 1))


def seconds_of(dialogs: Dialogs, speed: EngineSpeed) -> float:
    """The time that these dialogs take on both engines, with the restart."""
    rate = _LONGER * speed.prompt_tokens_per_s
    answer_s = dialogs.answer_tokens * speed.token_s + _PAUSE_S
    computed_s = dialogs.first_tokens / rate + answer_s
    loaded_s = _RETURN_TOKENS / rate + _RETURN_S
    computed = dialogs.hold * (dialogs.turns + 1)  # all turns alone, and first ones with the pool
    returned = dialogs.hold * (dialogs.turns - 1)
    once_more = dialogs.hold * 2  # from the pool and from vLLM's own cache, a token each
    turns_s = computed * computed_s + returned * (loaded_s + answer_s) + once_more * loaded_s
    return turns_s + speed.start_s + _STOP_S


def _most_tokens(context: int, turns: int) -> int:
    per_turn = TURN_TOKENS + ANSWER_TOKENS + _TEMPLATE_TOKENS
    return context - turns * per_turn - _BLOCK_TOKENS


def _dialogs(count: int, turns: int, tokens: int) -> Dialogs:
    return Dialogs(
        hold=count,
        turns=turns,
        first_tokens=tokens,
        turn_tokens=TURN_TOKENS,
        answer_tokens=ANSWER_TOKENS,
    )
