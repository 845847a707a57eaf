"""The exponent code on a GPU, fused with the copies between pages and slots.

Like `copies.gather`, these kernels read and write registered host memory at its host address. A
program handles one page after another. Encoding reads its page twice: first to count exponents,
then, from a cache, to write. Decoding writes all values and then, after a barrier, those that had
escaped; whatever a slot holds, nothing is written outside the page or read outside the slot. The
bytes are those of `codec.exponents`.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl

from forebay.engines.copies.gather import upload
from forebay.record.exponents import escapes_max

PROGRAMS: Final = 24
_LANES: Final = 256  # of eight values each
_WARPS: Final = 8


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _count_exponents(page, values, VALUES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    """How many values of a page have each exponent."""
    counts = tl.zeros((256,), tl.int32)
    lanes = tl.arange(0, VALUES)
    bins = tl.arange(0, 256)
    for start in range(0, values, VALUES):
        at = start + lanes
        value = tl.load(page + at, mask=at < values, other=0).to(tl.int32)
        counts += tl.histogram((value >> 7) & 0xFF, 256)
    # Lanes behind the page were counted as zeros.
    beyond = tl.cdiv(values, VALUES) * VALUES - values
    return counts - tl.where(bins == 0, beyond, 0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _table_of(counts):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """The 16 most frequent exponents (the smaller one of equals), as two words of eight.

    Also each exponent's position among them, or 16 if it is not one of them.
    """
    bins = tl.arange(0, 256)
    keys = counts * 256 + (255 - bins)
    least = tl.max(keys, 0)
    for _ in range(15):
        least = tl.max(tl.where(keys < least, keys, -1), 0)
    is_chosen = keys >= least
    rank = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    byte = bins.to(tl.int64) << ((rank & 7) * 8).to(tl.int64)
    low = tl.sum(tl.where(is_chosen & (rank < 8), byte, 0), 0)
    high = tl.sum(tl.where(is_chosen & (rank >= 8), byte, 0), 0)
    return low, high, tl.where(is_chosen, rank, 16)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _list_escapes(  # type: ignore[no-untyped-def]  # noqa: ANN202, PLR0917
    missed,  # noqa: ANN001
    exponent,  # noqa: ANN001
    position,  # noqa: ANN001
    escapes,  # noqa: ANN001
    escaped,  # noqa: ANN001
    room,  # noqa: ANN001
):
    """Append the escapes of all lanes to those written before, as far as there is room."""
    of_lane = tl.sum(missed, 1)
    before = escaped + tl.cumsum(of_lane, 0) - of_lane
    place = before[:, None] + tl.cumsum(missed, 1) - missed
    tl.store(escapes + place, (position << 8) | exponent, mask=(missed == 1) & (place < room))


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator,unused-ignore]
def _encode_pages(  # type: ignore[no-untyped-def]  # noqa: ANN202, PLR0917
    pages,  # noqa: ANN001
    slots,  # noqa: ANN001
    count,  # noqa: ANN001
    values,  # noqa: ANN001
    room,  # noqa: ANN001
    LANES: tl.constexpr,  # noqa: N803
    ROOM: tl.constexpr,  # noqa: N803
):
    groups = values // 8
    lanes = tl.arange(0, LANES)
    eight = tl.arange(0, 8)[None, :]
    job = tl.program_id(0)
    while job < count:
        source = tl.load(pages + job)
        target = tl.load(slots + job)
        page = tl.multiple_of(source.to(tl.pointer_type(tl.int16)), 16)
        counts = _count_exponents(page, values, 8 * LANES)
        low, high, places = _table_of(counts)
        escapes = (target + 32).to(tl.pointer_type(tl.int32))
        nibbles = (target + 32 + 4 * room).to(tl.pointer_type(tl.int32))
        mantissas = (target + 32 + 4 * room + 4 * groups).to(tl.pointer_type(tl.int64))
        nibbles, mantissas = tl.multiple_of(nibbles, 16), tl.multiple_of(mantissas, 16)
        escaped = 0
        for start in range(0, groups, LANES):
            at = start + lanes
            mask = at < groups
            position = 8 * at[:, None] + eight
            value = tl.load(page + position, mask=mask[:, None], other=0).to(tl.int32)
            exponent = (value >> 7) & 0xFF
            found = tl.gather(places, tl.reshape(exponent, (8 * LANES,)), 0)
            found = tl.reshape(found, (LANES, 8))
            kept = ((value >> 8) & 0x80) | (value & 0x7F)
            tl.store(nibbles + at, tl.sum((found & 15) << (4 * eight), 1), mask=mask)
            words = tl.sum(kept.to(tl.int64) << (8 * eight).to(tl.int64), 1)
            tl.store(mantissas + at, words, mask=mask)
            missed = tl.where(mask[:, None], found >> 4, 0)
            of_all = tl.sum(tl.sum(missed, 1), 0)
            if of_all > 0:
                _list_escapes(missed, exponent, position, escapes, escaped, room)
                escaped += of_all
        every = tl.arange(0, ROOM)
        tl.store(escapes + every, 0, mask=(every >= escaped) & (every < room))
        header = target.to(tl.pointer_type(tl.int64))
        tl.store(header, low)
        tl.store(header + 1, high)
        numbers = target.to(tl.pointer_type(tl.int32))
        tl.store(numbers + 4, escaped)
        tl.store(numbers + 5, values)
        tl.store(header + 3, low * 0)
        job += tl.num_programs(0)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator,unused-ignore]
def _decode_pages(  # type: ignore[no-untyped-def]  # noqa: ANN202, PLR0917
    slots,  # noqa: ANN001
    pages,  # noqa: ANN001
    count,  # noqa: ANN001
    values,  # noqa: ANN001
    room,  # noqa: ANN001
    LANES: tl.constexpr,  # noqa: N803
    ROOM: tl.constexpr,  # noqa: N803
):
    groups = values // 8
    lanes = tl.arange(0, LANES)
    job = tl.program_id(0)
    while job < count:
        source = tl.load(slots + job)
        target = tl.load(pages + job)
        page = tl.multiple_of(target.to(tl.pointer_type(tl.int64)), 16)
        header = source.to(tl.pointer_type(tl.int64))
        low = tl.load(header)
        high = tl.load(header + 1)
        listed = tl.load(source.to(tl.pointer_type(tl.int32)) + 4)
        escapes = (source + 32).to(tl.pointer_type(tl.int32))
        nibbles = (source + 32 + 4 * room).to(tl.pointer_type(tl.int32))
        mantissas = (source + 32 + 4 * room + 4 * groups).to(tl.pointer_type(tl.int64))
        nibbles, mantissas = tl.multiple_of(nibbles, 16), tl.multiple_of(mantissas, 16)
        for start in range(0, groups, LANES):
            at = start + lanes
            mask = at < groups
            index = tl.load(nibbles + at, mask=mask, other=0)
            rest = tl.load(mantissas + at, mask=mask, other=0)
            first = tl.zeros((LANES,), tl.int64)
            second = tl.zeros((LANES,), tl.int64)
            for k in tl.static_range(8):
                entry = (index >> (4 * k)) & 15
                words = tl.where(entry < 8, low, high)
                exponent = (words >> ((entry & 7) * 8).to(tl.int64)) & 0xFF
                kept = (rest >> (8 * k)) & 0xFF
                value = ((kept & 0x80) << 8) | (exponent << 7) | (kept & 0x7F)
                if k < 4:
                    first |= value << (16 * (k % 4))
                else:
                    second |= value << (16 * (k % 4))
            tl.store(page + 2 * at, first, mask=mask)
            tl.store(page + 2 * at + 1, second, mask=mask)
        if listed != 0:
            tl.debug_barrier()  # other threads wrote these values, with an exponent of the table
            every = tl.arange(0, ROOM)
            mask = (every < room) & (every < listed)  # verify: escapes within their bound
            escape = tl.load(escapes + every, mask=mask, other=0)
            position = (escape >> 8) & 0xFFFFFF
            mask = mask & (position < values)  # verify: positions in the page
            bytes_of = mantissas.to(tl.pointer_type(tl.uint8))
            byte = tl.load(bytes_of + position, mask=mask, other=0).to(tl.int32)
            whole = ((byte & 0x80) << 8) | ((escape & 0xFF) << 7) | (byte & 0x7F)
            single = target.to(tl.pointer_type(tl.int16))
            tl.store(single + position, whole.to(tl.int16), mask=mask)
        job += tl.num_programs(0)


def encode_pages(pages: Any, slots: Any, page_bytes: int, programs: int = PROGRAMS) -> None:
    """Encode pages of a KV cache into slots, on the current stream; int64 addresses.

    A page with too many escapes is marked so in its slot, and cannot be decoded.
    """
    _launch(_encode_pages, pages, slots, page_bytes, programs)


def decode_pages(slots: Any, pages: Any, page_bytes: int, programs: int = PROGRAMS) -> None:
    """Decode slots into pages of a KV cache, on the current stream; int64 addresses."""
    _launch(_decode_pages, slots, pages, page_bytes, programs)


def _launch(kernel: Any, sources: Any, targets: Any, page_bytes: int, programs: int) -> None:
    count, values = len(sources), page_bytes // 2
    here = upload(sources, targets, is_interpreted=not torch.cuda.is_available())
    lanes = min(triton.next_power_of_2(values // 8), _LANES)
    room = escapes_max(page_bytes)
    kernel[(min(programs, count),)](
        here[0],
        here[1],
        count,
        values,
        room,
        LANES=lanes,
        ROOM=triton.next_power_of_2(room),
        num_warps=_WARPS,
    )
