"""Which region gives way: the least recently asked for, and of one chain its end."""

from forebay.tiers.eviction_order import EvictionOrder


def test_what_was_never_asked_for_goes_in_the_order_it_was_written() -> None:
    assert EvictionOrder().first([7, 3, 9]) == 7
    assert EvictionOrder().first([]) is None


def test_the_least_recently_asked_for_goes_first() -> None:
    order = EvictionOrder()
    for region in (1, 2, 3, 1):
        order.asked(region, order.begin_turn(), 0)
    assert order.first([1, 2, 3]) == 2
    order.forget(2)
    assert order.first([1, 3]) == 3
    assert order.first([1, 2, 3]) == 2, "nothing is remembered of a region that is gone"


def test_of_one_request_the_end_goes_before_the_start() -> None:
    order = EvictionOrder()
    turn = order.begin_turn()
    for region, depth in ((1, 0), (2, 10), (3, 5)):
        order.asked(region, turn, depth)
    order.asked(2, turn, 12)
    assert order.first([1, 2, 3]) == 2
    order.asked(2, turn, 4)
    assert order.first([1, 2, 3]) == 3, "the start of what is in it counts"


def test_what_is_stored_late_counts_as_asked_for_with_its_parent() -> None:
    order = EvictionOrder()
    assert order.turn_of_stored(0) == 1
    asked = [order.begin_turn() for _ in range(3)]
    assert order.turn_of_stored(asked[0]) == asked[0]
    assert order.turn_of_stored(0) == asked[-1]


def test_chains_that_nobody_asks_for_leave_in_the_order_in_which_they_came() -> None:
    order = EvictionOrder()
    for region in (1, 2):
        turn = order.turn_of_stored(0)
        order.asked(region, turn, 0 if region == 1 else 40)
        assert order.turn_of_stored(turn) == turn, "its children come with it"
    assert order.first([1, 2]) == 1
