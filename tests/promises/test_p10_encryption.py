"""P10: a stolen drive tells nothing, nor does a store; keys that do not fit lose nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import CLOSE_S, flip, open_tier, opened, overwrite, records, until
from tests.encryption_harness import (
    KEYS,
    NAMES_WORD,
    NEW_WORD,
    ROTATED_KEYS,
    open_encrypted,
    open_encrypted_remote,
    opened_disk,
)
from tests.remote_harness import SHARING, open_remote

from forebay.errors import DirectoryError
from forebay.record.header import (
    HEADER_BYTES,
    KEY_BYTES,
    Damage,
    RecordHeader,
    medium_part,
    pack,
    payload_hash,
    record_bytes,
    unpack,
)
from forebay.record.keyring import Keyring, MasterKeys
from forebay.testing.conformance.hooks import load, store
from forebay.testing.samples import NAMESPACE, Sample, chain, single
from forebay.tiers.contract import Hit, Miss, MissReason, Stored, Tier
from forebay.tiers.disk.regions.data_keys import KEYS_NAME

PAGE = 4096
SAMPLE = single("secret", 6000)
TENANTS = (b"a" * 16, b"b" * 16)
NEW_ALONE = MasterKeys.parse(f"{NAMES_WORD} {NEW_WORD}")


def medium_of(place: Path) -> bytes:
    """Every byte of every file, and every name."""
    paths = sorted(path for path in place.rglob("*") if path.is_file())
    return b"".join(str(path.relative_to(place)).encode() + path.read_bytes() for path in paths)


def told(medium: bytes, samples: list[Sample]) -> Iterator[str]:
    """What a medium tells of records to somebody who knows what to look for."""
    for sample in samples:
        name, payload = sample.name, sample.payload
        parts = {payload[at : at + 16] for at in range(0, sample.length - 16, PAGE // 4)}
        for part in parts | {name.key, name.key[:16], payload_hash(payload)}:
            if part in medium or part.hex().encode() in medium:
                yield f"{part.hex()} of {sample}"
    if NAMESPACE in medium or NAMESPACE.hex().encode() in medium:
        yield "the namespace"


@pytest.mark.parametrize("is_remote", [False, True], ids=["drive", "store"])
def test_t45_a_medium_tells_neither_pages_nor_names(swift_path: Path, is_remote: bool) -> None:
    links = chain("secret", [6000, 4096, 20_000, 17])
    for encrypted in (False, True):
        place = swift_path / f"{encrypted}"
        tier = _opened(place, is_remote=is_remote, encrypted=encrypted)
        for link in links:
            assert isinstance(store(tier, link), Stored)
        tier.close(CLOSE_S)
        found = list(told(medium_of(place), links))
        assert bool(found) != encrypted, found[:3]


def _opened(place: Path, *, is_remote: bool, encrypted: bool) -> Tier:
    place.mkdir(mode=0o700)
    if is_remote:
        return open_encrypted_remote(place) if encrypted else open_remote(place)
    return open_encrypted(place) if encrypted else open_tier(place)


@pytest.mark.parametrize("field", ["namespace", "tenant", "key", "group", "place"])
def test_t45_a_record_is_never_served_under_anothers_name(swift_path: Path, field: str) -> None:
    """Its bytes lie where another's should be, with a header that says what is asked for."""
    value = 1 if field == "group" else b"y" * (KEY_BYTES if field != "tenant" else 16)
    name = SAMPLE.name if field == "place" else replace(SAMPLE.name, **{field: value})  # type: ignore[arg-type]
    name = replace(name, key=b"k" * KEY_BYTES) if field != "key" else name
    other = Sample(name, SAMPLE.length)
    with opened_disk(swift_path) as tier:
        assert isinstance(store(tier, other), Stored)
        assert isinstance(store(tier, SAMPLE), Stored)
        (their_path, first), (path, second) = records(swift_path)  # a tenant has its own regions
        content = path.read_bytes()
        theirs = bytearray(their_path.read_bytes()[first : first + record_bytes(SAMPLE.length)])
        header, page = unpack(content[second : second + HEADER_BYTES]), memoryview(theirs)
        found = unpack(page[:HEADER_BYTES])
        assert isinstance(found, RecordHeader)
        assert isinstance(header, RecordHeader)
        medium = medium_part(content[second : second + HEADER_BYTES])
        pack(replace(found, name=header.name), page[:HEADER_BYTES], medium)
        overwrite(path, second, bytes(theirs))
        assert load(tier, SAMPLE)[0] == Miss(MissReason.CORRUPT, Damage.TAG)
        assert isinstance(load(tier, other)[0], Hit)


