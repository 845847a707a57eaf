"""A model and a pool for the tests on a GPU, and a way to the run's log."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.vllm.real.models import made_model
from tests.pool_process import PoolProcess, running_pool, short_directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers depend on the KV: seeded weights of ordinary spread."""
    place = tmp_path_factory.mktemp("model")
    return made_model(place, 1, heads=4, kv_heads=2, layers=4, head_dim=64)


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    flags = ("--dram", "256MiB")
    with short_directory() as place, running_pool(place, *flags, disk_bytes=512 << 20) as pool:
        yield pool


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line even where the test passes."""

    def line(what: str) -> None:
        with capsys.disabled():
            print(f"\n{what}", end="", flush=True)

    return line
