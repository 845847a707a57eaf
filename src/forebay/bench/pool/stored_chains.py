"""Chains of records that a measurement stores and loads again."""

import os
import time
from dataclasses import dataclass, field
from typing import Final

from forebay.errors import StartupError
from forebay.pool.client import Client
from forebay.pool.client.chain import Chain
from forebay.pool.client.outcomes import Loaded
from forebay.record.header import KEY_BYTES, NAMESPACE_BYTES

NAMESPACE: Final = bytes(NAMESPACE_BYTES)
CHAIN_RECORDS: Final = 4
_STORE_S: Final = 60.0  # longer than a window takes unless the drive is gone
_LOAD_S: Final = 30.0
_STAMP_BYTES: Final = KEY_BYTES


def new_chain(chunks: int) -> Chain:
    return Chain(NAMESPACE, [os.urandom(KEY_BYTES) for _ in range(chunks)])


@dataclass(slots=True)
class StoredChains:
    """What was stored, each record stamped with its key. Used by one thread."""

    client: Client
    payload_bytes: int
    chains: list[Chain] = field(default_factory=list)
    refused: int = 0  # records that the pool did not take
    found: int = 0  # records that came back, stamp and all
    missing: int = 0  # records that were taken and did not

    def fill(self, size_bytes: int, until: float) -> None:
        """Store so much, or what there is time for."""
        buffers = [bytearray(os.urandom(self.payload_bytes)) for _ in range(CHAIN_RECORDS)]
        for _ in range(max(1, size_bytes // (CHAIN_RECORDS * self.payload_bytes))):
            chain = new_chain(CHAIN_RECORDS)
            for key, buffer in zip(chain.keys, buffers, strict=True):
                buffer[:_STAMP_BYTES] = key[: self.payload_bytes]
            receipt = self.client.store(
                chain, [memoryview(buffer) for buffer in buffers], timeout_s=_STORE_S
            )
            if receipt.lost:
                raise StartupError(f"the pool went away while it was filled: {self.client.why}")
            self.refused += CHAIN_RECORDS - receipt.stored
            self.chains.append(chain)
            if time.monotonic() > until:
                break

    def find(self) -> None:
        """Load everything again, in order, and look at every stamp."""
        for chain in self.chains:
            first = 0
            while stamps := self._stamps(chain, first):
                for key, stamp in zip(chain.keys[first:], stamps, strict=False):
                    self.found += stamp == key[: self.payload_bytes]
                first += len(stamps)
        self.missing = len(self.chains) * CHAIN_RECORDS - self.refused - self.found

    def _stamps(self, chain: Chain, first: int) -> list[bytes]:
        if first >= CHAIN_RECORDS:
            return []
        with self.client.load(chain, first, _LOAD_S) as loaded:
            chunks = loaded.chunks if isinstance(loaded, Loaded) else []
            return [bytes(chunk[:_STAMP_BYTES]) for chunk in chunks]