def test_t45_a_plain_record_is_not_served_by_a_tier_that_encrypts(swift_path: Path) -> None:
    with opened_disk(swift_path) as tier:
        store(tier, SAMPLE)
        ((path, offset),) = records(swift_path)
        page = memoryview(bytearray(path.read_bytes()[offset : offset + HEADER_BYTES]))
        header = RecordHeader(SAMPLE.name, SAMPLE.length, payload_hash(SAMPLE.payload))
        pack(header, page, medium_part(page))
        overwrite(path, offset, bytes(page) + SAMPLE.payload)
        assert load(tier, SAMPLE)[0] == Miss(MissReason.CORRUPT, Damage.NOT_SEALED)


def test_t45_flipped_bits_are_misses(swift_path: Path) -> None:
    size = HEADER_BYTES + SAMPLE.length
    with opened_disk(swift_path) as tier:
        for bit in [*range(0, 268 * 8, 67), *range(268 * 8, size * 8, 4999)]:
            assert isinstance(store(tier, SAMPLE), Stored)
            path, offset = list(records(swift_path))[-1]
            assert isinstance(load(tier, SAMPLE)[0], Hit)
            flip(path, offset * 8 + bit)
            assert isinstance(load(tier, SAMPLE)[0], Miss), bit


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (MasterKeys.create(), "was written with another names key"),
        (None, "holds encrypted records; set encryption"),
    ],
    ids=["wrong", "missing"],
)
def test_t45_wrong_or_missing_keys_are_one_sentence_and_lose_nothing(
    swift_path: Path, keys: MasterKeys | None, sentence: str
) -> None:
    with opened_disk(swift_path) as tier:
        store(tier, SAMPLE)
    before = medium_of(swift_path)
    with pytest.raises(DirectoryError, match=sentence), opened_disk(swift_path, keys):
        pass
    assert medium_of(swift_path) == before
    with opened_disk(swift_path) as tier:
        assert isinstance(load(tier, SAMPLE)[0], Hit)


def test_t45_plain_records_are_not_left_where_encryption_is_wanted(swift_path: Path) -> None:
    with opened(swift_path) as tier:
        store(tier, SAMPLE)
    before = medium_of(swift_path)
    with pytest.raises(DirectoryError, match="not encrypted"), opened_disk(swift_path):
        pass
    assert medium_of(swift_path) == before


def test_t45_damaged_keys_of_a_directory_are_one_sentence(swift_path: Path) -> None:
    with opened_disk(swift_path) as tier:
        store(tier, SAMPLE)
    for bit in (3, 8 * 17, 8 * 40, 8 * (PAGE + 20), 8 * (PAGE + 100)):
        flip(swift_path / KEYS_NAME, bit)
        with pytest.raises(DirectoryError, match="is damaged"), opened_disk(swift_path):
            pass
        flip(swift_path / KEYS_NAME, bit)
    (swift_path / KEYS_NAME).write_bytes(b"cut")
    with pytest.raises(DirectoryError, match="is damaged"), opened_disk(swift_path):
        pass


