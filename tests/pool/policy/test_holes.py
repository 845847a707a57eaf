"""What is in DRAM can leave it: pieces of a chain, and records that are their own ancestors."""

import pytest

from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.learned import Learned

KEYS = [bytes([number]) * 16 for number in range(30)]
SLOT = 1 << 20


@pytest.mark.parametrize("held", [{23, 29}, {0, 1, 5, 6, 20}, {3, 7, 11}, set(range(10, 26))])
@pytest.mark.parametrize("requests", [0, 1, 2])
def test_every_piece_of_a_requested_chain_can_leave(held: set[int], requests: int) -> None:
    policy = Learned([LowerTier(1 << 30)])
    for number in sorted(held):
        policy.stored(KEYS[number], KEYS[number - 1] if number else None, SLOT, 1.0)
        policy.in_tiers(KEYS[number], {0})
    for turn in range(requests):
        policy.requested(KEYS, len(KEYS), 2.0 + turn)
    leave_all(policy, set(held))


def leave_all(policy: Learned, left: set[int]) -> None:
    while left:
        victim = policy.victim(9.0, SLOT)
        assert victim is not None, left
        left.remove(KEYS.index(victim))
        policy.removed(victim)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("requested", [False, True])
def test_records_that_are_their_own_ancestors_can_leave(length: int, requested: bool) -> None:
    """A9: each had something that continues it, so that none of them ever left DRAM."""
    policy = Learned([LowerTier(1 << 30)])
    for number in range(length):
        policy.stored(KEYS[number], KEYS[(number + 1) % length], SLOT, 1.0)
        policy.in_tiers(KEYS[number], {0})
    if requested:
        policy.requested(KEYS[:length], length, 2.0)
    leave_all(policy, set(range(length)))


def test_a_chunk_that_returns_as_its_childs_child_can_leave() -> None:
    """A9: it was damaged and dropped while somebody used its child, which an engine named next."""
    policy = Learned()
    policy.stored(KEYS[0], None, SLOT, 1.0)
    policy.stored(KEYS[1], KEYS[0], SLOT, 1.0)
    policy.pin(KEYS[1])
    policy.removed(KEYS[0])
    policy.stored(KEYS[0], KEYS[1], SLOT, 2.0)
    policy.unpin(KEYS[1])
    leave_all(policy, {0, 1})
