"""Engines, pools and models of the tests that run real vLLM (`make test-vllm`)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import Engine, RecordedPages
from tests.engines.vllm.real.models import made_model
from tests.pool_process import PoolProcess, short_directory


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first model's shape with other weights."""
    place = tmp_path_factory.mktemp("other-weights")
    made: Path = forked.call(made_model, place, 2, heads=4, kv_heads=2, layers=3)
    return made


@pytest.fixture(scope="session")
def other_shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another shape: one KV head for all."""
    place = tmp_path_factory.mktemp("other-shape")
    made: Path = forked.call(made_model, place, 3, heads=6, kv_heads=1, layers=2)
    return made


@pytest.fixture(scope="session")
def without_pool(model: Path) -> Iterator[Engine]:
    """The first model on vLLM alone, which recomputes everything: what all others must answer."""
    engine = Engine(model, enable_prefix_caching=False, max_num_batched_tokens=256)
    yield engine
    engine.kill()


@pytest.fixture
def pages(tmp_path: Path) -> RecordedPages:
    return RecordedPages(tmp_path / "pages")


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def start_pool(place: Path) -> Iterator[Callable[..., PoolProcess]]:
    """Starts pools that are gone at the end of the test."""
    begun: list[PoolProcess] = []

    def start(*flags: str, **more: Any) -> PoolProcess:
        directory = place / str(len(begun))
        directory.mkdir(mode=0o700)
        begun.append(PoolProcess(directory, *flags, **more).start())
        return begun[-1]

    yield start
    for pool in begun:
        if pool.process is not None and pool.process.poll() is None:
            pool.kill()


@pytest.fixture
def start_engine() -> Iterator[Callable[..., Engine]]:
    """Starts engines that are gone at the end of the test."""
    begun: list[Engine] = []

    def start(*arguments: Any, **more: Any) -> Engine:
        begun.append(Engine(*arguments, **more))
        return begun[-1]

    yield start
    for engine in begun:
        if engine.process.is_alive():
            engine.kill()
