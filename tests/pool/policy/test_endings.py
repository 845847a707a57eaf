"""What the policy learns from how answers end, and what callers' hints do, to their own alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.identity.endings import ENDINGS_MAX, PRIORITY_MAX, EndingClass
from forebay.pool.policy import learned
from forebay.pool.policy.contract import Ending
from forebay.pool.policy.learned import Learned

TOOL, STOP = Ending(EndingClass.TOOL_CALL), Ending(EndingClass.STOP)


def chain(name: int, chunks: int = 2) -> list[bytes]:
    return [bytes([name % 256, name // 256, depth, 0]) * 4 for depth in range(chunks)]


def serve(policy: Learned, name: int, now: float) -> None:
    keys = chain(name)
    known = [key for key in keys if key in policy._forest.row_of]
    policy.requested(keys, len(known), now)
    for depth, key in enumerate(keys):
        policy.stored(key, keys[depth - 1] if depth else None, 1, now)


def ended(policy: Learned, name: int, ending: Ending, now: float) -> None:
    policy.ended(chain(name)[-1], ending, now)


def leaving(policy: Learned, now: float) -> list[int]:
    """The dialogs in the order in which they leave."""
    order = []
    while (victim := policy.victim(now, 1)) is not None:
        policy.removed(victim)
        order.append(victim[0] + 256 * victim[1])
    return order


def taught(rounds: int = 40) -> tuple[Learned, float]:
    """A policy that has seen tools return after 10 s, and people after 1000 s or never."""
    policy, now = Learned(), 0.0
    for number in range(rounds):
        now += 2000.0
        serve(policy, 10 + number, now)
        ended(policy, 10 + number, TOOL, now + 5)
        serve(policy, 10 + number, now + 15)
        ended(policy, 10 + number, STOP, now + 20)
        if number % 2:
            serve(policy, 10 + number, now + 1020)
    assert leaving(policy, now + 1999)
    return policy, now + 2000


@pytest.mark.parametrize("first", [TOOL, STOP])
def test_what_waits_for_a_tool_stays_longer_than_what_waits_for_a_person(first: Ending) -> None:
    policy, now = taught()
    second = STOP if first is TOOL else TOOL
    for name, ending in ((1, first), (2, second)):
        serve(policy, name, now)
        ended(policy, name, ending, now + 5)
    order = leaving(policy, now + 6)
    assert order[0] == (1 if first is STOP else 2)


def test_a_tool_that_is_long_overdue_is_worth_less_than_one_that_was_just_called() -> None:
    policy, now = taught()
    serve(policy, 1, now)
    ended(policy, 1, TOOL, now + 5)
    serve(policy, 2, now + 500)
    ended(policy, 2, TOOL, now + 505)
    assert leaving(policy, now + 506)[0] == 1


@pytest.mark.parametrize("hint", [Ending(2, priority=1), Ending(2, keep_s=100.0)])
def test_what_callers_ask_for_leaves_last(hint: Ending) -> None:
    policy, now = taught()
    for name in (1, 2, 3):
        serve(policy, name, now)
        ended(policy, name, hint if name == 1 else STOP, now + 5)
    assert leaving(policy, now + 6)[-1] == 1


def test_what_is_worth_little_to_its_caller_leaves_first() -> None:
    policy, now = taught()
    for name in (1, 2, 3):
        serve(policy, name, now)
        ended(policy, name, Ending(2, priority=-1) if name == 3 else STOP, now + 5)
    assert leaving(policy, now + 6)[0] == 3


def test_what_was_to_be_kept_is_like_others_when_the_time_is_over() -> None:
    policy, now = taught()
    for name, ending in ((1, Ending(2, keep_s=100.0)), (2, TOOL)):
        serve(policy, name, now)
        ended(policy, name, ending, now + 5)
    serve(policy, 3, now + 104)
    ended(policy, 3, TOOL, now + 105)
    assert leaving(policy, now + 106)[-1] == 3


def test_nothing_is_kept_for_good_that_was_asked_for_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many others ask meanwhile that the dialog is not remembered when its time is over."""
    monkeypatch.setattr(learned, "REMEMBERED_VISITS_MAX", 64)
    policy, now = taught()
    serve(policy, 1, now)
    ended(policy, 1, Ending(2, keep_s=100.0), now + 5)
    for number in range(64):
        policy.requested([number.to_bytes(16, "big")], 0, now + 6)
    serve(policy, 2, now + 104)
    ended(policy, 2, TOOL, now + 105)
    assert leaving(policy, now + 106)[-1] == 2


