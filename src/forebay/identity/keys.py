"""Keys: a hash chain over token ids in which one key names a whole prefix.

A key is BLAKE2b-256, keyed by the realm, of everything before it: namespace, group, chunk size,
salt, adapter, and every token up to the chunk's last. It is the same in every process, on every
machine and in every Python version; tests/identity/test_keys.py has golden values.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.record.header import KEY_BYTES, NAMESPACE_BYTES

_ROOT: Final = struct.Struct(
    "<16s32sIIQQ"
)  # version, namespace, group, chunk, salt and adapter length
_KEY_VERSION: Final = b"forebay key 1"
_PARTS_PERSON: Final = b"forebay parts"
_GROUP_PERSON: Final = b"forebay group"
_TAG_PERSON: Final = b"forebay tag"
_PAGE_PERSON: Final = b"forebay page"
TAG_TOKENS: Final = 64
TAG_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ChainRoot:
    """What a chain of keys starts from; chains with different roots share no key."""

    namespace: bytes  # 32 bytes
    chunk_tokens: int
    group: int = 0
    realm: str = ""  # the same on all hosts that share; empty: none
    salt: str = ""  # of the tenant; empty: none
    adapter: bytes = b""  # hash of a LoRA adapter's content; empty: none


class KeyChain:
    """Extends one chain chunk by chunk. Owned by one thread; holds a hash state, no tokens."""

    __slots__ = ("_hash", "_realm", "chunk_tokens")

    def __init__(self, root: ChainRoot) -> None:
        assert len(root.namespace) == NAMESPACE_BYTES
        assert root.chunk_tokens > 0
        self.chunk_tokens = root.chunk_tokens
        self._realm = (
            hashlib.blake2b(root.realm.encode(), digest_size=KEY_BYTES).digest()
            if root.realm
            else b""
        )
        salt = root.salt.encode("utf-8", "surrogatepass")
        start = _ROOT.pack(
            _KEY_VERSION,
            root.namespace,
            root.group,
            root.chunk_tokens,
            len(salt),
            len(root.adapter),
        )
        self._hash = hashlib.blake2b(
            start + salt + root.adapter, digest_size=KEY_BYTES, key=self._realm
        )

    def extend(
        self, tokens: Sequence[int], parts: Mapping[int, bytes] | None = None
    ) -> list[bytes]:
        """The keys of the next whole chunks, one per chunk.

        `parts` has what else shaped a chunk, by its position in the returned list: hashes of the
        images or embeddings in it.
        """
        assert len(tokens) % self.chunk_tokens == 0, "only whole chunks have keys"
        data = _token_bytes(tokens)
        step = self.chunk_tokens * 4
        keys: list[bytes] = []
        if not parts:
            update, digest = self._hash.update, self._hash.digest
            for at in range(0, len(data), step):
                update(data[at : at + step])
                keys.append(digest())
            return keys
        for position, at in enumerate(range(0, len(data), step)):
            if position in parts:
                self._bind(parts[position])
            self._hash.update(data[at : at + step])
            keys.append(self._hash.digest())
        return keys

    def _bind(self, part: bytes) -> None:
        """Start a new hash over the chain so far and a part; no sequence of tokens has the same."""
        self._hash = hashlib.blake2b(
            self._hash.digest() + part,
            digest_size=KEY_BYTES,
            key=self._realm,
            person=_PARTS_PERSON,
        )


def prompt_tag(root: ChainRoot, tokens: Sequence[int]) -> bytes:
    """A few bytes that are the same for the same beginning of a prompt in any namespace.

    They only serve to explain a miss: nothing is found or proved by them. Like keys, they differ
    between realms and between salts. Empty if a prompt has fewer than `TAG_TOKENS` tokens.
    """
    if len(tokens) < TAG_TOKENS:
        return b""
    secret = f"{len(root.realm)} {root.realm} {root.salt}".encode("utf-8", "surrogatepass")
    key = hashlib.blake2b(secret, digest_size=KEY_BYTES).digest()
    data = _token_bytes(tokens[:TAG_TOKENS])
    return hashlib.blake2b(data, digest_size=TAG_BYTES, key=key, person=_TAG_PERSON).digest()


def group_key(key: bytes, group: int) -> bytes:
    """The key of a chunk's record in another group, from its key in group 0.

    That key covers everything before the chunk's end and the realm's secret; so does this one.
    """
    return hashlib.blake2b(
        key + group.to_bytes(4, "little"), digest_size=KEY_BYTES, person=_GROUP_PERSON
    ).digest()


def page_keys(namespace: bytes, realm: str, pages: Iterable[bytes]) -> list[bytes]:
    """Keys of pages for which the engine has names: digests of everything before a page's end.

    Keys of different namespaces or realms are never equal, whatever names the engines use.
    """
    assert len(namespace) == NAMESPACE_BYTES
    key = hashlib.blake2b(f"{len(realm)} {realm}".encode(), digest_size=KEY_BYTES).digest()
    start = hashlib.blake2b(namespace, digest_size=KEY_BYTES, key=key, person=_PAGE_PERSON)
    keys = []
    for page in pages:
        named = start.copy()
        named.update(page)
        keys.append(named.digest())
    return keys


def proof_of(keys: Iterable[bytes]) -> bytes:
    """16 bytes that prove that two sides that exchanged short keys mean the same full keys."""
    return hashlib.blake2b(b"".join(keys), digest_size=16, person=b"forebay proof").digest()


def _token_bytes(tokens: Sequence[int]) -> bytes:
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


assert array("I").itemsize == 4
