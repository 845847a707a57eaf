"""The drive that takes no time: what is found again of what was written, and what is not."""

from pathlib import Path

import pytest
from tests import pool_process

from forebay.bench.pool.stored_chains import new_chain
from forebay.bench.processes import pool_stats, running_pool, settled
from forebay.metrics import reading
from forebay.pool.client.outcomes import Loaded
from forebay.settings import DiskSetting
from forebay.sys.memory import PAGE_BYTES
from forebay.testing.nulldisk import PAYLOAD_BYTES_MIN, NullDisk

PAYLOAD_BYTES = 256 << 10
DRAM_BYTES = 8 << 20
CHAINS, CHUNKS = 24, 4  # three times what DRAM holds


@pytest.fixture
def opened(tmp_path: Path) -> tuple[NullDisk, int]:
    disk = NullDisk()
    directory = disk.open_directory(str(tmp_path))
    return disk, disk.open(directory, "file", create=True, direct=True, write=True)


def test_pages_are_kept_and_payloads_stay_what_the_buffer_has(opened: tuple[NullDisk, int]) -> None:
    disk, file = opened
    disk.preallocate(file, 1 << 30)
    page, payload = memoryview(b"h" * PAGE_BYTES), memoryview(b"p" * PAYLOAD_BYTES_MIN)
    assert disk.write(file, [page, payload], PAGE_BYTES) == len(page) + len(payload)
    found = [memoryview(bytearray(PAGE_BYTES)), memoryview(bytearray(b"x" * PAYLOAD_BYTES_MIN))]
    assert disk.read(file, found, PAGE_BYTES) == len(page) + len(payload)
    assert (found[0], bytes(found[1])) == (page, b"x" * PAYLOAD_BYTES_MIN)


def test_a_read_ends_where_the_file_does(opened: tuple[NullDisk, int]) -> None:
    disk, file = opened
    disk.preallocate(file, 3 * PAGE_BYTES)
    buffers = [memoryview(bytearray(PAGE_BYTES)), memoryview(bytearray(PAYLOAD_BYTES_MIN))]
    assert disk.read(file, buffers, PAGE_BYTES) == 2 * PAGE_BYTES
    assert disk.read(file, buffers, 3 * PAGE_BYTES) == 0


def test_a_file_counts_as_allocated_and_takes_no_room(opened: tuple[NullDisk, int]) -> None:
    disk, file = opened
    disk.preallocate(file, 1 << 40)
    assert disk.status(file).allocated_bytes == 1 << 40
    assert super(NullDisk, disk).status(file).allocated_bytes < 1 << 20


@pytest.mark.parametrize("is_alike", [True, False], ids=["equal payloads", "others"])
def test_a_pool_on_it_loads_what_verifies_and_nothing_else(is_alike: bool) -> None:
    with pool_process.short_directory() as place:
        disks = [DiskSetting(str(place), 1 << 30)]
        pool_of = running_pool(DRAM_BYTES, disks, "forebay.testing", ["--null-drive"])
        with pool_of as pool, pool.client() as client:
            chains = [new_chain(CHUNKS) for _ in range(CHAINS)]
            for number, chain in enumerate(chains):
                byte = 7 if is_alike else number
                payloads = [memoryview(bytes([byte]) * PAYLOAD_BYTES)] * CHUNKS
                assert client.store(chain, payloads, timeout_s=60).stored == CHUNKS
                settled(client, 0.05)
            loaded = 0
            for chain in chains[:4]:
                with client.load(chain, 0, 60) as found:
                    loaded += len(found.chunks) if isinstance(found, Loaded) else 0
            counters = reading.counters(pool_stats(client))
    if is_alike:
        assert loaded == 4 * CHUNKS
        assert counters["moved_bytes.disk.load"] == 4 * CHUNKS * PAYLOAD_BYTES
    else:
        assert loaded == 0
        assert counters["operations.disk.load.corrupt"]
