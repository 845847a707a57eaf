"""Host memory as an engine has it: pages of two pieces, by their addresses."""

import ctypes
import random
from collections.abc import Sequence
from hashlib import sha256

from forebay.engines.sglang.identity import EngineFacts
from forebay.engines.sglang.pages import PageShape

PIECE = 50_000
SHAPE = PageShape(64, (PIECE, PIECE))
MEMORY = {"class": "Made", "layout": "page_first_direct"}
Meta = tuple[list[int], list[int]]


class HostMemory:
    """All K pieces, then all V pieces, as SGLang's `page_first_direct` lays them."""

    def __init__(self, pages: int = 32) -> None:
        self.pages = pages
        self._buffer = (ctypes.c_char * (2 * pages * PIECE))()
        self._base = ctypes.addressof(self._buffer)
        self.view = memoryview(self._buffer).cast("B")

    def meta(self, numbers: Sequence[int]) -> Meta:
        """What SGLang's `get_page_buffer_meta` answers for these pages."""
        at = [self._base + (part * self.pages + n) * PIECE for n in numbers for part in (0, 1)]
        return at, [PIECE] * len(at)

    def fill(self, numbers: Sequence[int], labels: Sequence[str]) -> None:
        """Put pages there whose bytes follow from their labels."""
        for number, label in zip(numbers, labels, strict=True):
            page = content(label)
            for part in (0, 1):
                at = (part * self.pages + number) * PIECE
                self.view[at : at + PIECE] = page[part * PIECE : (part + 1) * PIECE]

    def read(self, number: int) -> bytes:
        """A page as one."""
        starts = [(part * self.pages + number) * PIECE for part in (0, 1)]
        return b"".join(bytes(self.view[at : at + PIECE]) for at in starts)


def content(label: str) -> bytes:
    """Bytes of a page; no two labels have the same."""
    return random.Random(label).randbytes(2 * PIECE)


def keys_of(labels: Sequence[str]) -> list[str]:
    """Names as SGLang makes them: digests of everything before."""
    keys, last = [], b""
    for label in labels:
        last = sha256(last + label.encode()).digest()
        keys.append(last.hex())
    return keys


def facts(model: object, **more: object) -> EngineFacts:
    """An engine of one rank that loads its weights from a directory."""
    arguments = {"model_path": str(model), "load_format": "auto", "kv_cache_dtype": "auto"}
    given = dict(more)
    arguments |= dict(given.pop("arguments", {}))  # type: ignore[call-overload]
    ranks = {"tp_rank": 0, "tp_size": 1, **given.pop("ranks", {})}  # type: ignore[dict-item]
    return EngineFacts(
        version="0",
        arguments=arguments,
        config={"architectures": ["Made"]},
        dtype="float32",
        ranks=ranks,
        **given,  # type: ignore[arg-type]
    )
