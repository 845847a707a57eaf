"""Memory that other processes map: sealed, allocated by ranges, gone with the last who has it."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from forebay.sys.memory import PAGE_BYTES
from forebay.sys.shared import SharedMemory, memory_limit_bytes, total_memory_bytes


def allocated(memory: SharedMemory) -> int:
    return os.fstat(memory.descriptor).st_blocks * 512


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_pages_are_taken_and_given_back_by_ranges() -> None:
    memory = SharedMemory(16 * PAGE_BYTES)
    assert allocated(memory) == 0
    memory.allocate(4 * PAGE_BYTES, 8 * PAGE_BYTES)
    assert allocated(memory) == 8 * PAGE_BYTES
    memory.view[4 * PAGE_BYTES : 4 * PAGE_BYTES + 5] = b"bytes"
    memory.discard(4 * PAGE_BYTES, 4 * PAGE_BYTES)
    assert allocated(memory) == 4 * PAGE_BYTES
    assert not any(memory.view[4 * PAGE_BYTES : 4 * PAGE_BYTES + 5])
    memory.close()


def test_nobody_can_change_its_size_under_a_mapping() -> None:
    memory = SharedMemory(4 * PAGE_BYTES)
    for size in (PAGE_BYTES, 8 * PAGE_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.descriptor, size)
    memory.close()


def test_what_one_maps_another_sees() -> None:
    memory = SharedMemory(PAGE_BYTES)
    other = mmap.mmap(memory.descriptor, PAGE_BYTES)
    memory.view[:5] = b"bytes"
    assert other[:5] == b"bytes"
    memory.close()
    assert other[:5] == b"bytes", "a mapping outlives the descriptor"
    other.close()


def test_memory_with_a_view_left_is_unmapped_with_that_view() -> None:
    memory = SharedMemory(PAGE_BYTES)
    view = memory.view[:5]
    memory.close()
    view[:] = b"bytes"
    assert bytes(view) == b"bytes"


def test_memory_that_is_not_to_be_had_leaves_no_descriptor() -> None:
    before = descriptors()
    with pytest.raises(OSError, match=r"."):
        SharedMemory(1 << 62)
    assert descriptors() == before


def test_a_range_that_cannot_be_discarded_is_an_error() -> None:
    memory = SharedMemory(PAGE_BYTES)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        memory.discard(0, 0)
    memory.close()


def test_huge_pages_are_had_or_refused() -> None:
    """A machine without huge pages says so when the first are allocated, not by a signal."""
    try:
        memory = SharedMemory(2 << 20, huge_pages=True)
    except OSError:
        return
    memory.close()


def test_the_machine_has_memory() -> None:
    assert total_memory_bytes() > 1 << 28


CGROUPS = {
    "none": ("", {}, None),
    "v2": ("0::/a/b", {"a/b/memory.max": "300\n"}, 300),
    "v2, of a parent": ("0::/a/b", {"a/b/memory.max": "max\n", "a/memory.max": "400\n"}, 400),
    "v2, the least": ("0::/a", {"a/memory.max": "500\n", "memory.max": "450\n"}, 450),
    "v2, of a container": ("0::/gone/far", {"memory.max": "600\n"}, 600),
    "hybrid": ("1:cpu:/\n0::/a", {"unified/a/memory.max": "700\n"}, 700),
    "v1": ("3:cpu:/\n4:memory:/a", {"memory/a/memory.limit_in_bytes": "800\n"}, 800),
    "v1, unlimited": (
        "4:memory:/",
        {"memory/memory.limit_in_bytes": "9223372036854771712\n"},
        None,
    ),
    "another controller": ("4:cpu:/a", {"memory/a/memory.limit_in_bytes": "1\n"}, None),
}


@pytest.mark.parametrize("kind", CGROUPS)
def test_t49_the_memory_limits_of_cgroups_are_known(tmp_path: Path, kind: str) -> None:
    said, files, wanted = CGROUPS[kind]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(said)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_limit_bytes(tmp_path) == (wanted or total_memory_bytes())


def test_t49_where_nothing_is_said_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path) == total_memory_bytes()
