"""The model of most tests that need vLLM's environment."""

from pathlib import Path

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.models import made_model
from tests.pool_process import HANG_S

from forebay.engines import worker
from forebay.engines.copies import streamed
from forebay.engines.vllm import scheduler

# Files whose tests take longest: begun first, so that none is left over at the end.
LONGEST = ("test_parallel.py", "test_states.py", "test_equality.py", "test_serving.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(autouse=True)
def _a_pool_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine runs no process for seconds; who joins in a test waits for the pool."""
    monkeypatch.setattr(scheduler, "_JOIN_S", HANG_S)
    monkeypatch.setattr(worker, "_JOIN_S", HANG_S)
    for name in ("_SUBMIT_S", "_REACH_S"):
        monkeypatch.setattr(streamed, name, HANG_S)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    made: Path = forked.call(made_model, place, 1, heads=4, kv_heads=2, layers=3)
    return made
