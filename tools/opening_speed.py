"""What a large drive costs a pool when it starts: seconds, CPU and memory by the number of regions.

Usage: opening_speed.py [--dir /dev/shm] [--regions 2000,8000]. Regions are sealed ones of 256 MiB
with 63 chunks of 4 MiB each, as a pool leaves them, but sparse: what is read at a start (header,
table of contents, footer) is really there, in 16 KiB of memory a region, and payloads are not. The
drive takes no time (`forebay.testing.nulldisk`), so this is the pool's own work.

  answers   seconds until the first engine may join     known   until all chunks are known
  CPU s     of the pool, until then                     MB      of memory

CPU seconds and memory are those beyond a pool on an empty directory, which is the first line.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from forebay.bench.processes import PoolProcess, pool_stats, running_pool  # noqa: E402
from forebay.metrics import reading  # noqa: E402
from forebay.pool.client import Client  # noqa: E402
from forebay.record import region as layout  # noqa: E402
from forebay.record.header import (  # noqa: E402
    HASH_BYTES,
    KEY_BYTES,
    NAMESPACE_BYTES,
    RecordHeader,
    RecordName,
)
from forebay.record.header import ROOT as ROOT_KEY  # noqa: E402
from forebay.settings import DiskSetting  # noqa: E402
from forebay.sys.memory import PAGE_BYTES  # noqa: E402
from forebay.tiers.disk.regions.directory import region_name  # noqa: E402

DRAM_BYTES = 64 << 20
REGION_BYTES = 256 << 20
PAYLOAD_BYTES = 4 << 20
RECORD_BYTES = PAGE_BYTES + PAYLOAD_BYTES
RECORDS = 63
CHAIN_RECORDS = 8
WAIT_S = 600.0
LOOK_S = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--regions", default="2000,8000")
    wanted = parser.parse_args()
    empty_s = empty_mb = 0.0
    print("regions      TB     chunks  answers s  known s  CPU s      MB  us/region  bytes/chunk")
    for count in (0, *map(int, wanted.regions.split(","))):
        place = Path(tempfile.mkdtemp(dir=wanted.dir))
        try:
            for number in range(1, count + 1):
                write_region(place, number)
            answers_s, known_s, cpu_s, mb = opened(place, count)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if not count:
            empty_s, empty_mb = cpu_s, mb
        chunks, more_s, more_mb = count * RECORDS, cpu_s - empty_s, mb - empty_mb
        print(
            f"{count:7} {count * REGION_BYTES / 1e12:7.2f} {chunks:10,} {answers_s:10.2f}"
            f" {known_s:8.2f} {more_s:6.2f} {more_mb:7.1f} {more_s / max(1, count) * 1e6:10.0f}"
            f" {more_mb * 1e6 / max(1, chunks):12.0f}",
            flush=True,
        )
    return 0


def opened(place: Path, regions: int) -> tuple[float, float, float, float]:
    """Start a pool on a directory: the figures of a line."""
    disks = [DiskSetting(str(place), max(regions + 8, 16) * REGION_BYTES + (64 << 20))]
    begun = time.monotonic()
    pool_of = running_pool(DRAM_BYTES, disks, "forebay.testing", ["--null-drive"])
    with pool_of as pool, pool.client() as watch:
        answers_s = time.monotonic() - begun
        while known(watch) < regions * RECORDS and time.monotonic() < begun + WAIT_S:
            time.sleep(LOOK_S)
        assert known(watch) == regions * RECORDS, "not all chunks were found"
        return answers_s, time.monotonic() - begun, pool.cpu_s(), resident_mb(pool)


def known(watch: Client) -> int:
    return int(reading.tier_of(pool_stats(watch), "disk")["chunks"])


def resident_mb(pool: PoolProcess) -> float:
    pages = int(Path(f"/proc/{pool.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def write_region(place: Path, number: int) -> None:
    contents, parent = bytearray(), ROOT_KEY
    for record in range(RECORDS):
        key = os.urandom(KEY_BYTES)
        before = parent if record % CHAIN_RECORDS else ROOT_KEY
        name = RecordName(bytes(NAMESPACE_BYTES), 0, key, before)
        header = RecordHeader(name, PAYLOAD_BYTES, bytes(HASH_BYTES))
        contents += layout.pack_entry(header, layout.FIRST_RECORD + record * RECORD_BYTES)
        parent = key
    end = layout.FIRST_RECORD + RECORDS * RECORD_BYTES
    digest = layout.contents_hash(bytes(contents))
    footer = layout.Footer(number, REGION_BYTES, end, RECORDS, digest)
    file = os.open(place / region_name(number), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(file, REGION_BYTES)
        os.pwrite(file, layout.pack_header(layout.RegionHeader(number, REGION_BYTES)), 0)
        os.pwrite(file, contents, end)
        os.pwrite(file, layout.pack_footer(footer), REGION_BYTES - PAGE_BYTES)
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main())
