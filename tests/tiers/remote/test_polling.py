"""When other hosts are looked at."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.remote_harness import PATIENT, opened_remote

from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.tiers.remote.index import table
from forebay.tiers.remote.io.polling import HostPolling
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest

End = Callable[[HostPolling, StoreRequest], None]


def learned(polling: HostPolling, request: StoreRequest) -> None:
    polling.answered(request, Answer(0), [memoryview(table.build([], []))])


@pytest.mark.parametrize("end", [learned, HostPolling.failed])
def test_a_round_that_takes_long_is_not_followed_by_the_next_one_at_once(
    tmp_path: Path, end: End
) -> None:
    """Else nothing that comes behind it would ever be done."""
    clock, refresh_s = ManualClock(1000.0), PATIENT.refresh_s
    with opened_remote(tmp_path, world=World(clock=clock)) as tier:
        pass
    polling = HostPolling(tier.parts)
    for _ in range(2):
        request = polling.request(clock.monotonic())
        assert request is not None
        assert request.action is Action.REFRESH
        clock.advance(3 * refresh_s)
        end(polling, request)
        assert polling.request(clock.monotonic()) is None
        clock.advance(refresh_s)
