"""Machines whose copies end with the test."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.engines.copies.machine import Machine, Make
from tests.engines.copies.simulated import SimulatedDriver


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
