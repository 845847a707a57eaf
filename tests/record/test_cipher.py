"""Encryption of records: what was encrypted comes back, under its own name, or nothing does."""

import random
import sys
import threading
import time
from dataclasses import replace

import pytest
import xxhash
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from tests.encryption_harness import KEYS, NAMES_WORD, NEW_WORD, OLD_WORD, ROTATED_KEYS

from forebay.errors import SettingsError
from forebay.record import cipher
from forebay.record.header import (
    HASH_BYTES,
    HEADER_BYTES,
    Damage,
    RecordHeader,
    pack,
    payload_hash,
    record_bytes,
    unpack,
)
from forebay.record.keyring import (
    DataKey,
    Keyring,
    MasterKeys,
    NameCipher,
    StoreKeys,
    new_salt,
    record_secret,
)
from forebay.record.region import Position
from forebay.testing.samples import single

SAMPLE = single("sealed", 100)
PLACE = Position(7, 8192).pack()
RING = StoreKeys(Keyring(KEYS))
FIELDS_END = 268  # of a header; zeros follow


def key() -> DataKey:
    found = RING.current(SAMPLE.name.tenant)
    assert found is not None
    return found


def sealed(payload: bytes = SAMPLE.payload, shards: int = 1) -> bytearray:
    """A record, encrypted."""
    record = bytearray(record_bytes(len(payload)))
    header = RecordHeader(SAMPLE.name, len(payload), payload_hash(payload, shards), shards=shards)
    cipher.seal(header, PLACE, key(), memoryview(payload), memoryview(record))
    return record


def unsealed(record: bytearray, keys: StoreKeys = RING) -> tuple[RecordHeader | Damage, bytes]:
    """What a record is found to be, and the payload."""
    page, payload = memoryview(record)[:HEADER_BYTES], bytearray(record[HEADER_BYTES:])
    found = unpack(page)
    if isinstance(found, RecordHeader):
        found = cipher.opened(found, page, keys, memoryview(payload))
    return found, bytes(payload)


def rehashed(record: bytearray) -> bytearray:
    """The record with the hash of its header made right: that needs no key."""
    end = HEADER_BYTES - HASH_BYTES
    record[end:HEADER_BYTES] = xxhash.xxh3_128_digest(bytes(record[:end]))
    return record


def test_what_was_sealed_is_unsealed() -> None:
    found, payload = unsealed(sealed())
    assert found == RecordHeader(SAMPLE.name, 100, payload_hash(SAMPLE.payload))
    assert payload[:100] == SAMPLE.payload


