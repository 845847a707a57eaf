"""Encryption of records: AES-256-GCM, with the whole header as associated data.

A record's key is derived from a data key and 32 random bytes in its header, new with every write:
each key encrypts one message, so the nonce is always zero. The header, with the place that the
medium notes there, is authenticated with the payload: a record that is not what its header says, or
not in the place that it names, is not opened. The digest of the plain payload is encrypted with the
payload; the hash in the header is that of the stored bytes, so damage can be found without a key.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import xxhash
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher, algorithms, modes

from forebay.record.header import (
    HASH_BYTES,
    HEADER_BYTES,
    SEALED_DIGEST_BYTES,
    Damage,
    Digest,
    RecordHeader,
    Sealing,
    are_shards,
    associated_data,
    pack,
)
from forebay.record.keyring import DataKey, RecordKeys, new_salt, record_secret, wrapping_secret

_NONCE: Final = bytes(12)
_NO_HASH: Final = bytes(HASH_BYTES)
_SHARDS_BYTES: Final = 4
_PIECE_BYTES: Final = 256 << 10  # encrypted, then hashed while it is in the core's cache


class Wrapped(NamedTuple):
    """An encrypted data key."""

    salt: bytes
    secret: bytes
    tag: bytes


def seal(
    header: RecordHeader, medium: bytes, key: DataKey, source: memoryview, target: memoryview
) -> RecordHeader:
    """Encrypt a payload: `target` becomes the whole record, with header page and padding.

    `header` has the digest of the plain payload; returns the header as it is stored.
    """
    page, stored, length = target[:HEADER_BYTES], target[HEADER_BYTES:], header.length
    sealing = Sealing(key.id, new_salt())
    unproven = replace(header, payload_hash=_NO_HASH, shards=1, sealing=sealing)
    pack(unproven, page, medium)
    cipher = Cipher(algorithms.AES(record_secret(key, sealing.salt)), modes.GCM(_NONCE))
    encryptor = cipher.encryptor()
    encryptor.authenticate_additional_data(associated_data(page))
    digest = encryptor.update(_packed_digest(header))
    stored_hash = _encrypted(encryptor, source[:length], stored)
    encryptor.finalize()
    stored[length:] = bytes(len(stored) - length)
    sealing = sealing._replace(tag=encryptor.tag, digest=digest)
    sealed = replace(unproven, payload_hash=stored_hash, sealing=sealing)
    pack(sealed, page, medium)
    return sealed


def _encrypted(encryptor: AEADEncryptionContext, source: memoryview, target: memoryview) -> bytes:
    """Encrypt into the front of `target`, and return the hash of that, in one pass over memory."""
    hashed = xxhash.xxh3_128()
    for at in range(0, len(source), _PIECE_BYTES):
        piece = source[at : at + _PIECE_BYTES]
        stored = target[at : at + len(piece)]
        encryptor.update_into(piece, stored)
        hashed.update(stored)
    return hashed.digest()


def unseal(
    found: RecordHeader, page: memoryview, keys: RecordKeys, payload: memoryview
) -> RecordHeader | Damage:
    """Decrypt the payload of a header page in place; returns the header of the plain record.

    If it returns damage, the payload's bytes are useless.
    """
    sealing, length = found.sealing, found.length
    if sealing is None:  # verify: encrypted record
        return Damage.NOT_SEALED
    key = keys.find(sealing.key_id)
    if key is None:
        return Damage.NO_KEY
    mode = modes.GCM(_NONCE, sealing.tag)
    decryptor = Cipher(algorithms.AES(record_secret(key, sealing.salt)), mode).decryptor()
    decryptor.authenticate_additional_data(associated_data(page))
    digest = decryptor.update(sealing.digest)
    decryptor.update_into(payload[:length], payload[:length])
    try:
        decryptor.finalize()  # verify: tag
    except InvalidTag:
        return Damage.TAG
    return _with_digest(found, digest)


def opened(
    found: RecordHeader, page: memoryview, keys: RecordKeys | None, payload: memoryview
) -> RecordHeader | Damage:
    """The header of the plain record; with keys, decrypts its payload in place."""
    if keys is not None:
        return unseal(found, page, keys, payload)
    if found.sealing is not None:  # verify: no key, no encrypted record
        return Damage.SEALED
    return found


def _packed_digest(header: RecordHeader) -> bytes:
    shards = header.shards.to_bytes(_SHARDS_BYTES, "little")
    return (header.payload_hash + shards).ljust(SEALED_DIGEST_BYTES, b"\0")


def _with_digest(found: RecordHeader, digest: bytes) -> RecordHeader | Damage:
    """The header with the decrypted digest, which is checked: a writer with the key may err."""
    shards = int.from_bytes(digest[HASH_BYTES : HASH_BYTES + _SHARDS_BYTES], "little")
    if not are_shards(found.length, shards):  # verify: sealed shards
        return Damage.SHARDS
    plain = Digest(digest[:HASH_BYTES], shards)
    return replace(found, payload_hash=plain.payload_hash, shards=plain.shards, sealing=None)


def wrap(secret: bytes, master: DataKey, associated: bytes) -> Wrapped:
    """Encrypt a data key, with a key derived from a master key for this one use."""
    salt = new_salt()
    cipher = Cipher(algorithms.AES(wrapping_secret(master, salt)), modes.GCM(_NONCE))
    encryptor = cipher.encryptor()
    encryptor.authenticate_additional_data(associated)
    wrapped = encryptor.update(secret) + encryptor.finalize()
    return Wrapped(salt, wrapped, encryptor.tag)


def unwrap(wrapped: Wrapped, master: DataKey, associated: bytes) -> bytes | None:
    """Decrypt a data key; None if the bytes were changed or the master key is another one."""
    mode = modes.GCM(_NONCE, wrapped.tag)
    decryptor = Cipher(algorithms.AES(wrapping_secret(master, wrapped.salt)), mode).decryptor()
    decryptor.authenticate_additional_data(associated)
    secret = decryptor.update(wrapped.secret)
    try:
        return secret + decryptor.finalize()  # a return, and so no line that `make mutate` can take
    except InvalidTag:
        return None
