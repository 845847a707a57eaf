"""An engine tells the pool that it starts which GPUs are its own."""

from pathlib import Path

import pytest
from tests.sys.machine.planted import GPU, OTHER_GPU, plant_gpu

from forebay.engines.start.gpus import near_gpus
from forebay.settings import Settings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plant_gpu(tmp_path, OTHER_GPU, 0)
    return plant_gpu(tmp_path, GPU, 1)


def test_the_gpus_of_all_ranks_are_told(root: Path) -> None:
    def told(count: int, first: int = 0, **variables: str) -> str:
        return near_gpus(Settings(), count, first, variables, root).numa

    assert told(1) == GPU
    assert told(2) == told(16) == f"{GPU},{OTHER_GPU}"
    assert told(1, 1) == told(1, CUDA_VISIBLE_DEVICES="1") == OTHER_GPU
    assert told(1, CUDA_VISIBLE_DEVICES="") == "auto"


@pytest.mark.parametrize("numa", ["off", "0", OTHER_GPU])
def test_what_an_operator_says_stays(root: Path, numa: str) -> None:
    assert near_gpus(Settings(numa=numa), 1, variables={}, root=root).numa == numa


def test_an_engine_without_gpus_says_nothing_of_them(tmp_path: Path) -> None:
    assert near_gpus(Settings(), 1, variables={}, root=tmp_path) == Settings()
