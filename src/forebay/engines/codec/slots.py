"""Encoded pages in a slab: checking that a GPU may decode them, and decoding them on the CPU."""

import ctypes
from typing import Any

import numpy as np

from forebay.engines.codec.exponents import are_sound, decode
from forebay.engines.copies.contract import Bytes
from forebay.engines.copies.pointers import JobBlocks
from forebay.record.exponents import ESCAPES_AT, encoded_bytes


def are_decodable(job: JobBlocks, memory: Bytes) -> bool:
    """Whether all encoded pages of a job begin as encoded pages do; raw pages are not checked."""
    words = memory[: len(memory) // 8 * 8].view(np.uint64)
    for table, rows in job.tables:
        if not (table.is_encoded and rows.total):
            continue
        inside = np.arange(len(table.bases)) * table.slot_page_bytes
        offsets = (rows.slots[:, None] - memory.ctypes.data + inside).ravel()
        heads = words[(offsets // 8)[:, None] + np.arange(ESCAPES_AT // 8)]
        if not are_sound(heads.view(np.uint8), table.page_bytes):
            return False
    return True


def decode_at(slots: Any, page_bytes: int) -> Bytes:
    """Decoded copies of the encoded pages at these addresses; ValueError if one is damaged."""
    pages = decode(encoded_at(slots, page_bytes), page_bytes)
    if pages is None:
        raise ValueError("what lies in the slot cannot be decoded")
    return pages


def encoded_at(slots: Any, page_bytes: int) -> Bytes:
    """Copies of the encoded pages at these addresses, one row per page."""
    size = encoded_bytes(page_bytes)
    return np.stack(
        [
            np.frombuffer((ctypes.c_uint8 * size).from_address(slot), dtype=np.uint8)
            for slot in slots.tolist()
        ]
    )
