"""Which dialog is read back before it is asked for, from which chunk on, and for whose sake not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.identity.endings import EndingClass
from forebay.pool.policy import ahead
from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.contract import Ending
from forebay.pool.policy.learned import Learned
from forebay.settings import PrefetchMode

HINTED = Ending(EndingClass.TOOL_CALL, returns_in_s=100.0)
SOON = Ending(EndingClass.TOOL_CALL, returns_in_s=8.0)
TOOL, STOP = Ending(EndingClass.TOOL_CALL), Ending(EndingClass.STOP)
SIZE = 1


def chain(name: int, chunks: int = 4) -> list[bytes]:
    return [bytes([name % 256, name // 256, depth, 0]) * 4 for depth in range(chunks)]


def serve(policy: Learned, keys: list[bytes], now: float, *, is_saved: bool = True) -> None:
    """A request finds or stores all of its chain."""
    policy.requested(keys, len(keys), now)
    for depth, key in enumerate(keys):
        policy.stored(key, keys[depth - 1] if depth else None, SIZE, now)
        policy.in_tiers(key, [0] if is_saved else [])


def leave(policy: Learned, keys: list[bytes]) -> None:
    for key in reversed(keys):
        policy.removed(key)


def taught(which: PrefetchMode) -> tuple[Learned, float]:
    """A policy to which callers spoke the truth, and whose tools take 8 s; DRAM is empty."""
    policy, now = Learned([LowerTier(1 << 40)], which), 0.0
    for number in range(30):
        keys = chain(1000 + number, 2)
        gaps = (HINTED, 100.0), (SOON, 8.0), (HINTED, 100.0), (TOOL, 8.0), (STOP, 1e5)
        for ending, gap_s in gaps:
            serve(policy, keys, now)
            policy.ended(keys[-1], ending, now)
            now += gap_s
        leave(policy, keys)
    return policy, now


def named(policy: Learned, now: float, *, is_full: bool = False) -> list[bytes]:
    """All that is named for reading, none of which comes."""
    found = []
    while (each := policy.next_read(now, lambda _: not is_full)) is not None:
        found.append(each.key)
    return found


def judge_anew(policy: Learned, now: float) -> None:
    """Let requests come that ask for nothing known: with every fourth one kind is judged anew."""
    for number in range(60):
        policy.requested(chain(5000 + number, 1), 0, now)


def away(policy: Learned, now: float, ending: Ending = HINTED, chunks: int = 4) -> list[bytes]:
    """A dialog whose answer has ended, and which then left DRAM."""
    keys = chain(1, chunks)
    serve(policy, keys, now)
    policy.ended(keys[-1], ending, now)
    leave(policy, keys)
    judge_anew(policy, now)
    return keys


def test_what_left_last_is_read_first() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = chain(1)
    serve(policy, keys, now)
    policy.ended(keys[-1], HINTED, now)
    leave(policy, keys[1:])
    assert named(policy, now + 90) == keys[1:]


@pytest.mark.parametrize(
    ("which", "ending", "is_read"),
    [
        (PrefetchMode.OFF, HINTED, False),
        (PrefetchMode.HINTS, HINTED, True),
        (PrefetchMode.HINTS, TOOL, False),
        (PrefetchMode.ON, HINTED, True),
        (PrefetchMode.ON, TOOL, True),
        (PrefetchMode.ON, STOP, False),  # it never returned within a day
        (PrefetchMode.ON, Ending(), False),  # nobody knows how it ended
    ],
)
def test_which_dialogs(which: PrefetchMode, ending: Ending, is_read: bool) -> None:
    policy, now = taught(which)
    keys = away(policy, now, ending)
    assert named(policy, now + 1) == (keys if is_read else [])


def test_what_no_lower_tier_has_is_not_read_nor_what_continues_it() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = chain(1)
    serve(policy, keys, now)
    policy.ended(keys[-1], HINTED, now)
    leave(policy, keys[2:])
    policy.in_tiers(keys[1], [])
    leave(policy, keys[:2])
    assert named(policy, now + 90) == keys[:1]


def test_what_could_not_be_read_ends_it() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = away(policy, now)
    first = policy.next_read(now + 90, lambda _: True)
    assert first is not None
    assert (first.key, first.chain) == (keys[0], keys[-1])
    policy.read_failed(keys[0])
    assert named(policy, now + 90) == []


def test_who_has_returned_is_not_read() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = away(policy, now)
    policy.requested(keys, len(keys), now + 90)
    assert named(policy, now + 90) == []


def test_what_came_belongs_to_its_dialog_and_may_leave_and_come_again() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = away(policy, now)
    for depth, key in enumerate(keys):
        found = policy.next_read(now + 90, lambda _: True)
        assert found is not None
        assert found.key == key
        policy.stored(key, keys[depth - 1] if depth else None, SIZE, now + 90)
        policy.in_tiers(key, [0])
    left = []
    while (victim := policy.victim(now + 90, SIZE)) is not None:
        policy.removed(victim)
        left.append(victim)
    assert left == keys[::-1], "from the end on"
    assert named(policy, now + 90) == keys


def test_what_comes_in_another_order_can_leave_again() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = away(policy, now)
    assert named(policy, now + 90) == keys
    for depth in (1, 0, 3, 2):
        policy.stored(keys[depth], keys[depth - 1] if depth else None, SIZE, now + 90)
        policy.in_tiers(keys[depth], [0])
    left = []
    while (victim := policy.victim(now + 90, SIZE)) is not None:
        policy.removed(victim)
        left.append(victim)
    assert left == keys[::-1]


def full_of(policy: Learned, now: float, ending: Ending) -> list[bytes]:
    """Another dialog, in DRAM."""
    keys = chain(2)
    serve(policy, keys, now)
    policy.ended(keys[-1], ending, now)
    judge_anew(policy, now)
    return keys


def test_what_is_worth_less_leaves_for_it_from_its_end_on() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = away(policy, now)
    others = full_of(policy, now + 90, HINTED)  # expected 90 s later
    found = policy.next_read(now + 90, lambda _: False)
    assert found is not None
    assert (found.key, found.victim) == (keys[0], others[-1])
    assert policy.victim(now + 90, SIZE) == others[-1], "as it would for anybody"


def test_what_is_worth_more_stays() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    away(policy, now)
    full_of(policy, now + 20, SOON)
    assert named(policy, now + 20, is_full=True) == []


def test_of_likes_nothing_leaves() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    for keys in (chain(1), chain(2)):
        serve(policy, keys, now)
        policy.ended(keys[-1], HINTED, now)
    leave(policy, chain(1))
    judge_anew(policy, now)
    assert named(policy, now + 90, is_full=True) == []


def test_its_own_end_does_not_leave_for_it() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    keys = chain(1)
    serve(policy, keys, now)
    policy.ended(keys[-1], HINTED, now)
    leave(policy, keys[2:])
    assert named(policy, now + 90, is_full=True) == []


def test_what_is_in_use_does_not_leave_for_it() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    away(policy, now)
    policy.pin(full_of(policy, now + 90, HINTED)[-1])
    assert named(policy, now + 90, is_full=True) == []


def test_who_did_not_come_when_said_is_not_waited_for() -> None:
    policy, now = taught(PrefetchMode.HINTS)
    away(policy, now)
    assert named(policy, now + 10_000) == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "CHUNKS_MAX", 6)
    policy, now = taught(PrefetchMode.HINTS)
    for name in range(10, 14):
        keys = chain(name)
        serve(policy, keys, now)
        policy.ended(keys[-1], HINTED, now)
        leave(policy, keys)
    assert named(policy, now + 90) == chain(13), "who lost something lately"


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from("sleranf"), st.floats(0, 60)), max_size=60
    )
)
def test_no_order_of_events_names_what_is_here_or_was_not_here(
    events: list[tuple[int, str, float]],
) -> None:
    policy, now = Learned([LowerTier(1 << 40)], PrefetchMode.ON), 0.0
    here: set[bytes] = set()
    seen: set[bytes] = set()
    for name, what, wait_s in events:
        now, keys = now + wait_s, chain(name)
        if what in "sr":
            serve(policy, keys, now)
            here |= {*keys}
            seen |= {*keys}
        elif what == "e":
            policy.ended(keys[-1], HINTED, now)
        elif what == "l" and (victim := policy.victim(now, SIZE)) is not None:
            policy.removed(victim)
            here.discard(victim)
        elif (found := policy.next_read(now, lambda _: True)) is not None:
            assert found.key in seen - here
            if what == "f":
                policy.read_failed(found.key)
                continue
            at = next(at for name in range(6) for at in [chain(name)] if found.key in at)
            depth = at.index(found.key)
            policy.stored(found.key, at[depth - 1] if depth else None, SIZE, now)
            policy.in_tiers(found.key, [0])
            here.add(found.key)
