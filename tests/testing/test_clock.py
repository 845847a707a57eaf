"""The manual clock stands still until it is told to move."""

from forebay.testing.clock import ManualClock


def test_hands_move_as_told() -> None:
    clock = ManualClock(monotonic=10)
    assert clock.monotonic() == clock.monotonic() == 10
    clock.advance(5)
    assert clock.monotonic() == 15
