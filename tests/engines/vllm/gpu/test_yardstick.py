"""The yardstick itself: what it accepts, and that it can refuse."""

from tests.engines.vllm.gpu.yardstick import Yardstick

A, B, C = [1, 2, 3], [4, 5, 6], [7, 8, 9]
WRONG = [1, 2, 0]


def test_where_vllm_equals_itself_every_answer_must_be_equal() -> None:
    exact = Yardstick([A, B, C], {"its own cache": [A, B, C]})
    assert exact.unsure == 0
    assert exact.accepts([A, B, C])
    assert not exact.accepts([WRONG, B, C])


def test_where_vllm_differs_from_itself_nobody_may_be_further_off() -> None:
    loose = Yardstick([A, B, C], {"its own cache": [WRONG, B, C]})
    assert loose.unsure == 1
    assert loose.accepts([WRONG, B, C]), "as from its own cache"
    assert loose.accepts([A, B, C])
    assert loose.accepts([A, B, WRONG]), "no further off"
    assert not loose.accepts([WRONG, WRONG, C])


def test_the_same_answers_as_one_of_its_ways_are_accepted_whole() -> None:
    ways = {"its own cache": [WRONG, B, C], "again": [A, WRONG, C]}
    loose = Yardstick([A, B, C], ways)
    assert loose.unsure == 2
    assert not loose.accepts([WRONG, WRONG, WRONG])


def test_the_log_states_counts_and_the_first_place() -> None:
    loose = Yardstick([A, B], {"its own cache": [WRONG, B]})
    where = "first at token 3; all as its own cache"
    assert loose.says("pool", [WRONG, B]) == f"pool: 1 of 2 answers differ ({where})"
    assert loose.says("pool", [A, B]) == "pool: 0 of 2 answers differ"
    assert loose.says("pool", [A, B[:1]]).endswith("(first at token 2)")
    assert loose.says_of_itself().endswith("unsure of 1")
