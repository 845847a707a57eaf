"""The model of most tests that need vLLM's environment."""

from pathlib import Path

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.models import made_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    made: Path = forked.call(made_model, place, 1, heads=4, kv_heads=2, layers=3)
    return made
