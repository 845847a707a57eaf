"""The error budget, on a clock of its own."""

from collections import Counter

from forebay.engines.scheduling.error_budget import ErrorBudget


def spent(now: float = 0.0) -> ErrorBudget:
    budget = ErrorBudget(Counter())
    for _ in range(5):
        budget.failed(now)
    return budget


def test_a_few_failures_are_forgiven() -> None:
    budget = ErrorBudget(Counter())
    for second in range(0, 100, 3):  # never five within ten seconds
        budget.failed(float(second))
        assert budget.allows(float(second))


def test_t29_after_five_in_a_row_nothing_is_asked_for_a_while() -> None:
    budget = spent()
    assert budget._counts["pool.paused"] == 1
    assert not budget.allows(4.9)
    assert budget.is_spent(4.9)


def test_after_the_pause_one_at_a_time_tries() -> None:
    budget = spent()
    assert budget.allows(5.1)
    assert not budget.allows(5.2), "the others wait for what becomes of it"
    assert budget.allows(7.2), "but not for ever"


def test_each_failed_try_doubles_the_pause_up_to_a_minute() -> None:
    budget, now, pauses = spent(), 5.0, []
    assert budget.allows(now)
    for _ in range(6):
        budget.failed(now)
        begun = now
        while not budget.allows(now):
            now += 0.5
        pauses.append(now - begun)
    assert pauses == [10, 20, 40, 60, 60, 60]


def test_one_success_makes_everything_good() -> None:
    budget = spent()
    assert budget.allows(5.0)
    budget.succeeded()
    assert not budget.is_spent(5.0)
    assert budget.allows(5.0)
    assert budget.allows(5.0)


def test_a_pool_that_knows_nothing_has_answered() -> None:
    """Else a pool without chunks would be left alone for ever, and so never get any."""
    budget = spent()
    assert budget.allows(5.0)
    budget.found_nothing()
    assert not budget.is_spent(5.0)
