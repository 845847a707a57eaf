"""A chain of which DRAM has pieces, the rest only a lower tier, can leave DRAM whole."""

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
    left = set(held)
    while left:
        victim = policy.victim(9.0, SLOT)
        assert victim is not None, left
        left.remove(KEYS.index(victim))
        policy.removed(victim)
