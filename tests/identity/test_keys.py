"""Keys: the same everywhere and for ever; different whenever anything that shapes bytes differs."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forebay.identity.keys import TAG_TOKENS, ChainRoot, KeyChain, prompt_tag

ROOT = ChainRoot(bytes(range(32)), chunk_tokens=4)
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]
GOLDEN = [
    (ROOT, None, "764cd3cc08f4020e04f66420ba8b7a1ad07cf69829832878ca45939da0fb781a"),
    (
        replace(ROOT, salt="tenant"),
        None,
        "caa72ad4402152aa7517735732c95c4232c20dde7d6ef06a4ede9fda08c5ded0",
    ),
    (
        replace(ROOT, realm="rack 7"),
        None,
        "df41f317c1c27b01c4d5628affe3e2a448cea993b0d45a639d4f5047b70461d6",
    ),
    (
        replace(ROOT, adapter=bytes(32)),
        None,
        "dc7152e1965ff63acc0d4a599e69f96cfc756f5a8b822cd16153e05bef81642e",
    ),
    (
        replace(ROOT, group=1),
        None,
        "fc335636b453d0647b4fcf2353528841fc3ee42cba6e6fdfa2ba0b7e3e988dd6",
    ),
    (ROOT, {1: b"image"}, "31af33163b0619707faa2c0bfb99913678142f55320c759b103e80e050a3117a"),
]


def keys(root: ChainRoot, tokens: list[int], parts: dict[int, bytes] | None = None) -> list[bytes]:
    return KeyChain(root).extend(tokens, parts)


@pytest.mark.parametrize(("root", "parts", "golden"), GOLDEN)
def test_golden_keys(root: ChainRoot, parts: dict[int, bytes] | None, golden: str) -> None:
    assert keys(root, TOKENS, parts)[1].hex() == golden


def test_keys_do_not_depend_on_the_process() -> None:
    program = (
        "from forebay.identity.keys import *;"
        "print(KeyChain(ChainRoot(bytes(range(32)), 4, salt='s')).extend([9, 8, 7, 6])[0].hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {keys(replace(ROOT, salt="s"), [9, 8, 7, 6])[0].hex()}


@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=64), st.integers(1, 4))
def test_a_chain_extended_in_steps_is_the_same_chain(tokens: list[int], step: int) -> None:
    tokens = tokens[: len(tokens) // 4 * 4]
    chain = KeyChain(ROOT)
    found = []
    for at in range(0, len(tokens), 4 * step):
        found += chain.extend(tokens[at : at + 4 * step])
    assert found == keys(ROOT, tokens)
    assert len(set(found)) == len(found) == len(tokens) // 4


@given(st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8), st.integers(0, 7))
def test_one_other_token_changes_its_key_and_all_behind_it(tokens: list[int], at: int) -> None:
    other = [*tokens]
    other[at] ^= 1
    same = [a == b for a, b in zip(keys(ROOT, tokens), keys(ROOT, other), strict=True)]
    assert same == [chunk < at // 4 for chunk in range(2)]


roots = st.builds(
    ChainRoot,
    namespace=st.sampled_from([bytes(32), bytes(range(32))]),
    chunk_tokens=st.sampled_from([1, 2, 4]),
    group=st.integers(0, 3),
    realm=st.text("ab", max_size=2),
    salt=st.text("ab", max_size=2),
    adapter=st.binary(max_size=4),
)


@given(roots, roots)
def test_t10_different_roots_share_no_key(one: ChainRoot, other: ChainRoot) -> None:
    assume(one != other)
    assert not set(keys(one, TOKENS)) & set(keys(other, TOKENS))


OTHERS: dict[str, tuple[object, object]] = {  # of equal length where they have one
    "namespace": (bytes(32), bytes(31) + b"\1"),
    "chunk_tokens": (2, 4),
    "group": (0, 1),
    "realm": ("one", "two"),
    "salt": ("one", "two"),
    "adapter": (b"one", b"two"),
}


@pytest.mark.parametrize("field", OTHERS)
def test_t10_whatever_a_root_differs_in_alone_no_key_is_shared(field: str) -> None:
    assert OTHERS.keys() == set(ChainRoot.__slots__)
    sound = ChainRoot(bytes(32), 2, salt="a", adapter=b"a", realm="a")
    one, other = (replace(sound, **{field: value}) for value in OTHERS[field])  # type: ignore[arg-type]
    assert not set(keys(one, TOKENS)) & set(keys(other, TOKENS))


@given(st.text(max_size=6), st.binary(max_size=6), st.integers(0, 6))
def test_t10_salt_and_adapter_never_run_into_each_other(
    salt: str, adapter: bytes, cut: int
) -> None:
    """What moves from the one to the other is something else, though the bytes join equally."""
    joined = salt.encode() + adapter
    left, right = joined[:cut], joined[cut:]
    try:
        moved = replace(ROOT, salt=left.decode(), adapter=right)
    except UnicodeDecodeError:
        return
    assume((moved.salt, moved.adapter) != (salt, adapter))
    assert keys(replace(ROOT, salt=salt, adapter=adapter), TOKENS) != keys(moved, TOKENS)


SALTS = ["@", "/", "..", "../../etc", "\0", "a\0b", "a", "ä", "😀", "\udcff", "x" * 2**20, " "]


def test_t36_every_salt_is_its_own_and_the_empty_one_is_none() -> None:
    found = [keys(replace(ROOT, salt=salt), TOKENS)[0] for salt in ["", *SALTS]]
    assert len(set(found)) == len(SALTS) + 1
    assert found[0] == keys(ROOT, TOKENS)[0]
    assert {len(key) for key in found} == {32}


def test_t10_parts_bind_to_their_chunk() -> None:
    plain = keys(ROOT, TOKENS)
    first, second = keys(ROOT, TOKENS, {0: b"a"}), keys(ROOT, TOKENS, {1: b"a"})
    other = keys(ROOT, TOKENS, {1: b"b"})
    assert plain[0] == second[0] == other[0] != first[0]
    assert len({plain[1], first[1], second[1], other[1]}) == 4


def test_t10_a_part_cannot_be_said_in_tokens() -> None:
    """A chunk behind a part differs from the chunk whose tokens spell the same bytes."""
    part = b"".join(n.to_bytes(4, "little") for n in TOKENS[:4])
    assert keys(ROOT, TOKENS[4:], {0: part})[0] not in keys(ROOT, TOKENS)


def test_a_chain_goes_on_behind_a_part() -> None:
    chain = KeyChain(ROOT)
    found = chain.extend(TOKENS[:4], {0: b"a"}) + chain.extend(TOKENS[4:])
    assert found == keys(ROOT, TOKENS, {0: b"a"})
    assert all(a != b for a, b in pairwise(found))


def test_a_tag_knows_a_beginning_in_any_namespace_and_keeps_tenants_apart() -> None:
    tokens = list(range(TAG_TOKENS))
    root = ChainRoot(bytes(32), 16)
    tag = prompt_tag(root, tokens)
    assert tag.hex() == "798d68d8dedeabd0"
    assert prompt_tag(ChainRoot(b"n" * 32, 256), [*tokens, 7]) == tag
    apart = [
        prompt_tag(ChainRoot(bytes(32), 16, salt="a"), tokens),
        prompt_tag(ChainRoot(bytes(32), 16, realm="a"), tokens),
        prompt_tag(ChainRoot(bytes(32), 16, realm="a", salt="a"), tokens),
        prompt_tag(root, [*tokens[:-1], 7]),
    ]
    assert len({tag, *apart}) == 5
    assert prompt_tag(root, tokens[:-1]) == b"", "too little to tell"
