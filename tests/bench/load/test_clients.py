"""A step: who asks when, what is counted, and when a client has had enough."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.stub_process import StubProcess, stub

from forebay.bench.load.client import Completion, Failed, Target, endpoint_of
from forebay.bench.load.clients import ClientGroup, ClientsResult, FinishedRequest, run_clients
from forebay.bench.load.server import model_of, text_of
from forebay.bench.load.sessions import (
    ChatSession,
    PromptRequest,
    SyntheticText,
    fixed_session,
)
from forebay.bench.load.steps import LoadPlan, LoadRun, _why_end
from forebay.bench.load.workloads import Dialogs, Questions, Stateless
from forebay.bench.result.summary import percentile, step_of
from forebay.errors import StartupError
from forebay.plan.measured import Sla

DIALOGS = Dialogs(turns=3, first_tokens=40, turn_tokens=10, answer_tokens=4, hold=3)


@pytest.fixture(scope="module")
def served() -> Iterator[StubProcess]:
    with stub() as found:
        yield found


def measured(
    served: StubProcess, queue: Iterator[ChatSession], group: ClientGroup
) -> ClientsResult:
    target = Target(endpoint_of(served.url), "stub")
    return asyncio.run(run_clients(target, queue, group, lambda _taken: None))


def test_everyone_has_a_turn_before_anyone_has_the_next(served: StubProcess) -> None:
    queue = DIALOGS.queue(SyntheticText(), 1, "s")
    found = measured(served, queue, ClientGroup(1, hold=3))
    assert [each.turn for each in found.finished] == [0] * 3 + [1] * 3 + [2] * 3
    names = ["dialog 1", "dialog 2", "dialog 3"]
    assert [each.session for each in found.finished] == names * 3
    assert found.skipped == 0


def test_rounds_end_a_step_and_dialogs_go_on_later(served: StubProcess) -> None:
    dialogs = list(DIALOGS.queue(SyntheticText(), 1, "s"))
    first = measured(served, iter(dialogs), ClientGroup(1, hold=3, rounds=2))
    rest = measured(served, iter(dialogs), ClientGroup(1, hold=3))
    assert [each.turn for each in first.finished] == [0] * 3 + [1] * 3
    assert [each.turn for each in rest.finished] == [2] * 3


def test_clients_ask_at_once(served: StubProcess) -> None:
    found = measured(served, Stateless(100, 4, 3).queue(SyntheticText(), 4, "s"), ClientGroup(4))
    assert len(found.finished) == 12
    step = step_of(4, [found])
    assert (step.requests, step.errors, step.output_tokens) == (12, 0, 48)
    assert step.req_s == pytest.approx(12 / found.seconds, rel=1e-3)
    assert step.turns == ()
    assert step.cached_tokens is None


def test_times_are_kept_and_lateness_is_counted(served: StubProcess) -> None:
    workload = Questions(
        rate=20.0,
        turns=2,
        system_tokens=4,
        history_tokens=4,
        question_tokens=4,
        answer_tokens=4,
    )
    queue = list(workload.queue(SyntheticText(), 3, "s"))
    last = max(session._make([""]).at_s for session in queue)  # of the second turn
    found = measured(served, iter(queue), ClientGroup(3))
    assert len(found.finished) == 6
    assert found.seconds >= last
    late = [fixed_session("a", [PromptRequest([], 2), PromptRequest([], 2, at_s=1e-6)])]
    assert measured(served, iter(late), ClientGroup(1)).late == 1


def test_a_pause_is_waited_for_and_time_ends_a_step(served: StubProcess) -> None:
    found = measured(
        served, iter([fixed_session("a", [PromptRequest([], 2, pause_s=0.2)])]), ClientGroup(1)
    )
    assert found.seconds >= 0.2
    long = [fixed_session("a", [PromptRequest([], 2, pause_s=0.1)] * 50)]
    cut = measured(served, iter(long), ClientGroup(1, seconds=0.3))
    assert len(cut.finished) <= 4, "each took 0.1 s at least"
    assert cut.skipped == 50 - len(cut.finished)


def test_a_client_gives_up_and_leaves_the_queue_to_others() -> None:
    with stub("--fault", "500") as broken:
        found = measured(broken, Stateless(10, 2, 9).queue(SyntheticText(), 2, "s"), ClientGroup(2))
        assert len(found.finished) == 6
        assert found.skipped == 12
        assert all(isinstance(each.outcome, Failed) for each in found.finished)
        shared = (fixed_session(str(number), [PromptRequest([], 2)]) for number in range(20))
        found = measured(broken, shared, ClientGroup(2))
    assert (len(found.finished), found.skipped) == (6, 14)
    step = step_of(2, [found])
    assert (step.requests, step.errors, step.errors_by_kind) == (0, 6, {"http_500": 6})
    assert step.tpot_ms is None
    assert step.req_s == 0


def test_a_dialog_goes_on_after_a_failed_turn() -> None:
    with stub("--fault", "429", "--fault-from", "2") as broken:
        found = measured(
            broken, DIALOGS.queue(SyntheticText(), 1, "s"), ClientGroup(1, hold=3, patience=99)
        )
    kinds = [isinstance(each.outcome, Completion) for each in found.finished]
    assert kinds == [True] * 2 + [False] * 7


def test_it_ends_when_the_sla_is_broken_by_far_or_for_long() -> None:
    def run_of(*tpots_s: float) -> LoadRun:
        steps = enumerate(tpots_s, 1)
        return LoadRun(measured={clients: answered(tpot_s) for clients, tpot_s in steps})

    def answered(tpot_s: float) -> ClientsResult:
        answer = Completion("t", 0.1, 0.1 + 10 * tpot_s, 100, 0, 11)
        return ClientsResult((FinishedRequest("d", 0, answer),), 2.0)

    plan = LoadPlan((1, 2, 3, 4, 5), DIALOGS, Sla(tpot_ms=30))
    assert not _why_end(run_of(0.031, 0.031), plan, 2)
    assert _why_end(run_of(0.031, 0.031, 0.031), plan, 3) == "the SLA was long broken at 3 clients"
    assert not _why_end(run_of(0.029, 0.031, 0.031), plan, 3)
    assert not _why_end(run_of(0.119), plan, 1)
    assert _why_end(run_of(0.121), plan, 1) == "the SLA was long broken at 1 client"
    assert not _why_end(run_of(0.121), replace(plan, stops_early=False), 1)


def test_figures_of_known_requests() -> None:
    def finished(turn: int, ttft: float, total: float, tokens: int) -> FinishedRequest:
        return FinishedRequest("d", turn, Completion("t", ttft, total, 100, 40, tokens))

    run = ClientsResult(
        (finished(0, 0.1, 1.1, 11), finished(1, 0.3, 0.5, 2), finished(1, 0.5, 0.5, 1)), 2.0
    )
    step = step_of(3, [run])
    assert step.ttft_ms is not None
    assert step.tpot_ms is not None
    assert (step.ttft_ms.mean, step.ttft_ms.p50) == (300.0, 300.0)
    assert step.tpot_ms.mean == pytest.approx((100 + 200) / 2)  # the third has no second token
    assert (step.req_s, step.output_tok_s) == (1.5, 7.0)
    assert (step.prompt_tokens, step.cached_tokens) == (300, 120)
    assert [(turn.turn, turn.requests) for turn in step.turns] == [(1, 1), (2, 2)]
    both = step_of(3, [run, run])
    assert (both.requests, both.req_s) == (6, 1.5)


def test_percentiles_lie_between_values() -> None:
    values = [float(number) for number in range(101)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert percentile([7.0], 0.99) == 7.0


def test_a_server_tells_its_model_and_the_size_of_words(served: StubProcess) -> None:
    target = Target(endpoint_of(served.url), "stub")
    assert asyncio.run(model_of(target.endpoint)) == "stub"
    assert asyncio.run(text_of(target)).tokens_a_word == pytest.approx(2.0)
    nowhere = endpoint_of(served.url + "/other")
    with pytest.raises(
        StartupError, match="/models does not list the server's models: the server answered"
    ):
        asyncio.run(model_of(nowhere))
