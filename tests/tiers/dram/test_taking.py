"""Host memory is taken whole, or refused in one sentence before it is tried."""

import errno
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sys.machine.planted import GPU, plant_gpu, plant_nodes, two_sockets

from forebay.errors import StartupError
from forebay.sys.machine.nodes import allowed_nodes
from forebay.sys.machine.placement import NodePlacement
from forebay.sys.memory import PAGE_BYTES, AvailableMemory, total_memory_bytes
from forebay.sys.shared import SEGMENTS_MAX, SharedMemory
from forebay.tiers.dram.taking import add_memory, take_memory

MIB = 1 << 20


def test_all_of_it_is_taken_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        memory = take_memory(3 * MIB)
    assert [os.fstat(each.descriptor).st_blocks * 512 for each in memory.segments] == [3 * MIB]
    assert "3 MiB of DRAM taken" in caplog.text
    assert add_memory(memory, MIB) == ""
    assert memory.size_bytes == 4 * MIB
    memory.close()


def test_none_is_a_size_too() -> None:
    memory = take_memory(0)
    assert memory.size_bytes == 0
    memory.close()


@pytest.mark.parametrize("limit", ["the memory limit of /group", "the memory of NUMA node 1"])
def test_t49_more_than_is_left_is_refused_before_it_is_tried(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """F9: whoever takes more than a cgroup or a node allows is killed, and says nothing."""
    left = AvailableMemory(2 * MIB, limit)
    monkeypatch.setattr("forebay.tiers.dram.taking.available_memory", lambda: left)
    take_memory(2 * MIB).close()
    wanted = f"3 MiB of DRAM are asked for and {limit} leaves 2 MiB"
    with pytest.raises(StartupError, match=f"^{wanted}; lower --dram.$"):
        take_memory(3 * MIB)


@pytest.mark.parametrize("size_bytes", [1 << 60, 1 << 62, 1 << 63, 1 << 64])
def test_more_than_the_machine_has_is_a_sentence(size_bytes: int) -> None:
    """F8: a cap of 2^63 was taken."""
    with pytest.raises(StartupError, match=r"of DRAM are asked for and this machine has .*\.$"):
        take_memory(size_bytes)
    memory = SharedMemory(total_memory_bytes())
    assert "of DRAM are asked for and this machine has" in add_memory(memory, size_bytes)
    memory.close()


def test_the_number_of_segments_is_bounded() -> None:
    memory = SharedMemory(MIB)
    for _ in range(SEGMENTS_MAX):
        assert add_memory(memory, PAGE_BYTES) == ""
    assert "unless the pool is restarted" in add_memory(memory, PAGE_BYTES)
    memory.close()


class Short(SharedMemory):
    """A machine with few addresses for a process."""

    addresses_bytes = 0

    def __init__(self, limit_bytes: int, *, huge_pages: bool = False) -> None:
        if limit_bytes > self.addresses_bytes:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        super().__init__(limit_bytes, huge_pages=huge_pages)


def test_without_addresses_to_grow_it_does_not_and_without_any_it_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.tiers.dram.taking.SharedMemory", Short)
    monkeypatch.setattr(Short, "addresses_bytes", MIB)
    memory = take_memory(MIB)
    assert "unless the pool is restarted" in add_memory(memory, MIB)
    memory.close()
    why = r"cannot be had \(Cannot allocate memory; see ulimit -v\)\.$"
    with pytest.raises(StartupError, match=f"^2 MiB of addresses {why}"):
        take_memory(2 * MIB)
    with pytest.raises(StartupError, match=f"^huge pages {why}"):
        take_memory(2 * MIB, huge_pages=True)


def test_memory_that_is_refused_while_it_is_taken_is_a_sentence() -> None:
    memory = SharedMemory(2 * MIB)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))  # the kernel holds memory to it too
    try:
        refused = add_memory(memory, 2 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused == ("2 MiB of DRAM are asked for and there is no memory for it (File too large)")
    assert add_memory(memory, 2 * MIB) == ""
    memory.close()


def test_how_far_it_is_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forebay.tiers.dram.taking._PROGRESS_S", -1.0)
    with caplog.at_level(logging.INFO):
        take_memory(3 * MIB).close()
    assert "taking DRAM: 3 MiB of 3 MiB" in caplog.text
    monkeypatch.setattr("forebay.tiers.dram.taking._PROGRESS_S", 3600.0)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        take_memory(3 * MIB).close()
    assert "taking DRAM" not in caplog.text


def test_f9_few_addresses_are_enough_where_it_does_not_grow() -> None:
    """F9: `ulimit -v` below the machine's memory was refused with a misleading sentence."""
    code = """
import resource
from forebay.errors import StartupError
from forebay.sys.memory import total_memory_bytes
from forebay.tiers.dram.taking import add_memory, take_memory
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + total_memory_bytes() // 2
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
memory = take_memory(1 << 20)
print(add_memory(memory, 1 << 20))
try:
    take_memory(limit)
except StartupError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown, begun = ended.stdout.splitlines()
    assert grown == "1 MiB more of DRAM cannot be had unless the pool is restarted"
    assert begun.endswith("of addresses cannot be had (Cannot allocate memory; see ulimit -v).")


def placed(root: Path, **wanted: object) -> NodePlacement:
    return NodePlacement(root=root, **wanted)  # type: ignore[arg-type]


def is_bound() -> str:
    """The policy of this process's slab, as the kernel has it."""
    lines = Path("/proc/self/numa_maps").read_text().splitlines()
    return next(line.split()[1] for line in lines if "/memfd:forebay-slab" in line)


def test_memory_is_bound_to_the_nodes_that_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    """On the real nodes of this machine."""
    node = min(allowed_nodes(Path("/")), default=0)
    with caplog.at_level(logging.INFO):
        try:
            memory = take_memory(MIB, NodePlacement(nodes=(node,)))
        except StartupError as error:
            assert "SYS_NICE" in str(error)  # noqa: PT017
            pytest.skip(str(error))
    assert is_bound() == f"bind:{node}"
    assert f"1 MiB of DRAM: NUMA node {node}, as asked" in caplog.text
    assert memory.bytes_on_nodes == {node: MIB}
    assert add_memory(memory, MIB) == ""
    assert memory.bytes_on_nodes == {node: MIB}, "it may be large, and in use"
    memory.close()
    memory = take_memory(MIB, NodePlacement())
    assert not is_bound().startswith("bind") or len(allowed_nodes(Path("/"))) > 1
    memory.close()


def test_t49_a_named_node_without_that_much_memory_is_a_sentence(tmp_path: Path) -> None:
    root = two_sockets(tmp_path, (1, 8))
    wanted = "2 MiB of DRAM are asked for and the memory of NUMA node 0 leaves 1 MiB"
    with pytest.raises(StartupError, match=f"^{wanted}; lower --dram.$"):
        take_memory(2 * MIB, placed(root, nodes=(0,)))
    memory = take_memory(0, placed(root, nodes=(0,)))
    assert add_memory(memory, 2 * MIB) == wanted
    assert memory.segments == []
    memory.close()


def test_memory_that_does_not_fit_near_the_gpu_is_taken_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        take_memory(2 * MIB, placed(two_sockets(tmp_path, (8, 1)))).close()
    assert "2 MiB of DRAM: not all of it fits on NUMA node 1, near the GPU" in caplog.text


def no_such_node(root: Path) -> Path:
    """A machine that says it has a node which the kernel does not know, near the GPU."""
    plant_nodes(root, {0: 8, 1000: 8}, "0,1000")
    return plant_gpu(root, GPU, 1000)


def test_where_memory_cannot_be_bound_it_is_taken_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = take_memory(2 * MIB, placed(no_such_node(tmp_path)))
    assert memory.size_bytes == 2 * MIB
    assert "DRAM is not bound to a NUMA node (Invalid argument)" in caplog.text
    memory.close()


def test_memory_that_cannot_be_bound_is_not_taken_where_it_could_be_a_gpus(tmp_path: Path) -> None:
    """Grace, in a container that forbids it: the kernel would take a GPU's own memory as well."""
    plant_nodes(tmp_path, {1000: 8, 1001: 1000}, "1000")
    why = r"^memory of NUMA node 1000 cannot be had by name \(Invalid argument; .* SYS_NICE .*$"
    with pytest.raises(StartupError, match=why):
        take_memory(2 * MIB, placed(tmp_path))


def test_a_named_node_that_memory_cannot_be_bound_to_is_a_sentence(tmp_path: Path) -> None:
    why = r"^memory of NUMA node 1000 cannot be had .*\(Invalid argument; .*\); change --numa\.$"
    with pytest.raises(StartupError, match=why):
        take_memory(2 * MIB, placed(no_such_node(tmp_path), nodes=(1000,)))
