"""Shares of a budget, as the formula of its module promises them."""

import pytest

from forebay.pool.core.budget import NOBODY, Budget, Processes

LIMIT = 1_000_000


def fill(budget: Budget, engine: str, step: int = 1) -> int:
    """Take as much as an engine may hold; how much it holds then."""
    while budget.fits(engine, step):
        budget.take(engine, step)
        assert budget.used_by(engine) <= LIMIT
    return budget.used_by(engine)


def test_an_engine_that_is_alone_has_it_all() -> None:
    budget = Budget(lambda: LIMIT, Processes())
    assert fill(budget, "a", 1000) == LIMIT == budget.share_bytes("a")
    assert budget.left_bytes("a") == 0


def test_t57_whatever_others_never_give_back_something_is_left() -> None:
    budget = Budget(lambda: LIMIT, Processes())
    held = [fill(budget, str(number), 100) for number in range(6)]
    assert all(mine >= LIMIT // 5**number for number, mine in enumerate(held))
    assert budget.used_bytes <= LIMIT * 4 // 3


@pytest.mark.parametrize("engines", [2, 3, 7])
def test_t57_engines_that_give_back_come_to_equal_shares(engines: int) -> None:
    """The first has all when the others come; each gives a little back and takes what it may."""
    budget = Budget(lambda: LIMIT, Processes())
    names = [str(number) for number in range(engines)]
    fill(budget, names[0], 1000)
    for _ in range(400):
        for name in names:
            if (used := budget.used_by(name)) > 20_000:
                budget.give(name, used // 20_000 * 1000)
        while takers := [name for name in names if budget.fits(name, 1000)]:
            for name in filter(lambda each: budget.fits(each, 1000), takers):
                budget.take(name, 1000)
    fair = LIMIT * 4 // (3 * engines + 1)
    assert all(abs(budget.used_by(name) - fair) < fair // 5 for name in names)


def test_one_thing_of_any_size_fits_where_there_is_nothing() -> None:
    budget = Budget(lambda: LIMIT, Processes())
    assert budget.fits("a", 10 * LIMIT)
    assert not budget.fits("a", LIMIT, also_bytes=1)
    budget.take("a", 10 * LIMIT)
    assert not budget.fits("b", 1)


def test_who_has_nothing_may_have_one_thing_beyond_its_share() -> None:
    budget = Budget(lambda: LIMIT, Processes())
    budget.take("a", LIMIT)
    assert budget.share_bytes("b") == LIMIT // 4
    assert budget.fits("b", LIMIT // 3)
    assert not budget.fits("b", LIMIT // 3 + 2)
    budget.take("b", 1)
    assert not budget.fits("b", LIMIT // 4)


def test_what_is_taken_within_a_wider_budget_must_fit_both() -> None:
    processes = Processes()
    wider = Budget(lambda: LIMIT, processes)
    loads, stores = (Budget(lambda: LIMIT * 2 // 3, processes, wider) for _ in range(2))
    assert fill(loads, "a", 1) == LIMIT * 2 // 3
    assert fill(stores, "a", 1) == LIMIT - LIMIT * 2 // 3
    assert stores.share_bytes("a") == stores.used_by("a")
    loads.give("a", 5)
    assert stores.left_bytes("a") == 5
    stores.take(NOBODY, 4)
    assert stores.left_bytes("a") == 2, "of what others hold three quarters are taken off"
    assert wider.used_bytes == loads.used_bytes + stores.used_bytes


def test_t57_engines_of_one_process_have_one_share() -> None:
    processes = Processes()
    budget = Budget(lambda: LIMIT, processes)
    for number in range(5):
        processes.join(f"a{number}", "a")
    held = sum(fill(budget, f"a{number}", 100) for number in range(5))
    assert held <= LIMIT, "as much as one that is alone"
    assert fill(budget, "b", 100) >= LIMIT // 5, "what is left for another process"
    processes.leave("a0")
    budget.give("a0", budget.used_by("a0"))
