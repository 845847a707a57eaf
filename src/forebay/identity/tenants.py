"""Tenants as bytes: ids, masks of keys, and hashes of salts. Pure functions of one secret.

A tenant's id follows from its name and an *epoch*, which rises when the tenant is forgotten: what
was stored under an older id can never be asked for again. Before keys of a tenant reach an index,
they are xored with a mask that follows from its id, so two tenants have no key in common, and code
that knows only keys cannot tell one tenant about another. The default tenant of epoch 0 has the id
zero and no mask; without tenants, all records belong to it.

The secret belongs to the pool. Engines get only its `salt_key`, with which they hash salts.
"""

import hashlib
from typing import Final

from forebay.record.header import DEFAULT_TENANT, KEY_BYTES, ROOT, TENANT_BYTES

DEFAULT_NAME: Final = "default"
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 4096
SALT_KEY_BYTES: Final = 32
CLAIM_BYTES: Final = 16  # of a salt's hash, as an engine sends it
NO_MASK: Final = bytes(KEY_BYTES)
_SALT_KEY_PERSON: Final = b"forebay saltkey"
_SALT_PERSON: Final = b"forebay salt"
_ID_PERSON: Final = b"forebay tenant"
_MASK_PERSON: Final = b"forebay mask"


def salt_key(secret: bytes) -> bytes:
    """The key with which engines hash salts."""
    return _hash(_key_of(secret), b"", _SALT_KEY_PERSON, SALT_KEY_BYTES)


def salt_hash(salt: str, key: bytes) -> bytes:
    """A salt's hash for settings and messages; without `key` nobody can test guesses against it."""
    return _hash(key, salt.encode("utf-8", "surrogatepass"), _SALT_PERSON, CLAIM_BYTES)


def tenant_id(secret: bytes, name: str, epoch: int) -> bytes:
    """The id in a tenant's records, until the tenant is forgotten the next time."""
    if name == DEFAULT_NAME and epoch == 0:
        return DEFAULT_TENANT
    data = epoch.to_bytes(8, "little") + name.encode()
    return _hash(_key_of(secret), data, _ID_PERSON, TENANT_BYTES)


def mask_of(secret: bytes, tenant: bytes) -> bytes:
    """The mask for a tenant's full keys; its first half is for short keys."""
    if tenant == DEFAULT_TENANT:
        return NO_MASK
    return _hash(_key_of(secret), tenant, _MASK_PERSON, KEY_BYTES)


def masked(joined: bytes, mask: bytes) -> bytes:
    """Joined keys, each as long as the mask, xored with it; a second call undoes the first."""
    if not any(mask):
        return joined
    count = -(-len(joined) // len(mask))
    whole = int.from_bytes((mask * count)[: len(joined)], "little")
    return (int.from_bytes(joined, "little") ^ whole).to_bytes(len(joined), "little")


def masked_parent(parent: bytes, mask: bytes) -> bytes:
    """A parent's full key, masked; ROOT stays ROOT."""
    return ROOT if parent == ROOT else masked(parent, mask)


def _key_of(secret: bytes) -> bytes:
    return hashlib.blake2b(secret).digest()


def _hash(key: bytes, data: bytes, person: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size, key=key, person=person).digest()
