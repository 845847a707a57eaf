"""Tenants as bytes: ids, masks of keys, and hashes of salts. Pure functions of one secret.

A tenant's id follows from its name and an *epoch*, which rises when the tenant is forgotten: what
was stored under an older id can never be asked for again. All keys of a tenant are xored with a
mask that follows from its id before they reach an index, so two tenants have no key in common, and
nothing that knows keys alone can tell one tenant of another's. The default tenant of epoch 0 has
the id zero and no mask: it is what every record belongs to where there are no tenants.

The secret is the pool's. Engines get `salt_key` of it, which hashes salts and yields nothing else.
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
    """What engines hash salts with."""
    return _hash(_key_of(secret), b"", _SALT_KEY_PERSON, SALT_KEY_BYTES)


def salt_hash(salt: str, key: bytes) -> bytes:
    """A salt as settings and messages have it; nobody without `key` can try salts against it."""
    return _hash(key, salt.encode("utf-8", "surrogatepass"), _SALT_PERSON, CLAIM_BYTES)


def tenant_id(secret: bytes, name: str, epoch: int) -> bytes:
    """The id in a tenant's records, until it is forgotten for the next time."""
    if name == DEFAULT_NAME and epoch == 0:
        return DEFAULT_TENANT
    data = epoch.to_bytes(8, "little") + name.encode()
    return _hash(_key_of(secret), data, _ID_PERSON, TENANT_BYTES)


def mask_of(secret: bytes, tenant: bytes) -> bytes:
    """What a tenant's full keys are xored with; its first half is for short keys."""
    if tenant == DEFAULT_TENANT:
        return NO_MASK
    return _hash(_key_of(secret), tenant, _MASK_PERSON, KEY_BYTES)


def masked(joined: bytes, mask: bytes) -> bytes:
    """Joined keys, each as long as the mask, xored with it; twice is the keys themselves."""
    if not any(mask):
        return joined
    count = -(-len(joined) // len(mask))
    whole = int.from_bytes((mask * count)[: len(joined)], "little")
    return (int.from_bytes(joined, "little") ^ whole).to_bytes(len(joined), "little")


def masked_parent(parent: bytes, mask: bytes) -> bytes:
    """A parent's full key, masked; that there is none is the same for everybody."""
    return ROOT if parent == ROOT else masked(parent, mask)


def _key_of(secret: bytes) -> bytes:
    return hashlib.blake2b(secret).digest()


def _hash(key: bytes, data: bytes, person: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size, key=key, person=person).digest()
