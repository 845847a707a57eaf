"""Records whose payload follows from their name, so that it can be checked after any crash.

From a name alone follows what a hit must contain, in any process and after any fault.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from forebay.record.header import ROOT, RecordName

NAMESPACE = hashlib.blake2b(b"forebay sample namespace", digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class Sample:
    """A name and the length of its payload."""

    name: RecordName
    length: int

    @property
    def payload(self) -> bytes:
        """The only bytes that a hit for this name may have."""
        return payload_of(self.name, self.length)


def payload_of(name: RecordName, length: int) -> bytes:
    """Bytes that depend on a name's namespace, group and key."""
    seed = name.namespace + name.group.to_bytes(4, "little") + name.key
    return hashlib.shake_128(seed).digest(length)


def chain(label: str, lengths: list[int], namespace: bytes = NAMESPACE) -> list[Sample]:
    """Samples that continue each other, one for each length."""
    return list(_links(label, lengths, namespace))


def _links(label: str, lengths: list[int], namespace: bytes) -> Iterator[Sample]:
    parent = ROOT
    for position, length in enumerate(lengths):
        key = hashlib.blake2b(f"{label}/{position}".encode(), digest_size=32).digest()
        yield Sample(RecordName(namespace, 0, key, parent), length)
        parent = key


def single(label: str, length: int = 5000, namespace: bytes = NAMESPACE) -> Sample:
    """A sample without a parent."""
    return chain(label, [length], namespace)[0]
