"""How fast a store is said to be: by what was seen, lately, and by what is awaited too long."""

import pytest

from forebay.tiers.remote.accounting.speed import FRESH_S, StoreSpeed

MB = 10**6


def seen(record_s: float = 0.1, size_bytes: int = 10 * MB, until: float = 10.0) -> StoreSpeed:
    """After a second of reads, one at a time."""
    speed = StoreSpeed()
    for number in range(int(1 / record_s)):
        begun = until - 1 + number * record_s
        speed.began(0, size_bytes, begun)
        speed.ended(0, begun + record_s, is_whole=True)
    return speed


def test_nothing_is_known_before_something_was_read() -> None:
    speed = StoreSpeed()
    assert speed.told(1.0) == (0.0, 0.0)
    speed.began(0, MB, 1.0)
    assert speed.told(1.5) == (0.5, 0.0), "but how long it has taken"
    speed.ended(0, 2.0, is_whole=False)
    assert speed.told(2.0) == (0.0, 0.0), "a failure says nothing"


def test_one_record_and_all_of_them_together() -> None:
    first_s, bytes_a_s = seen().told(10.0)
    assert first_s == pytest.approx(0.1)
    assert bytes_a_s == pytest.approx(100 * MB)
    speed = StoreSpeed()
    for lane in range(4):
        speed.began(lane, 10 * MB, 1.0)
    for lane in range(4):
        speed.ended(lane, 1.1, is_whole=True)
    first_s, bytes_a_s = speed.told(1.1)
    assert first_s == pytest.approx(0.1)
    assert bytes_a_s == pytest.approx(400 * MB), "four at once"


def test_bandwidth_is_seen_though_reads_never_pause() -> None:
    speed = StoreSpeed()
    speed.began(0, 10 * MB, 1.0)
    for number in range(10):
        speed.began(1 + number % 2, 10 * MB, 1.0 + 0.1 * number)
        speed.ended(1 + number % 2, 1.1 + 0.1 * number, is_whole=True)
    assert speed.told(2.0).bytes_a_s == pytest.approx(100 * MB, rel=0.01)


def test_what_is_being_read_comes_first_and_a_hanging_read_makes_it_slow_at_once() -> None:
    speed = seen()
    speed.began(0, 20 * MB, 10.0)
    assert speed.told(10.0).first_s == pytest.approx(0.3)
    assert speed.told(14.0).first_s == pytest.approx(4.0)


def test_it_is_forgotten_after_a_while_and_begins_anew() -> None:
    speed = seen()
    assert speed.told(10.0 + FRESH_S - 0.1).bytes_a_s
    assert speed.told(10.0 + FRESH_S) == (0.0, 0.0)
    speed.began(0, 10 * MB, 100.0)
    speed.ended(0, 101.0, is_whole=True)
    assert speed.told(101.0) == (1.0, 10 * MB), "nothing of what was"
