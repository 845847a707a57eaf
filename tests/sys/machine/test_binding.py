"""Memory is bound by the real kernel; what it says of pages is read."""

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.sys.machine.binding import BindingError, bytes_on_nodes
from forebay.sys.machine.nodes import allowed_nodes
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.shared import SharedMemory

ROOT = Path("/")
MIB = 1 << 20


def bound(size_bytes: int, nodes: set[int]) -> SharedMemory:
    memory = SharedMemory(size_bytes)
    try:
        memory.extend(size_bytes, nodes=nodes)
    except BindingError as error:
        if error.strerror != "Invalid argument":
            pytest.skip(f"this kernel does not let us bind memory ({error.strerror})")
        raise
    return memory


def policies() -> list[str]:
    lines = (ROOT / "proc/self/numa_maps").read_text().splitlines()
    return [line.split()[1] for line in lines if "/memfd:forebay-slab" in line]


def test_memory_is_bound_and_its_pages_lie_there() -> None:
    node = min(allowed_nodes(ROOT), default=0)
    memory = bound(3 * MIB, {node})
    assert f"bind:{node}" in policies()
    memory.see_nodes()
    assert memory.bytes_on_nodes == {node: 3 * MIB}
    memory.close()


def test_the_binding_is_the_memorys_and_not_the_processs() -> None:
    """An engine that touches a page which was given back has it from the same nodes."""
    node = min(allowed_nodes(ROOT), default=0)
    memory = bound(2 * MIB, {node})
    code = """
import mmap, sys
mapped = mmap.mmap(int(sys.argv[1]), 2 << 20)
mapped[0] = 1
lines = open("/proc/self/numa_maps").read().splitlines()
print([line.split()[1] for line in lines if "/memfd:forebay-slab" in line])
"""
    descriptor = memory.segments[0].descriptor
    ended = subprocess.run(
        [sys.executable, "-c", code, str(descriptor)],
        pass_fds=[descriptor],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == f"['bind:{node}']\n"
    memory.close()


def test_a_node_that_is_not_there_is_refused_and_nothing_is_kept() -> None:
    memory = SharedMemory(2 * MIB)
    with pytest.raises(BindingError):
        memory.extend(MIB, nodes={1023})
    assert (memory.size_bytes, memory.segments) == (0, [])
    memory.extend(2 * MIB)
    memory.view[:5] = b"bytes"
    memory.close()


def test_pages_of_a_range_are_counted_by_node(tmp_path: Path) -> None:
    assert bytes_on_nodes(0, 1 << 40, tmp_path) == {}
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/numa_maps").write_text(
        "00000fff default file=/usr/bin/python3 mapped=1 N0=1 kernelpagesize_kB=4\n"
        "00001000 bind:1 file=/memfd:x\\040(deleted) dirty=5 N0=2 N1=3 kernelpagesize_kB=4\n"
        "00002000 default\n"
        "00003000 bind:1 file=/memfd:x\\040(deleted) huge dirty=2 N1=2 kernelpagesize_kB=2048\n"
        "00004000 default anon=1 N1=1 kernelpagesize_kB=4\n"
    )
    found = bytes_on_nodes(0x1000, 0x4000, tmp_path)
    assert found == {0: 2 * PAGE_BYTES, 1: 3 * PAGE_BYTES + 4 * MIB}
