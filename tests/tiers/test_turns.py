"""Turns by weight: who has more to do gets no more than its share while others wait."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forebay.tiers.turns import QUANTUM_BYTES, FairQueue, Turns

TENANTS = [bytes([number]) * 16 for number in range(4)]


def served(queue: FairQueue[tuple[bytes, int]], until_bytes: int) -> Counter[bytes]:
    """Bytes of each tenant, in the order in which the queue gives them, up to so many."""
    had: Counter[bytes] = Counter()
    while len(queue) and had.total() < until_bytes:
        tenant, size_bytes = queue.take()
        had[tenant] += size_bytes
    return had


def queue_of(demand: dict[bytes, list[int]]) -> FairQueue[tuple[bytes, int]]:
    queue: FairQueue[tuple[bytes, int]] = FairQueue()
    for tenant, sizes in demand.items():
        for size_bytes in sizes:
            queue.put((tenant, size_bytes), size_bytes, tenant)
    return queue


@given(
    st.dictionaries(
        st.sampled_from(TENANTS),
        st.lists(st.integers(1, 3 * QUANTUM_BYTES), max_size=20),
        max_size=4,
    )
)
def test_all_that_was_put_is_taken_once_each_tenants_in_order(
    demand: dict[bytes, list[int]],
) -> None:
    queue, had = queue_of(demand), {tenant: list[int]() for tenant in demand}
    while len(queue):
        tenant, size_bytes = queue.take()
        had[tenant].append(size_bytes)
    assert had == demand
    assert not list(queue)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 3 * QUANTUM_BYTES))
def test_who_always_has_something_to_do_is_served_by_weight(
    weights: list[int], size_bytes: int
) -> None:
    tenants = TENANTS[: len(weights)]
    rounds_bytes = 60 * max(QUANTUM_BYTES, size_bytes) * sum(weights)
    count = 2 * rounds_bytes // size_bytes
    if count > 5_000:
        return  # tiny items only make this slow
    queue = queue_of({tenant: [size_bytes] * count for tenant in tenants})
    queue.weigh(dict(zip(tenants, weights, strict=True)))
    had = served(queue, rounds_bytes)
    for tenant, weight in zip(tenants, weights, strict=True):
        assert abs(had[tenant] / had.total() - weight / sum(weights)) < 0.03


def test_who_was_alone_owes_nothing_and_who_was_idle_has_saved_nothing_up() -> None:
    one, other = TENANTS[:2]
    queue = queue_of({one: [QUANTUM_BYTES] * 1000})
    assert served(queue, 500 * QUANTUM_BYTES) == {one: 500 * QUANTUM_BYTES}
    for _ in range(500):
        queue.put((other, QUANTUM_BYTES), QUANTUM_BYTES, other)
    had = served(queue, 100 * QUANTUM_BYTES)
    assert abs(had[one] - had[other]) <= 2 * QUANTUM_BYTES


def test_an_item_much_larger_than_a_turn_is_paid_for_in_later_ones() -> None:
    one, other = TENANTS[:2]
    demand = {one: [1000 * QUANTUM_BYTES] * 3, other: [QUANTUM_BYTES] * 3000}
    had = served(queue_of(demand), 2000 * QUANTUM_BYTES)
    assert abs(had[one] - had[other]) <= 1001 * QUANTUM_BYTES


def test_what_is_over_leaves_and_its_tenants_turn_with_it() -> None:
    one, other = TENANTS[:2]
    queue = queue_of({one: [1, 2, 3], other: [4]})
    assert queue.remove(lambda job: job[0] == one) == [(one, 1), (one, 2), (one, 3)]
    assert [queue.take() for _ in range(len(queue))] == [(other, 4)]


def test_nobody_has_a_turn_who_has_nothing_to_do() -> None:
    turns = Turns(lambda _: 1)
    assert turns.current() is None
    turns.join(TENANTS[0])
    assert turns.current() == TENANTS[0]
    turns.leave(TENANTS[0])
    assert turns.current() is None