def test_t45_a_master_key_that_is_missing_is_a_miss_and_its_return_a_hit(
    swift_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened_disk(swift_path) as tier:
        store(tier, SAMPLE)
    with opened_disk(swift_path, NEW_ALONE) as tier:
        assert load(tier, SAMPLE)[0] == Miss(MissReason.NO_KEY, Damage.NO_KEY)
        assert load(tier, SAMPLE)[0] == Miss(MissReason.NO_KEY, Damage.NO_KEY), "it stays"
    assert "1 data keys cannot be opened" in caplog.text
    with opened_disk(swift_path) as tier:
        assert isinstance(load(tier, SAMPLE)[0], Hit)


def test_t45_after_a_rotation_old_and_new_records_are_hits(swift_path: Path) -> None:
    old, new = chain("rotated", [6000, 6000])
    keyring = Keyring(KEYS)
    tier = open_encrypted(swift_path, keyring=keyring)
    store(tier, old)
    keyring.replace(ROTATED_KEYS)
    tier.rotate()
    store(tier, new)
    assert isinstance(load(tier, old)[0], Hit)
    tier.close(CLOSE_S)
    ids = {_key_id(path, offset) for path, offset in records(swift_path)}
    assert len(ids) == 2, "new records have a new key"
    tier = open_encrypted(swift_path, keyring=Keyring(NEW_ALONE))  # the old one is not needed
    for link in (old, new):
        outcome, payload = load(tier, link)
        assert isinstance(outcome, Hit)
        assert payload == link.payload
    tier.close(CLOSE_S)


def _key_id(path: Path, offset: int) -> bytes:
    header = unpack(path.read_bytes()[offset : offset + HEADER_BYTES])
    assert isinstance(header, RecordHeader)
    assert header.sealing is not None
    return header.sealing.key_id


def test_t45_a_store_is_read_by_hosts_before_and_after_they_rotate(swift_path: Path) -> None:
    old, new = single("old", 6000), single("new", 6000)
    rings = Keyring(KEYS), Keyring(KEYS)
    one, other = (
        open_encrypted_remote(swift_path, host=host, keyring=ring, options=SHARING)
        for host, ring in zip("ab", rings, strict=True)
    )
    try:
        store(one, old)
        until(lambda: other.has(old.name.key))
        assert isinstance(load(other, old)[0], Hit)
        assert other.packs_of_others() == {NAMESPACE: 1}, "by its own name"
        rings[0].replace(ROTATED_KEYS)
        store(one, new)
        until(lambda: other.has(new.name.key))
        assert load(other, new)[0] == Miss(MissReason.NO_KEY, Damage.NO_KEY)
        rings[1].replace(ROTATED_KEYS)
        for sample in (old, new):
            assert isinstance(load(other, sample)[0], Hit), "nothing was given up meanwhile"
    finally:
        one.close(CLOSE_S)
        other.close(CLOSE_S)


def test_t45_a_forgotten_tenants_key_is_destroyed_and_others_are_not(swift_path: Path) -> None:
    samples = [
        Sample(replace(single(f"of {tenant!r}").name, tenant=tenant), 6000) for tenant in TENANTS
    ]
    tier = open_encrypted(swift_path)
    for sample in samples:
        assert isinstance(store(tier, sample), Stored)
    ids = {_key_id(path, offset) for path, offset in records(swift_path)}
    assert len(ids) == 2, "a key a tenant"
    assert tier.held_by_tenants().keys() == {*TENANTS}
    assert tier.remember_forgotten(TENANTS[0]) == ""
    forgotten = tier.forget(TENANTS[0], scrub=False)
    assert (forgotten.records, forgotten.failure) == (1, "")
    for is_again in (False, True):
        if is_again:
            tier.close(CLOSE_S)
            tier = open_encrypted(swift_path)
        assert tier.forgotten() == {TENANTS[0]}
        assert load(tier, samples[0])[0] == Miss(MissReason.ABSENT)
        assert isinstance(load(tier, samples[1])[0], Hit)
    kept = (swift_path / KEYS_NAME).read_bytes()
    assert sum(key_id in kept for key_id in ids) == 1
    tier.close(CLOSE_S)