@pytest.mark.parametrize("length", [256 << 10, (256 << 10) + 1, (700 << 10) - 3])
def test_a_payload_of_several_pieces_is_one_message(length: int) -> None:
    payload = random.Random(length).randbytes(length)
    record = sealed(payload)
    stored = bytes(record[HEADER_BYTES : HEADER_BYTES + length])
    page = unpack(memoryview(record)[:HEADER_BYTES])
    assert isinstance(page, RecordHeader)
    assert page.payload_hash == payload_hash(stored), "damage is found without a key"
    found, opened = unsealed(record)
    assert found == RecordHeader(SAMPLE.name, length, payload_hash(payload))
    assert opened[:length] == payload
    assert not any(stored[at : at + 64] in payload for at in range(0, length - 64, 16 << 10))
    for at in (0, length // 2, length - 1):
        changed = bytearray(record)
        changed[HEADER_BYTES + at] ^= 1
        assert unsealed(changed)[0] is Damage.TAG


def test_shards_of_the_plain_payload_are_kept() -> None:
    found, _ = unsealed(sealed(shards=4))
    assert found == RecordHeader(SAMPLE.name, 100, payload_hash(SAMPLE.payload, 4), shards=4)


def test_t45_two_writes_of_one_record_have_nothing_in_common() -> None:
    one, other = sealed(), sealed()
    assert one[188:220] != other[188:220], "salts"
    assert one[HEADER_BYTES : HEADER_BYTES + 100] != other[HEADER_BYTES : HEADER_BYTES + 100]
    assert SAMPLE.payload not in one
    assert payload_hash(SAMPLE.payload) not in one


@pytest.mark.long
def test_t45_a_million_records_of_a_tenant_have_a_million_keys() -> None:
    """The nonce is always zero: what must never repeat is the key, of each record and of none."""
    data_key, count = key(), 1_000_000
    salts = {new_salt() for _ in range(count)}
    assert len({record_secret(data_key, salt)[:16] for salt in salts}) == len(salts) == count


@pytest.mark.parametrize("is_read", [False, True])
def test_other_threads_run_while_a_payload_is_encrypted(is_read: bool) -> None:
    """Or one large record would hold up a whole pool: releases 43 to 49 do not let them."""
    cipher_of = Cipher(algorithms.AES(bytes(32)), modes.GCM(bytes(12), bytes(16) * is_read or None))
    context = cipher_of.decryptor() if is_read else cipher_of.encryptor()
    source, target = bytes(cipher._PIECE_BYTES), bytearray(cipher._PIECE_BYTES)
    turns, is_over, has_begun = [0], threading.Event(), threading.Event()

    def runs() -> None:
        while not is_over.is_set():
            turns[0] += 1
            has_begun.set()
            time.sleep(0)  # lets others run

    def ran_meanwhile() -> bool:
        before = turns[0]
        context.update_into(source, target)
        return turns[0] > before

    other, interval_s = threading.Thread(target=runs), sys.getswitchinterval()
    other.start()
    has_begun.wait()
    sys.setswitchinterval(1000)  # nobody has to let others run
    try:
        assert any(ran_meanwhile() for _ in range(10_000))
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        other.join()


def test_t45_every_flipped_bit_of_a_sealed_header_is_damage_with_its_hashes_made_right() -> None:
    record = sealed()
    harmless = range(136 * 8, 152 * 8)  # the hash of the stored bytes, for those without a key
    for bit in [*range(FIELDS_END * 8), FIELDS_END * 8 + 1, (HEADER_BYTES - HASH_BYTES) * 8 - 1]:
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        found, _ = unsealed(rehashed(changed))
        if bit not in harmless:
            assert isinstance(found, Damage), bit


def test_t45_every_flipped_bit_of_a_sealed_payload_is_damage() -> None:
    record = sealed()
    for bit in range(HEADER_BYTES * 8, (HEADER_BYTES + SAMPLE.length) * 8):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        assert unsealed(changed)[0] is Damage.TAG, bit


@pytest.mark.parametrize("field", ["namespace", "key", "parent", "tenant", "group"])
def test_t45_a_sealed_record_under_another_name_is_damage(field: str) -> None:
    record = sealed()
    page = memoryview(record)[:HEADER_BYTES]
    found = unpack(page)
    assert isinstance(found, RecordHeader)
    value = 3 if field == "group" else b"x" * len(getattr(SAMPLE.name, field))
    pack(replace(found, name=replace(found.name, **{field: value})), page, PLACE)  # type: ignore[arg-type]
    assert unsealed(record)[0] is Damage.TAG


def test_t45_a_sealed_record_in_another_place_is_damage() -> None:
    record = sealed()
    page = memoryview(record)[:HEADER_BYTES]
    found = unpack(page)
    assert isinstance(found, RecordHeader)
    pack(found, page, Position(7, 12288).pack())
    assert unsealed(record)[0] is Damage.TAG


def test_a_plain_record_is_not_taken_where_records_are_sealed() -> None:
    record = bytearray(HEADER_BYTES) + SAMPLE.payload
    header = RecordHeader(SAMPLE.name, 100, payload_hash(SAMPLE.payload))
    pack(header, memoryview(record)[:HEADER_BYTES], PLACE)
    assert unsealed(record)[0] is Damage.NOT_SEALED


def test_a_sealed_record_is_not_taken_where_records_are_plain() -> None:
    record = sealed()
    page = memoryview(record)[:HEADER_BYTES]
    found = unpack(page)
    assert isinstance(found, RecordHeader)
    assert cipher.opened(found, page, None, memoryview(record)[HEADER_BYTES:]) is Damage.SEALED


def test_who_has_the_key_and_writes_nonsense_is_noticed() -> None:
    record = bytearray(record_bytes(100))
    header = RecordHeader(SAMPLE.name, 100, bytes(HASH_BYTES), shards=3)  # no third of 100
    cipher.seal(header, PLACE, key(), memoryview(SAMPLE.payload), memoryview(record))
    assert unsealed(record)[0] is Damage.SHARDS


def test_t45_another_key_is_no_key_and_a_rotated_one_reads_both() -> None:
    record = sealed()
    stranger = MasterKeys.create()
    assert unsealed(record, StoreKeys(Keyring(stranger)))[0] is Damage.NO_KEY
    assert isinstance(unsealed(record, StoreKeys(Keyring(ROTATED_KEYS)))[0], RecordHeader)


def test_t45_a_data_key_is_unwrapped_by_its_master_key_and_for_its_tenant_alone() -> None:
    old, new = ROTATED_KEYS.masters[1], ROTATED_KEYS.masters[0]
    wrapped = cipher.wrap(b"s" * 32, old, b"tenant")
    assert b"s" * 32 not in wrapped.secret
    assert cipher.unwrap(wrapped, old, b"tenant") == b"s" * 32
    assert cipher.unwrap(wrapped, new, b"tenant") is None
    assert cipher.unwrap(wrapped, old, b"another") is None
    assert cipher.unwrap(wrapped._replace(secret=b"t" * 32), old, b"tenant") is None


def test_names_are_hidden_and_shown_again() -> None:
    names = NameCipher(KEYS.names)
    short_key, whole = SAMPLE.name.key[:16], SAMPLE.name.key
    assert names.show(names.hide(whole)) == whole
    assert names.hide(whole)[:16] == names.hide(short_key) != short_key
    assert names.hide_all([short_key, whole]) == [names.hide(short_key), names.hide(whole)]
    assert names.hide_all([]) == []
    assert names.hide(bytes(32)) == bytes(32) == names.show(bytes(32)), "ROOT stays ROOT"
    assert NameCipher(MasterKeys.create().names).hide(whole) != names.hide(whole)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there are 0 names= where one is needed."),
        (NAMES_WORD, "there are 0 key= where 1 to 16 may be."),
        (f"{NAMES_WORD} key=1234", "key= is not followed by 64 hex digits."),
        (f"{NAMES_WORD} key={'zz' * 32}", "key= is not followed by 64 hex digits."),
        (f"{NAMES_WORD} {OLD_WORD} {OLD_WORD}", "the same key is there twice."),
        (f"secret={'11' * 32}", "a word is neither names=HEX nor key=HEX."),
        (f"{NAMES_WORD} " + " ".join(f"key={number:064x}" for number in range(17)), "there are 17"),
    ],
)
def test_t45_keys_that_cannot_be_meant_are_one_sentence_without_the_key(
    text: str, sentence: str
) -> None:
    with pytest.raises(SettingsError) as error:
        MasterKeys.parse(text)
    assert str(error.value).startswith(sentence)
    secrets = [word.partition("=")[2] for word in text.split()]
    assert not any(secret[-4:] in str(error.value) for secret in secrets)


def test_comments_and_lines_are_free() -> None:
    text = f"# ours\n{NEW_WORD} # since May\nnames={'11' * 32}\n\n{OLD_WORD}\n"
    assert MasterKeys.parse(text) == ROTATED_KEYS


def test_a_keyring_keeps_its_names_key() -> None:
    ring = Keyring(KEYS)
    with pytest.raises(SettingsError, match="names= has changed"):
        ring.replace(MasterKeys.create())
    assert ring.keys is KEYS
    ring.replace(ROTATED_KEYS)
    assert ring.keys is ROTATED_KEYS


@pytest.mark.parametrize("length", [1, 15, 17, 33])
def test_a_name_of_other_than_whole_blocks_is_refused_and_shifts_no_later_one(length: int) -> None:
    names = NameCipher(b"n" * 32)
    whole = bytes(range(32))
    hidden = names.hide(whole)
    for call in (names.hide, names.show):
        with pytest.raises(ValueError, match="not of whole blocks"):
            call(b"x" * length)
    assert names.hide(whole) == hidden
    assert names.show(hidden) == whole
