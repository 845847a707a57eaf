"""Memory that other processes map: sealed, allocated by ranges, gone with the last who has it."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from forebay.sys.memory import PAGE_BYTES
from forebay.sys.shared import SharedMemory, total_memory_bytes


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
