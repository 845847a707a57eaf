"""Pages copied by a kernel: for so many small pages that copy engines would take too long.

It reads and writes registered host memory directly, at its host address, which is the device's too
(`cuda` asks the driver whether it is). A few multiprocessors fill the wire.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl

PROGRAMS: Final = 24
_CHUNK_BYTES: Final = 8192
_WARPS: Final = 8


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator,unused-ignore]
def _copy_pages(  # type: ignore[no-untyped-def]  # noqa: ANN202
    sources,  # noqa: ANN001
    targets,  # noqa: ANN001
    count,  # noqa: ANN001
    words,  # noqa: ANN001
    WORDS: tl.constexpr,  # noqa: N803
):
    step = tl.num_programs(0)
    lanes = tl.arange(0, WORDS)
    job = tl.program_id(0)
    while job < count:
        source = tl.load(sources + job).to(tl.pointer_type(tl.int64))
        target = tl.load(targets + job).to(tl.pointer_type(tl.int64))
        source = tl.multiple_of(source, 16)
        target = tl.multiple_of(target, 16)
        for start in range(0, words, WORDS):
            at = start + lanes
            mask = at < words
            tl.store(target + at, tl.load(source + at, mask=mask, other=0), mask=mask)
        job += step


def copy_pages(sources: Any, targets: Any, page_bytes: int, programs: int = PROGRAMS) -> None:
    """Copy pages of 16-byte multiples between int64 arrays of addresses, on the current stream."""
    here, count = upload(sources, targets), len(sources)
    words = page_bytes // 8
    lanes = min(triton.next_power_of_2(words), _CHUNK_BYTES // 8)
    _copy_pages[(min(programs, count),)](
        here[0], here[1], count, words, WORDS=lanes, num_warps=_WARPS
    )


def upload(sources: Any, targets: Any, *, is_interpreted: bool = False) -> Any:
    """Two arrays of addresses as rows of one tensor on the GPU; a row may be longer by one.

    What is put on the current stream afterwards sees them.
    """
    count = len(sources)
    # Rows begin at 16 bytes, or an odd count would be another kernel, compiled when it is needed.
    pair = torch.empty((2, count + count % 2), dtype=torch.int64, pin_memory=not is_interpreted)
    both = pair.numpy()
    both[0, :count], both[1, :count] = sources, targets
    # The allocator keeps the pinned pair until the upload is done.
    return pair if is_interpreted else pair.to("cuda", non_blocking=True)
