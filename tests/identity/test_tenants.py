"""Tenants as bytes: ids never repeat, masks part tenants, and hashes of salts tell no salt."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.identity.tenants import (
    CLAIM_BYTES,
    DEFAULT_NAME,
    NO_MASK,
    mask_of,
    masked,
    masked_parent,
    salt_hash,
    salt_key,
    tenant_id,
)
from forebay.record.header import DEFAULT_TENANT, KEY_BYTES, ROOT

SECRET = b"a secret of sixteen bytes or more"
KEY = salt_key(SECRET)


def test_ids_differ_by_name_epoch_and_secret() -> None:
    ids = {
        tenant_id(secret, name, epoch)
        for secret in (SECRET, b"another " + SECRET)
        for name in ("a", "b", DEFAULT_NAME)
        for epoch in range(1, 50)
    }
    assert len(ids) == 2 * 3 * 49
    assert DEFAULT_TENANT not in ids


def test_the_default_tenant_is_what_a_pool_without_tenants_has_until_it_is_forgotten() -> None:
    assert tenant_id(SECRET, DEFAULT_NAME, 0) == DEFAULT_TENANT
    assert mask_of(SECRET, DEFAULT_TENANT) == NO_MASK
    assert any(mask_of(SECRET, tenant_id(SECRET, DEFAULT_NAME, 1)))


def test_masks_differ_by_id_and_secret() -> None:
    ids = [tenant_id(SECRET, name, 0) for name in ("a", "b")]
    masks = {mask_of(secret, each) for each in ids for secret in (SECRET, b"another " + SECRET)}
    assert len(masks) == 4


@given(st.lists(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), max_size=5))
def test_masked_keys_are_others_and_come_back(keys: list[bytes]) -> None:
    mask = mask_of(SECRET, tenant_id(SECRET, "a", 0))
    joined = b"".join(keys)
    hidden = masked(joined, mask)
    assert masked(hidden, mask) == joined
    assert masked(joined, NO_MASK) == joined
    parts = [hidden[at : at + KEY_BYTES] for at in range(0, len(hidden), KEY_BYTES)]
    assert parts == [masked(key, mask) for key in keys]
    assert not {*parts} & {*keys}


def test_that_there_is_no_parent_is_the_same_for_everybody() -> None:
    mask = mask_of(SECRET, tenant_id(SECRET, "a", 0))
    assert masked_parent(ROOT, mask) == ROOT
    assert masked_parent(b"k" * KEY_BYTES, mask) == masked(b"k" * KEY_BYTES, mask)


def test_salts_are_hashed_under_the_pools_key_whatever_they_hold() -> None:
    salts = ("", "a", "a ", "\0", "søstre", "\ud800", "x" * 1_000_000)
    hashes = {salt_hash(salt, KEY) for salt in salts}
    assert {len(each) for each in hashes} == {CLAIM_BYTES}
    assert len(hashes) == len(salts)
    assert salt_hash("a", salt_key(b"another " + SECRET)) not in hashes
