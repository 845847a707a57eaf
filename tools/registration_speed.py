"""Registering shared memory with a GPU: seconds a GiB by kind of page, size of a step and threads.

Usage: registration_speed.py [--gib 4]. Needs a GPU and torch. Kinds of pages that this machine does
not allow are left out: large ones want shmem_enabled to be `advise` or more, huge ones reserved
pages. Memory is taken first, as a pool does, and mapped a second time, as an engine does. `wait` is
the longest that a launch on another thread took meanwhile. Ratios are to the first line.
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402

from forebay.sys.machine import limits  # noqa: E402
from forebay.sys.memory import populate_taken  # noqa: E402
from forebay.sys.shared import AddressRange, SharedMemory  # noqa: E402

MIB = 1 << 20
RUNS = ((64, 1), (256, 1), (1024, 1), (64, 4))  # MiB a step, threads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=int, default=4)
    size_bytes = parser.parse_args().gib << 30
    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use.", file=sys.stderr)
        return 2
    torch.zeros(1, device="cuda")
    first_s = 0.0
    print("pages   step  threads   map s/GiB  register s/GiB  ratio  longest wait ms")
    for kind, memory in kinds(size_bytes):
        for step_mib, threads in RUNS:
            map_s, register_s, wait_s = measured(memory, step_mib * MIB, threads)
            first_s = first_s or map_s + register_s
            gib = size_bytes / (1 << 30)
            print(
                f"{kind:6} {step_mib:5} {threads:8} {map_s / gib:11.3f} {register_s / gib:15.3f}"
                f" {(map_s + register_s) / first_s:6.2f} {wait_s * 1e3:16.2f}",
                flush=True,
            )
        memory.close()
    return 0


def kinds(size_bytes: int) -> Iterator[tuple[str, SharedMemory]]:
    is_large = limits.shared_huge_pages() in {"advise", "always", "within_size", "force"}
    yield "large" if is_large else "small", SharedMemory.of(size_bytes)
    found = limits.huge_pages()
    if found is not None and found.free * found.page_bytes >= size_bytes:
        memory = SharedMemory(size_bytes, huge_pages=True)
        memory.extend(size_bytes)
        yield "huge", memory


def measured(memory: SharedMemory, step_bytes: int, threads: int) -> tuple[float, float, float]:
    """Seconds that mapping and registering took, summed up, and the longest launch."""
    mapped = AddressRange(memory.size_bytes)
    mapped.map(memory.segments[0])
    starts = list(range(0, memory.size_bytes, step_bytes))
    spent = [0.0, 0.0]
    lock, waits, is_over = threading.Lock(), [0.0], threading.Event()

    def register() -> None:
        torch.cuda.set_device(0)
        while True:
            with lock:
                if not starts:
                    return
                address = mapped.address + starts.pop(0)
            begun = time.perf_counter()
            populate_taken(address, step_bytes)
            there = time.perf_counter()
            code = torch.cuda.cudart().cudaHostRegister(address, step_bytes, 0)
            ended = time.perf_counter()
            assert int(code) == 0, f"cudaHostRegister answers {int(code)}"
            with lock:
                spent[0] += there - begun
                spent[1] += ended - there

    def launch() -> None:
        torch.cuda.set_device(0)
        some = torch.zeros(1, device="cuda")
        while not is_over.is_set():
            begun = time.perf_counter()
            some.add_(1)
            waits[0] = max(waits[0], time.perf_counter() - begun)
            time.sleep(0.0005)

    launcher = threading.Thread(target=launch)
    workers = [threading.Thread(target=register) for _ in range(threads)]
    launcher.start()
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took_s = time.perf_counter() - begun
    is_over.set()
    launcher.join()
    for start in range(0, memory.size_bytes, step_bytes):
        torch.cuda.cudart().cudaHostUnregister(mapped.address + start)
    torch.cuda.synchronize()
    mapped.close()
    share = spent[0] / max(sum(spent), 1e-9)  # threads work at once: share out what it took
    return took_s * share, took_s * (1 - share), waits[0]


if __name__ == "__main__":
    sys.exit(main())
