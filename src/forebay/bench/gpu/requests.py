"""The rows' requests: dialogs and stateless prompts, with the clients of `bench serve`.

A word is a token here; see `Vocabulary`. A request that fails is a StartupError.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.variants import RowScale
from forebay.bench.load.client import Completion, Failed
from forebay.bench.load.clients import ClientGroup, ClientsResult, run_clients
from forebay.bench.load.sessions import ChatSession, SyntheticText
from forebay.bench.load.vocabulary import Vocabulary
from forebay.bench.load.workloads import Dialogs, Stateless
from forebay.bench.result.format import LoadStep
from forebay.bench.result.summary import step_of
from forebay.errors import StartupError

TURNS: Final = 6
DIALOG_FIGURES: Final = ("requests_per_s", "ttft_mean_ms", "tpot_mean_ms")
DIALOGS_A_CLIENT: Final = 2
_PROSE: Final = SyntheticText(tokens_a_word=1.0)


class FinalTurn(NamedTuple):
    """The next turn of a dialog: all of it so far, and something new."""

    prompt: list[int]
    known_tokens: int  # of these, said before


def prompt(scale: RowScale, tokens: int, seed: int) -> list[int]:
    """One that has nothing in common with those of other seeds."""
    return Vocabulary(scale.config["vocab_size"]).encode(_PROSE.text(f"{seed}/prompt", tokens))


async def stateless(
    engine: TokenEngine, scale: RowScale, clients: int, seed: int
) -> dict[str, Any]:
    """So many clients, each asking something new as soon as it was answered."""
    alone = Stateless(scale.prompt_tokens, scale.answer_tokens, requests=1)
    queue = alone.queue(_PROSE, scale.requests, str(seed))
    return _figures(await _ask(engine, queue, ClientGroup(clients, patience=1)), clients)


async def dialogs(engine: TokenEngine, scale: RowScale, seed: int) -> dict[str, Any]:
    """The scale's clients, each holding two dialogs turn by turn."""
    queue = _dialogs(scale, DIALOGS_A_CLIENT).queue(_PROSE, scale.clients, str(seed))
    group = ClientGroup(scale.clients, DIALOGS_A_CLIENT, patience=1)
    return _figures(await _ask(engine, queue, group), scale.clients)


def dialog_tokens(scale: RowScale) -> int:
    """Of a dialog after its last turn."""
    return scale.first_tokens + (TURNS - 1) * scale.turn_tokens + TURNS * scale.answer_tokens


async def one_dialog_each(
    engine: TokenEngine, scale: RowScale, clients: int, repeat: int
) -> LoadStep:
    """So many clients, each with one dialog whose next turn comes at once."""
    queue = _dialogs(scale, 1).queue(_PROSE, clients, f"{clients} clients, {repeat}")
    return step_of(clients, [await _ask(engine, queue, ClientGroup(clients, patience=1))])


async def up_to_final_turn(
    engine: TokenEngine, scale: RowScale, count: int, seed: int
) -> list[FinalTurn]:
    """So many dialogs, held at once up to their last turn; that one is left to ask."""
    sessions = list(_dialogs(scale, 1).queue(_PROSE, count, str(seed)))
    measured = await _ask(engine, iter(sessions), ClientGroup(count, rounds=TURNS - 1, patience=1))
    said = _said(measured)
    vocabulary = Vocabulary(scale.config["vocab_size"])
    return [
        FinalTurn(vocabulary.encode(session.request().text), said[session.name, TURNS - 2])
        for session in sessions
    ]


def milliseconds(reply: Completion) -> float:
    """To its first token."""
    return round(reply.ttft_s * 1000, 2)


def _dialogs(scale: RowScale, hold: int) -> Dialogs:
    return Dialogs(TURNS, scale.first_tokens, scale.turn_tokens, scale.answer_tokens, hold=hold)


async def _ask(
    engine: TokenEngine, sessions: Iterator[ChatSession], group: ClientGroup
) -> ClientsResult:
    measured = await run_clients(engine.target, sessions, group, lambda _: None)
    for each in measured.finished:
        if isinstance(each.outcome, Failed):
            raise StartupError(f"a request failed: {each.outcome.why}.")
    return measured


def _said(measured: ClientsResult) -> dict[tuple[str, int], int]:
    """By session and turn, the tokens that were said in it by the end of that turn."""
    return {
        (each.session, each.turn): each.outcome.prompt_tokens + each.outcome.answer_tokens
        for each in measured.finished
        if isinstance(each.outcome, Completion)
    }


def _figures(measured: ClientsResult, clients: int) -> dict[str, Any]:
    """What it took: times in milliseconds."""
    step = step_of(clients, [measured])
    assert step.ttft_ms is not None
    assert step.tpot_ms is not None
    said = _said(measured)
    known = cached = 0
    for each in measured.finished:
        assert isinstance(each.outcome, Completion)
        before = said.get((each.session, each.turn - 1), 0)
        known += before
        # What an engine had of a dialog; it may have more in common than was said before.
        cached += min(each.outcome.cached_tokens or 0, before)
    return {
        "requests": step.requests,
        "seconds": step.seconds,
        "requests_per_s": step.req_s,
        "ttft_mean_ms": step.ttft_ms.mean,
        "ttft_p95_ms": step.ttft_ms.p95,
        "tpot_mean_ms": step.tpot_ms.mean,
        "tpot_p95_ms": step.tpot_ms.p95,
        "cached_share": round(cached / known, 4) if known else 0.0,
        "prompt_tokens": step.prompt_tokens,
    }
