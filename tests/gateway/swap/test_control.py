"""Whether an engine that woke computes, where it is full of the answers that it has kept."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.gateway.swap.sleeping_engine import SleepingEngine

from forebay.gateway.http.client import EngineClient
from forebay.gateway.swap import control
from forebay.gateway.swap.control import SleepControl


@pytest.fixture
def full() -> Iterator[SleepingEngine]:
    """An engine that computes no token for a probe."""
    with SleepingEngine("a") as engine:
        engine.awake.clear()
        yield engine


def probed(engine: SleepingEngine, pieces: Callable[[], int]) -> str:
    """What a probe says."""

    async def ask() -> str:
        client = EngineClient()
        try:
            return await SleepControl(engine.url, "a", client).probe(pieces)
        finally:
            await client.close()

    return asyncio.run(ask())


def test_an_answer_that_goes_on_says_that_it_computes(full: SleepingEngine) -> None:
    looks: list[None] = []

    def pieces() -> int:
        looks.append(None)
        return int(len(looks) > 3)

    assert probed(full, pieces) == ""


def test_without_one_it_has_failed(full: SleepingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PROBE_S", 0.3)
    assert probed(full, lambda: 7) == "the probe failed: it did not answer in time"