def test_all_that_is_to_be_kept_can_still_leave() -> None:
    policy, now = taught()
    for name in (1, 2, 3):
        serve(policy, name, now)
        ended(policy, name, Ending(2, keep_s=1e4), now + 5)
    assert len(leaving(policy, now + 6)) == 6


def test_claims_of_a_return_are_believed_as_far_as_they_held() -> None:
    policy, now = taught()
    for _ in range(60):  # those who say 50 s return then, those who say 5 s never do
        now += 2000
        for name, claim_s in ((300, 50.0), (301 + int(now) % 1000, 5.0)):
            serve(policy, name, now)
            ended(policy, name, Ending(2, returns_in_s=claim_s), now + 5)
        serve(policy, 300, now + 55)
    leaving(policy, now + 1000)
    now += 2000
    for name, claim_s in ((1, 50.0), (2, 5.0)):
        serve(policy, name, now)
        ended(policy, name, Ending(2, returns_in_s=claim_s), now + 1)
    assert leaving(policy, now + 2)[0] == 2


def test_of_two_open_requests_with_one_last_chunk_the_end_of_the_later_counts_too() -> None:
    policy, now = taught()
    for started in (now, now + 1):
        serve(policy, 1, started)
    ended(policy, 1, TOOL, now + 5)  # of the first
    ended(policy, 1, STOP, now + 6)
    ended(policy, 1, TOOL, now + 7)  # of nobody's request
    serve(policy, 2, now + 7)
    ended(policy, 2, TOOL, now + 8)
    assert leaving(policy, now + 9)[0] == 1


def test_a_session_is_one_dialog_although_its_prompts_have_nothing_in_common() -> None:
    policy, now = taught()
    for name in range(1, 6):
        now += 20
        serve(policy, name, now)
        ended(policy, name, TOOL._replace(session=b"one"), now + 5)
    visit = policy._ends[chain(5)[-1]]
    assert policy._visits.turns[visit] == 4
    gaps = policy._visits.gaps[visit]
    assert gaps is not None
    assert gaps[EndingClass.TOOL_CALL] == pytest.approx(15.0)


ENDINGS = st.builds(
    Ending,
    st.integers(0, ENDINGS_MAX - 1),
    session=st.sampled_from([b"", b"one", b"two"]),
    returns_in_s=st.sampled_from([0.0, 1e-9, 60.0, 86_400.0]),
    keep_s=st.sampled_from([0.0, 1e-9, 60.0, 86_400.0]),
    priority=st.integers(-PRIORITY_MAX, PRIORITY_MAX),
)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("rev"), ENDINGS, st.floats(-10, 1e4)),
        max_size=60,
    )
)
def test_any_order_of_calls_leaves_chunks_that_can_be_evicted(
    calls: list[tuple[int, str, Ending, float]],
) -> None:
    policy, now = Learned(), 0.0
    for name, what, ending, step_s in calls:
        now += step_s
        if what == "r":
            serve(policy, name, now)
        elif what == "e":
            ended(policy, name, ending, now)
        elif (victim := policy.victim(now, 1)) is not None:
            policy.removed(victim)
    held = len(policy._forest.row_of)
    assert len(leaving(policy, now)) == held
