"""What a drive that hangs costs the thread on which vLLM schedules: a step's limit, at most."""

import pytest
from tests.engines.vllm.test_scheduler_side import (
    CHUNKS,
    SHAPE,
    Output,
    hanging,
    request_of,
    side_of,
)
from tests.pool_process import PoolProcess, wait_until

from forebay.engines.vllm.scheduler import _STEP_WAIT_S
from forebay.sys import sockets

__all__ = ["hanging"]  # the fixture
pytestmark = pytest.mark.vllm
TOLERANCE_S = 1e-6
STEPS = 20  # of others, while one waits for the drive


def test_t24_no_step_asks_to_wait_for_a_drive_that_hangs(
    hanging: PoolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted is for how long the thread is ready to wait, not how busy the machine is."""
    side = side_of(hanging)
    request = request_of(list(range(CHUNKS * SHAPE.chunk_tokens + 1)))
    side.arrived(request)
    waits: list[float] = []
    wait = sockets.wait

    def noted(connection: object, *, write: bool, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return wait(connection, write=write, timeout_s=timeout_s)  # type: ignore[arg-type]

    monkeypatch.setattr(sockets, "wait", noted)

    def step() -> None:
        assert side.matched(request, 0) == (None, False), "it is asked again"
        side.begin_step(Output)

    def is_told_of_the_drive() -> bool:
        step()
        return bool(side._lookups._judgement.is_reading(side._requests["request"].load.number))

    wait_until(is_told_of_the_drive, "the pool to say that it reads")
    assert all(timeout_s <= _STEP_WAIT_S + TOLERANCE_S for timeout_s in waits)
    waits.clear()
    for _ in range(STEPS):
        step()
    assert waits == [], "drives take longer than a step may wait"
    side.close()
