"""The manual clock stands still, and its two times can be set apart."""

from forebay.testing.clock import ManualClock


def test_hands_move_as_told() -> None:
    clock = ManualClock(monotonic=10, wall=100)
    clock.advance(5)
    assert (clock.monotonic(), clock.wall()) == (15, 105)
    clock.jump(-90)
    clock.suspend(3)
    assert (clock.monotonic(), clock.wall()) == (15, 18)
