"""Namespaces: one fingerprint over everything that shapes KV bytes apart from the tokens."""

import hashlib
from collections.abc import Mapping
from typing import Final

from forebay.record.header import NAMESPACE_BYTES

_TYPE_TAGS: Final = {bytes: b"b", str: b"s", int: b"i", bool: b"t"}


def fingerprint(fields: Mapping[str, bytes | str | int | bool]) -> bytes:
    """32 bytes that differ if any field's name, type or value differs; order does not matter."""
    digest = hashlib.blake2b(b"forebay namespace 1", digest_size=NAMESPACE_BYTES)
    for name in sorted(fields):
        value = fields[name]
        encoded = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        tag = _TYPE_TAGS[type(value)]
        for part in (name.encode("utf-8", "surrogatepass"), tag, encoded):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
