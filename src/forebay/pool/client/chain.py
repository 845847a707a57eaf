"""A chain of chunks as a client names it."""

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.pool.messages import KEYS_MAX, ChunkRun
from forebay.record.header import KEY_BYTES, NAMESPACE_BYTES, ROOT
from forebay.record.region import SHORT_KEY_BYTES


@dataclass(frozen=True, slots=True)
class Chain:
    """The chunks of one prompt, from the first on, by their full keys."""

    namespace: bytes  # 32 bytes; `forebay.identity.namespace.fingerprint` makes one
    keys: Sequence[bytes]  # 32 bytes each; `forebay.identity.keys.KeyChain` makes them
    group: int = 0
    salt: str = ""  # the salt that the keys were made with; decides the tenant

    def __post_init__(self) -> None:
        assert len(self.namespace) == NAMESPACE_BYTES
        assert all(len(key) == KEY_BYTES for key in self.keys)

    def shorts(self) -> bytes:
        """The short keys for a lookup, at most as many as a message may have."""
        return b"".join([key[:SHORT_KEY_BYTES] for key in self.keys[:KEYS_MAX]])

    def runs(self, lengths: Sequence[tuple[int, int]], salt_hash: bytes = b"") -> list[ChunkRun]:
        """Runs for (position, payload bytes) in order: consecutive chunks of one length."""
        runs: list[ChunkRun] = []
        start = 0
        for end in range(1, len(lengths) + 1):
            if end < len(lengths) and _continues(lengths[end - 1], lengths[end]):
                continue
            first, length = lengths[start]
            keys = b"".join(self.keys[position] for position, _ in lengths[start:end])
            parent = self.keys[first - 1] if first else ROOT
            run = ChunkRun(self.namespace, self.group, parent, keys, length, salt_hash=salt_hash)
            runs.append(run)
            start = end
        return runs


def _continues(before: tuple[int, int], after: tuple[int, int]) -> bool:
    return after == (before[0] + 1, before[1])
