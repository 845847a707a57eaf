"""Takes host memory for a slab: all of it before anything is served, or an error in a sentence.

Pages are zeroed as they are taken, 2 GB/s a core, by as many threads as there are cores, up to 16.
If that is more than the machine has left, or than a cgroup allows, it is refused beforehand: a
process that tried would be killed. The memory comes from the nodes that its placement chooses.
"""

import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from forebay.errors import StartupError
from forebay.quantity import format_size
from forebay.sys.machine.binding import BindingError
from forebay.sys.machine.nodes import list_of
from forebay.sys.machine.placement import ANYWHERE, NodePlacement
from forebay.sys.memory import available_memory, total_memory_bytes
from forebay.sys.shared import SEGMENTS_MAX, SharedMemory

_PROGRESS_S: Final = 2.0
_log: Final = logging.getLogger(__name__)


def take_memory(
    size_bytes: int, placement: NodePlacement = ANYWHERE, *, huge_pages: bool = False
) -> SharedMemory:
    """Memory of this size, which can grow to the machine's; a StartupError says why not.

    If this process may not have so many addresses, it cannot grow.
    """
    total_bytes = total_memory_bytes()
    if size_bytes > total_bytes:
        raise StartupError(
            f"{format_size(size_bytes)} of DRAM are asked for and this machine has"
            f" {format_size(total_bytes)}; lower --dram."
        )
    memory = _addresses(total_bytes, huge_pages=huge_pages)
    if isinstance(memory, OSError):  # there may be enough addresses if it need not grow
        memory = _addresses(size_bytes, huge_pages=huge_pages)
    if isinstance(memory, OSError):
        what = "huge pages" if huge_pages else f"{format_size(size_bytes)} of addresses"
        raise StartupError(f"{what} cannot be had ({memory.strerror}; see ulimit -v).")
    memory.placement = placement
    refused = add_memory(memory, size_bytes) if size_bytes else ""
    if refused:
        memory.close()
        advice = "" if "--numa" in refused else "; lower --dram"
        raise StartupError(f"{refused}{advice}.")
    return memory


def _addresses(limit_bytes: int, *, huge_pages: bool) -> SharedMemory | OSError:
    try:
        return SharedMemory(limit_bytes, huge_pages=huge_pages)
    except OSError as error:
        return error


def add_memory(memory: SharedMemory, size_bytes: int) -> str:
    """Take so much more; why that failed, without a full stop, or "". Not on the pool's thread."""
    return _why_not(memory, size_bytes) or _take(memory, size_bytes)


def _why_not(memory: SharedMemory, size_bytes: int) -> str:
    wanted = format_size(size_bytes)
    total_bytes, new_bytes = total_memory_bytes(), memory.size_bytes + size_bytes
    if new_bytes > total_bytes:
        return (
            f"{format_size(new_bytes)} of DRAM are asked for and this machine has"
            f" {format_size(total_bytes)}"
        )
    is_full = new_bytes > memory.limit_bytes or len(memory.segments) >= SEGMENTS_MAX
    if is_full:  # verify: segments of a slab
        return f"{wanted} more of DRAM cannot be had unless the pool is restarted"
    available = available_memory()
    is_too_much = size_bytes > available.size_bytes and not memory.huge_pages
    if is_too_much:  # verify: memory that is left
        return (
            f"{wanted} of DRAM are asked for and {available.limited_by} leaves"
            f" {format_size(available.size_bytes)}"
        )
    return ""


def _take(memory: SharedMemory, size_bytes: int) -> str:
    wanted, begun = format_size(size_bytes), time.monotonic()
    chosen = memory.placement.choose(size_bytes, huge_pages=memory.huge_pages)
    if chosen.refusal:
        return chosen.refusal
    if chosen.why:
        _log.info("%s of DRAM: %s", wanted, chosen.why)
    extend = partial(memory.extend, size_bytes, _progress(wanted, begun))
    try:
        _extend(extend, chosen.nodes, must_be_bound=memory.placement.must_bind())
    except BindingError as error:
        return (
            f"memory of NUMA node {list_of(chosen.nodes)} cannot be had by name ({error.strerror};"
            " containers need the capability SYS_NICE for it); change --numa"
        )
    except OSError as error:
        kind = "huge pages" if memory.huge_pages else "memory"
        return f"{wanted} of DRAM are asked for and there is no {kind} for it ({error.strerror})"
    seconds = max(time.monotonic() - begun, 1e-6)
    if memory.huge_pages or len(memory.segments) == 1:  # of small pages, only before it is used
        memory.see_nodes()
    _log.info("%s of DRAM taken: %.1f GB/s", wanted, size_bytes / seconds / 1e9)
    return ""


def _extend(extend: Callable[..., object], nodes: Collection[int], *, must_be_bound: bool) -> None:
    """Take memory from these nodes; from any if these cannot be bound, unless they must be."""
    try:
        extend(nodes=nodes)
    except BindingError as error:
        if must_be_bound:
            raise
        _log.warning("DRAM is not bound to a NUMA node (%s): see docs/hardware.md", error.strerror)
        extend()


def _progress(wanted: str, begun: float) -> Callable[[int], None]:
    """Logs now and then how much is done."""
    shown = begun

    def taken(done_bytes: int) -> None:
        nonlocal shown
        if time.monotonic() > shown + _PROGRESS_S:
            shown = time.monotonic()
            _log.info("taking DRAM: %s of %s", format_size(done_bytes), wanted)

    return taken
