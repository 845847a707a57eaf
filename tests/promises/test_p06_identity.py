"""P6: another model, layout, tenant or format version can never hit."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from tests.disk_harness import allocated, opened, overwrite, records, regions

from forebay.identity.keys import ChainRoot, KeyChain
from forebay.identity.namespace import fingerprint
from forebay.record.header import HEADER_BYTES, ROOT, RecordName
from forebay.testing.conformance import load, store
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Hit, Miss, Stored
from forebay.tiers.disk import DiskTier

MODEL: dict[str, bytes | str | int | bool] = {
    "weights": bytes(32),
    "config": "config",
    "kv_dtype": "bfloat16",
    "layout": "HND",
    "tp": 2,
    "rank": 0,
    "block_tokens": 16,
    "packed": False,
}
CHANGES: list[dict[str, bytes | str | int | bool]] = [
    {"weights": bytes(31) + b"\1"},
    {"config": "config, rope scaled"},
    {"kv_dtype": "fp8"},
    {"layout": "NHD"},
    {"tp": 4},
    {"tp": "2"},
    {"rank": 1},
    {"block_tokens": 32},
    {"packed": True},
    {"quantisation": "none"},
]
TOKENS = list(range(16))


def asked(fields: dict[str, bytes | str | int | bool], root: ChainRoot | None = None) -> Sample:
    """The record that an engine of this shape asks for, given the same tokens."""
    namespace = fingerprint(fields)
    chain = KeyChain(root or ChainRoot(namespace, chunk_tokens=16))
    return Sample(RecordName(namespace, 0, chain.extend(TOKENS)[0], ROOT), 5000)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_t10_t11_the_same_tokens_of_another_model_are_a_miss(
    swift_path: Path, change: dict[str, bytes | str | int | bool]
) -> None:
    ours, other = asked(MODEL), asked(MODEL | change)
    with opened(swift_path) as tier:
        both_miss_each_other(tier, ours, other)


@pytest.mark.parametrize(
    "change",
    [{"salt": "tenant"}, {"adapter": b"lora"}, {"realm": "other"}, {"group": 1}],
    ids=str,
)
def test_t10_the_same_tokens_of_another_tenant_or_adapter_are_a_miss(
    swift_path: Path, change: dict[str, object]
) -> None:
    root = ChainRoot(fingerprint(MODEL), chunk_tokens=16)
    other = asked(MODEL, replace(root, **change))  # type: ignore[arg-type]
    with opened(swift_path) as tier:
        both_miss_each_other(tier, asked(MODEL, root), other)


def both_miss_each_other(tier: DiskTier, one: Sample, other: Sample) -> None:
    assert store(tier, one) == Stored()
    assert isinstance(load(tier, other)[0], Miss)
    assert store(tier, other) == Stored()
    tier.remove(one.name.key)
    assert isinstance(load(tier, one)[0], Miss)
    assert load(tier, other) == (Hit(5000), other.payload)


def newer(path: Path, offset: int) -> None:
    """Let a page be of the next format version, sound in every other way."""
    page = bytearray(path.read_bytes()[offset : offset + HEADER_BYTES])
    struct.pack_into("<H", page, 8, 2)
    page[-16:] = xxhash.xxh3_128_digest(bytes(page[:-16]))
    overwrite(path, offset, bytes(page))


def test_t12_a_record_of_another_version_is_a_miss(swift_path: Path) -> None:
    with opened(swift_path) as tier:
        store(tier, single("later"))
        ((path, offset),) = records(swift_path)
        newer(path, offset)
        assert isinstance(load(tier, single("later"))[0], Miss)


def test_t12_regions_of_another_version_are_neither_read_nor_deleted(swift_path: Path) -> None:
    """They count against the cap, and their names are not given away."""
    samples = [single(f"later {n}", 30_000) for n in range(20)]
    with opened(swift_path) as tier:
        for sample in samples:
            store(tier, sample)
    theirs = regions(swift_path)[-1]
    for path in regions(swift_path):
        if path == theirs:
            newer(path, 0)
    before = theirs.read_bytes()
    with opened(swift_path) as tier:
        assert isinstance(load(tier, samples[-1])[0], Miss)
        for n in range(300):
            assert store(tier, single(f"ours {n}", 30_000)) == Stored()
            assert allocated(swift_path) <= tier.usage().cap_bytes
    assert theirs.read_bytes() == before
