"""Memory that other processes map: sealed, taken whole, gone with the last who has it."""

import errno
import mmap
import os
import re
from pathlib import Path

import pytest
from tests.pool_process import open_files

from forebay.sys.memory import PAGE_BYTES
from forebay.sys.shared import AddressRange, Segment, SharedMemory


def allocated(memory: SharedMemory) -> list[int]:
    return [os.fstat(segment.descriptor).st_blocks * 512 for segment in memory.segments]


def descriptors() -> int:
    return open_files("memfd:")


def test_every_page_is_taken_at_once_and_given_back_by_ranges() -> None:
    memory = SharedMemory(16 * PAGE_BYTES)
    assert memory.size_bytes == 0
    heard: list[int] = []
    memory.extend(8 * PAGE_BYTES, heard.append)
    assert allocated(memory) == [8 * PAGE_BYTES]
    assert heard[-1] == 8 * PAGE_BYTES
    memory.view[4 * PAGE_BYTES : 4 * PAGE_BYTES + 5] = b"bytes"
    memory.discard(4 * PAGE_BYTES, 3 * PAGE_BYTES)
    assert allocated(memory) == [5 * PAGE_BYTES]
    assert not any(memory.view[4 * PAGE_BYTES : 4 * PAGE_BYTES + 5])
    memory.close()


def test_it_grows_by_segments_behind_one_another() -> None:
    memory = SharedMemory.of(4 * PAGE_BYTES)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        memory.extend(PAGE_BYTES)
    memory.close()
    memory = SharedMemory(4 * PAGE_BYTES)
    for size in (1, 3):
        memory.extend(size * PAGE_BYTES)
    memory.view[PAGE_BYTES - 2 : PAGE_BYTES + 3] = b"bytes"
    assert os.pread(memory.segments[0].descriptor, 2, PAGE_BYTES - 2) == b"by"
    assert os.pread(memory.segments[1].descriptor, 3, 0) == b"tes"
    memory.close()


def test_nobody_can_change_a_segments_size() -> None:
    """F8: a client of a small pool took 512 MiB through the slab's descriptor."""
    memory = SharedMemory.of(4 * PAGE_BYTES)
    for size in (PAGE_BYTES, 8 * PAGE_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.segments[0].descriptor, size)
    with pytest.raises(PermissionError):
        os.posix_fallocate(memory.segments[0].descriptor, 4 * PAGE_BYTES, PAGE_BYTES)
    memory.close()


def test_t45_no_segment_is_in_a_core_dump() -> None:
    memory = SharedMemory(3 * PAGE_BYTES)
    for size in (1, 2):
        memory.extend(size * PAGE_BYTES)
    mapped = Path("/proc/self/smaps").read_text().split("memfd:forebay-slab")[1:]
    flags = [re.findall(r"^VmFlags: (.*)$", each, re.MULTILINE)[0].split() for each in mapped]
    assert len(flags) >= 2
    assert all("dd" in each for each in flags)
    memory.close()


def test_what_one_maps_another_sees() -> None:
    memory = SharedMemory.of(PAGE_BYTES)
    other = AddressRange(4 * PAGE_BYTES)
    other.map(memory.segments[0])
    memory.view[:5] = b"bytes"
    assert bytes(other.view[:5]) == b"bytes"
    memory.close()
    assert bytes(other.view[:5]) == b"bytes", "a mapping outlives the descriptor"
    assert other.close()


def test_addresses_with_a_view_left_stay_until_it_is_released() -> None:
    memory = SharedMemory.of(PAGE_BYTES)
    other = AddressRange(PAGE_BYTES)
    other.map(memory.segments[0])
    view = other.view[:5]
    assert not other.close()
    view[:] = b"bytes"
    assert bytes(memory.view[:5]) == b"bytes"
    view.release()
    assert other.close()
    memory.close()


def test_addresses_begin_where_large_pages_can() -> None:
    assert AddressRange(PAGE_BYTES, 1 << 21).address % (1 << 21) == 0


def test_a_segment_that_does_not_fit_is_refused() -> None:
    memory = SharedMemory.of(2 * PAGE_BYTES)
    other = AddressRange(PAGE_BYTES)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        other.map(memory.segments[0])
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        other.map(Segment(-1, PAGE_BYTES))
    assert other.mapped_bytes == 0
    memory.close()


def test_memory_that_is_not_to_be_had_leaves_no_descriptor() -> None:
    before = descriptors()
    for size in (1 << 62, 1 << 63, 1 << 64):
        with pytest.raises(OSError, match=r"."):
            SharedMemory(size)
    assert descriptors() == before


def test_a_kernel_that_cannot_populate_takes_the_pages_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    monkeypatch.setattr("forebay.sys.shared.populate", lambda *_: refusal)
    memory = SharedMemory.of(4 * PAGE_BYTES)
    assert allocated(memory) == [4 * PAGE_BYTES]
    memory.close()


def test_memory_that_runs_out_while_it_is_taken_leaves_all_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = SharedMemory(4 * PAGE_BYTES)
    memory.extend(PAGE_BYTES)
    before = descriptors()
    refusal = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    with monkeypatch.context() as patch:
        patch.setattr("forebay.sys.shared.populate", lambda *_: refusal)
        with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
            memory.extend(2 * PAGE_BYTES)
    assert (memory.size_bytes, descriptors()) == (PAGE_BYTES, before)
    memory.extend(3 * PAGE_BYTES)
    memory.view[PAGE_BYTES : PAGE_BYTES + 5] = b"bytes"
    assert os.pread(memory.segments[1].descriptor, 5, 0) == b"bytes"
    memory.close()


def test_a_range_that_cannot_be_discarded_is_an_error() -> None:
    memory = SharedMemory.of(PAGE_BYTES)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        memory.discard(mmap.PAGESIZE // 2, PAGE_BYTES)
    memory.close()


def test_huge_pages_are_had_or_refused() -> None:
    """A machine without huge pages says so when they are taken, not by a signal."""
    try:
        memory = SharedMemory(2 << 20, huge_pages=True)
        memory.extend(2 << 20)
    except OSError:
        return
    memory.close()
