"""The clock that everything goes by is one that nobody can set (T47)."""

import time

from tests.clocks import jumping_wall

from forebay.sys.clock import Clock


def test_t47_the_clock_is_not_the_wall_clock() -> None:
    clock = Clock()
    with jumping_wall():
        assert abs(time.time() - time.time()) > 86_400, "it jumps"
        for _ in range(4):
            before, now, after = time.monotonic(), clock.monotonic(), time.monotonic()
            assert before <= now <= after
