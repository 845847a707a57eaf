"""Workloads: the same for the same seed, shared exactly where they say so."""

from dataclasses import replace
from itertools import pairwise

import pytest

from forebay.bench.load.multi_round import MultiRoundQuestions
from forebay.bench.load.sessions import ChatSession, PromptRequest, SyntheticText
from forebay.bench.load.workloads import Dialogs, Documents, Questions, Stateless, Workload
from forebay.errors import SettingsError

PROSE = SyntheticText(2.0)
SMALL: list[Workload] = [
    Dialogs(turns=3, first_tokens=100, turn_tokens=20, answer_tokens=4, hold=2),
    Questions(turns=3, system_tokens=50, history_tokens=100),
    MultiRoundQuestions(shared_system_prompt=50, user_history_prompt=100, time=20.0),
    Documents(documents=3, document_tokens=200, requests=5),
    Stateless(prompt_tokens=100, requests=3),
]


def asks(session: ChatSession) -> list[PromptRequest]:
    found = []
    while session.remaining():
        found.append(session.request())
        session.add_answer("so be it")
    return found


def everything(workload: Workload, clients: int, seed: str) -> list[list[PromptRequest]]:
    return [asks(session) for session in workload.queue(PROSE, clients, seed)]


def tokens(ask: PromptRequest) -> int:
    return 2 * sum(len(message["content"].split()) for message in ask.messages)


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
def test_the_same_seed_says_the_same_and_another_does_not(workload: Workload) -> None:
    one, same = everything(workload, 3, "a"), everything(workload, 3, "a")
    assert one == same
    openings = {ask.messages[-1]["content"][:40] for each in one for ask in each}
    other = {
        ask.messages[-1]["content"][:40] for each in everything(workload, 3, "b") for ask in each
    }
    assert not openings & other
    assert workload.options()["name"] == workload.name


def test_prose_has_as_many_tokens_as_asked_for() -> None:
    text = SyntheticText(2.5).text("seed", 1000)
    assert len(text.split()) == 400
    assert SyntheticText(2.5).text("seed", 1000) == text
    assert SyntheticText(2.5).text("other", 1000)[:40] != text[:40]


def test_a_dialog_grows_by_what_was_said_to_5500_tokens() -> None:
    dialog = next(iter(Dialogs().queue(PROSE, 1, "s")))
    answer = " ".join(["word"] * 125)  # 250 tokens
    sizes = []
    first = dialog.request()
    while dialog.remaining():
        ask = dialog.request()
        assert ask.turn == dialog.turn
        sizes.append(tokens(ask))
        assert ask.messages[0] == first.messages[0]
        dialog.add_answer(answer)
    assert len(sizes) == 6
    assert sizes == sorted(sizes)
    assert sizes[-1] + 250 == 5500
    assert dialog.request(5).messages[-2] == {"role": "assistant", "content": answer}


def test_every_client_has_its_dialogs() -> None:
    names = [session.name for session in Dialogs(hold=3).queue(PROSE, 4, "s")]
    assert len(set(names)) == len(names) == 12


def test_questions_share_the_system_prompt_and_have_their_times() -> None:
    found = everything(Questions(rate=4.0, turns=3), 5, "s")
    assert len({ask.messages[0]["content"] for user in found for ask in user}) == 1
    assert len({user[0].messages[1]["content"][:40] for user in found}) == 5
    times = sorted(ask.at_s for user in found for ask in user)
    assert times[0] == 0.0
    assert 15 / 4 / 3 < times[-1] < 15 / 4 * 3
    for user in found:
        assert [ask.at_s for ask in user] == sorted(ask.at_s for ask in user)
        assert 0.95 < tokens(user[0]) / (1000 + 10_000 + 50) < 1.05


def test_documents_are_shared_with_the_template_alone() -> None:
    plain = Documents(documents=5, document_tokens=400, requests=40)
    shared = [
        len({ask.messages[0]["content"][:300] for user in found for ask in user})
        for found in (
            everything(plain, 2, "s"),
            everything(replace(plain, is_template=True), 2, "s"),
        )
    ]
    assert shared[0] == 80
    assert shared[1] <= 5
    readings = [
        ask.messages[0]["content"][:300]
        for user in everything(replace(plain, is_template=True, skew=2.0), 2, "s")
        for ask in user
    ]
    most = max(readings.count(text) for text in set(readings))
    assert most > 80 / 5 * 2  # skewed


def test_stateless_shares_nothing() -> None:
    openings = {
        ask.messages[0]["content"][:30]
        for user in everything(Stateless(requests=5), 8, "s")
        for ask in user
    }
    assert len(openings) == 40


def test_users_come_and_go_at_the_rate_that_was_asked_for() -> None:
    """As the multi-round QA benchmark of the vLLM production stack has it."""
    workload = MultiRoundQuestions(num_rounds=5, qps=2.0, time=200.0)
    visits = workload.visits(10)
    times = sorted(at_s for visit in visits for at_s in visit.times_s)
    assert abs(len(times) - 2.0 * 200 * 5 / 4) <= 10, "as many a second, from the beginning on"
    assert times[0] == 0.0
    assert times[-1] < 200
    for visit in visits:
        gaps = [two - one for one, two in pairwise(visit.times_s)]
        assert gaps == pytest.approx([10 / 2.0] * len(gaps)), "users / qps between two rounds"
        assert len(visit.times_s) <= 5 - visit.first_round
    # Of those who were there, the first has but a round left; nobody new has had one.
    old = [visit for visit in visits if visit.first_round]
    assert {visit.first_round for visit in old} == {1, 2, 3, 4}
    assert workload.lanes(10) == len(visits)
    # In mid-run as many are there as were asked for.
    new = [visit.times_s[0] for visit in visits if not visit.first_round]
    length_s = 4 * 10 / 2.0
    assert sum(80 - length_s <= at_s < 80 for at_s in new) == 10


def test_a_user_s_first_question_holds_what_all_share_and_what_is_their_own() -> None:
    sizes = {"shared_system_prompt": 100, "user_history_prompt": 200}
    found = everything(MultiRoundQuestions(qps=1.0, time=30.0, **sizes), 4, "s")
    firsts = [user[0].messages[0]["content"].split("\n\n") for user in found]
    assert len({system for system, _, _ in firsts}) == 1
    assert len({history for _, history, _ in firsts}) == len(found) > 4
    assert {len(system.split()) for system, _, _ in firsts} == {50}
    assert {len(history.split()) for _, history, _ in firsts} == {100}
    long = next(user for user in found if len(user) > 1)
    assert long[1].messages[:2] == [
        long[0].messages[0],
        {"role": "assistant", "content": "so be it"},
    ]


def test_one_round_is_refused() -> None:
    with pytest.raises(SettingsError, match="num-rounds"):
        MultiRoundQuestions(num_rounds=1)
