"""GPUs and their memory nodes, as sysfs and NVIDIA's driver show them."""

from pathlib import Path

import pytest
from tests.sys.machine.planted import GPU, OTHER_GPU, plant_gpu, write

from forebay.sys.machine.gpus import gpu_addresses, node_of, nodes_of, visible_gpus


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plant_gpu(tmp_path, OTHER_GPU, -1, "GPU-22aa")
    return plant_gpu(tmp_path, GPU, 1, "GPU-11bb")


def test_gpus_and_their_nodes(root: Path) -> None:
    assert gpu_addresses(root) == [GPU, OTHER_GPU]
    assert (node_of(GPU, root), node_of(OTHER_GPU, root)) == (1, None)
    assert nodes_of([GPU, OTHER_GPU, "0000:00:00.0"], root) == {1}


def test_without_the_driver_gpus_are_known_by_their_class(tmp_path: Path) -> None:
    assert gpu_addresses(tmp_path) == []
    plant_gpu(tmp_path, GPU, 0, driver=False)
    for address, vendor, kind in (
        ("0000:3b:00.1", "0x10de", "0x040300"),
        ("0000:01:00.0", "0x8086", "0x030000"),
    ):
        write(tmp_path, f"sys/bus/pci/devices/{address}/vendor", f"{vendor}\n")
        write(tmp_path, f"sys/bus/pci/devices/{address}/class", f"{kind}\n")
    assert gpu_addresses(tmp_path) == [GPU]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, [GPU, OTHER_GPU]),
        ("1", [OTHER_GPU]),
        ("1, 0", [OTHER_GPU, GPU]),
        ("GPU-22", [OTHER_GPU]),
        ("GPU-33", []),
        ("0,-1,1", [GPU]),
        ("7", []),
        ("", []),
        ("MIG-11bb", [GPU, OTHER_GPU]),
    ],
)
def test_a_process_sees_what_it_is_told(root: Path, wanted: str | None, found: list[str]) -> None:
    variables = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    assert visible_gpus(variables, root) == found
