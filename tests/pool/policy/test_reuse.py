"""Nothing that is learnt, for however long and with whatever clock, can stop the pool."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.learned import Learned
from forebay.pool.policy.reuse import (
    BINS,
    CELLS,
    EDGES_S,
    MEMORY_VISITS,
    Reuse,
    bin_of,
    cell_of,
    mean_gap_s,
)


@given(
    st.integers(0, 1 << 31),
    st.floats(),
    st.floats(),
    st.floats(allow_nan=False),
)
def test_every_visit_has_a_cell_that_can_be_judged(
    turns: int, before_s: float, gap_s: float, new_share: float
) -> None:
    cell = cell_of(turns, mean_gap_s(before_s, gap_s), new_share)
    assert 0 <= cell <= CELLS - BINS
    assert cell % BINS == 0
    reuse = Reuse()
    reuse.learn(cell // BINS)
    assert 0 <= reuse.worth(cell + BINS - 1) < math.inf


@pytest.mark.parametrize("edge", range(BINS))
def test_an_edge_belongs_to_the_bin_behind_it(edge: int) -> None:
    assert bin_of(EDGES_S[edge]) == edge
    assert bin_of(math.nextafter(EDGES_S[edge], math.inf)) == edge
    assert bin_of(math.nextafter(EDGES_S[edge], -math.inf)) == max(edge - 1, 0)


def test_years_of_visits_that_never_grow_old_can_still_be_judged() -> None:
    # Each round halves what was counted, 1200 times: less than the least number there is.
    reuse, cell = Reuse(), cell_of(0, 0.0, 1.0)
    again = cell_of(3, 1.0, 0.2)
    reuse.entered(cell)
    for _ in range(1200):
        reuse._endings[0].first.entered[0] = 2 * MEMORY_VISITS
        reuse._endings[0].again.entered[0] = 2 * MEMORY_VISITS
        reuse.learn(cell // BINS)
        reuse.learn(again // BINS)
    assert 0 < reuse.worth(cell) < math.inf
    assert 0 < reuse.return_chance(again) <= 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.floats(-1e9, 1e9)), max_size=40))
def test_a_clock_that_goes_back_is_survived(asked: list[tuple[int, int, float]]) -> None:
    policy, now = Learned([LowerTier(1 << 30)]), 0.0
    for root, length, step_s in asked:
        now += step_s
        chain = [bytes([root, depth]) * 8 for depth in range(length)]
        policy.requested(chain, 0, now)
        for depth, key in enumerate(chain):
            policy.stored(key, chain[depth - 1] if depth else None, 1, now)
        victim = policy.victim(now, 1)
        assert victim is not None
        policy.removed(victim)
