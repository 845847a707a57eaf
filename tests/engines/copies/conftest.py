"""Machines whose copies end with the test."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.engines.copies.machine import Machine, Make
from tests.engines.copies.simulated import SimulatedDriver
from tests.pool_process import HANG_S

from forebay.engines.copies import streamed


@pytest.fixture(autouse=True)
def _nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine runs no thread for seconds; a test of giving up names its own time."""
    for name in ("_SUBMIT_S", "_REACH_S"):
        monkeypatch.setattr(streamed, name, HANG_S)


@pytest.fixture
def make() -> Iterator[Make]:
    machines: list[Machine] = []

    def begin(cap_arenas: int = 8, *, is_reached: bool = True, **how: Any) -> Machine:
        machines.append(Machine(SimulatedDriver(**how), cap_arenas))
        if is_reached:
            machines[-1].reach()
        return machines[-1]

    yield begin
    for machine in machines:
        machine.copies.close()
        machine.driver.end()
