"""The exponent code on a GPU: gigabytes of KV a second to and from registered memory, by kernel.

Usage: codec_speed.py [--mib 512]. Needs a GPU and torch. Pages are normal numbers in bfloat16, in
no order. `plain` is the kernel that copies pages as they are; `encode` is what stores do, a kernel
of as many programs as there are pages, and copy engines behind it. Every figure is the best of
five, of decoded bytes; ratios are to `plain` of the same size of page and number of programs.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from forebay.engines.copies.cuda import CudaDriver  # noqa: E402
from forebay.engines.copies.pointers import Batch  # noqa: E402
from forebay.record.exponents import encoded_bytes  # noqa: E402
from forebay.sys.shared import SharedMemory  # noqa: E402

PAGES = (18_432, 65_536)
PROGRAMS = (16, 24, 32, 48, 64)
TOGETHER = 32  # pages one behind the other in memory: the layers of a block


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    size_bytes = parser.parse_args().mib << 20
    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use.", file=sys.stderr)
        return 2
    driver, shared = CudaDriver("cuda:0"), SharedMemory.of(size_bytes)
    memory = np.frombuffer(shared.view, dtype=np.uint8)
    if refused := driver.register(memory.ctypes.data, size_bytes):
        print(refused, file=sys.stderr)
        return 2
    print("page   programs   plain in/out     decode        encode        GB/s of KV (ratio)")
    for page_bytes in PAGES:
        for programs in PROGRAMS:
            print(line(driver, memory, page_bytes, programs), flush=True)
    driver.unregister(memory.ctypes.data)
    return 0


def line(driver: CudaDriver, memory: Any, page_bytes: int, programs: int) -> str:
    from forebay.engines.codec import kernels
    from forebay.engines.copies import gather

    count = len(memory) // page_bytes // TOGETHER * TOGETHER
    pages = torch.randn((count, page_bytes // 2), dtype=torch.bfloat16, device="cuda")
    order = np.random.default_rng(0).permutation(count)
    rows = pages.data_ptr() + order * page_bytes
    plain = memory.ctypes.data + np.arange(count) * page_bytes
    slots = memory.ctypes.data + np.arange(count) * encoded_bytes(page_bytes)
    size = count * page_bytes
    outward = rate(partial(gather.copy_pages, rows, plain, page_bytes, programs), size)
    inward = rate(partial(gather.copy_pages, plain, rows, page_bytes, programs), size)
    batch = Batch(rows, slots, page_bytes, is_encoded=True, together=TOGETHER)
    stream = driver.stream(is_urgent=False)  # copy engines take no batch on the default one
    with torch.cuda.stream(stream):
        encode = rate(partial(driver.copy, stream, batch, inward=False), size)
    decode = rate(partial(kernels.decode_pages, slots, rows, page_bytes, programs), size)
    return (
        f"{page_bytes:>6} {programs:>7}   {inward:5.1f} / {outward:5.1f}"
        f"   {decode:5.1f} ({decode / inward:.2f})   {encode:5.1f} ({encode / outward:.2f})"
    )


def rate(work: Callable[[], None], size_bytes: int) -> float:
    """Gigabytes a second, the best of five; the first call compiles."""
    times = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return float(size_bytes / min(times[1:]) / 1e9)


if __name__ == "__main__":
    sys.exit(main())
