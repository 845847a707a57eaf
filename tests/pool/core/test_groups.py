"""Records of several groups: they stand alone, and come with the chunks that they go with."""

from pathlib import Path

import pytest
from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain, payload

from forebay.identity.keys import group_key, proof_of
from forebay.pool.messages import Ask, ChunkRun, Found, KeyRun, Lookup, Promise, Ready, Release
from forebay.record.region import short

SMALL = LENGTH // 4  # of a record of another group
CHUNKS = 6


def local_keys(keys: list[bytes], group: int) -> list[bytes]:
    return [group_key(key, group) for key in keys]


def store_local(
    harness: CoreHarness, client: Client, keys: list[bytes], group: int, *numbers: int
) -> None:
    """Store the records that some chunks of a chain have in another group."""
    for number in numbers:
        key = group_key(keys[number], group)
        run = ChunkRun(NAMESPACE, group, keys[number], key, SMALL)
        (offset,) = harness.reserve_run(client, run)
        assert offset >= 0
        harness.fill(offset, payload(key, SMALL))
        assert harness.commit(client, [offset]) == 1


def look_up(
    harness: CoreHarness, client: Client, keys: list[bytes], group: int, number: int
) -> Found:
    joined = b"".join(map(short, keys))
    asked = b"".join(map(short, local_keys(keys, group)))
    harness.pool.handle(client, Lookup(number, NAMESPACE, 0, joined, asked))
    return harness.receive(client, Found)


def bits(numbers: set[int]) -> bytes:
    return sum(1 << number for number in numbers).to_bytes(1, "little")


@pytest.fixture
def client() -> Client:
    return Client("engine")


@pytest.mark.parametrize("is_restarted", [False, True], ids=["dram", "disk"])
def test_local_records_are_found_one_by_one_and_loaded_behind_the_chain(
    tmp_path: Path, client: Client, *, is_restarted: bool
) -> None:
    keys = chain("dialog", CHUNKS)
    harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    harness.store(client, keys)
    store_local(harness, client, keys, 1, 2, 3)
    store_local(harness, client, keys, 2, 3)
    if is_restarted:
        harness.pass_time(100.0)
        harness.settle()
        harness.pool.close(300.0)
        harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    found = look_up(harness, client, keys, 1, 7)
    assert (found.known, found.has) == (CHUNKS, bits({2, 3}))
    local = [group_key(keys[2], 1), group_key(keys[3], 1), group_key(keys[3], 2)]
    runs = [KeyRun(1, b"".join(map(short, local[:2]))), KeyRun(2, short(local[2]))]
    harness.pool.handle(client, Ask(7, 1, 3, 10_000, stream=False, local=runs))
    promise = harness.receive(client, Promise)
    wanted = keys[1:4] + local
    assert promise.total == len(promise.offsets) == len(wanted)
    assert promise.proof == proof_of(wanted)
    for key, offset, length in zip(wanted, promise.offsets, promise.lengths, strict=True):
        assert length == (SMALL if key in local else LENGTH)
        assert harness.pool.view(offset, length) == payload(key, length)
    harness.pool.handle(client, Release(7, []))
    harness.settle()
    harness.pool.close(300.0)


def test_a_local_record_outlives_what_it_was_stored_beside(tmp_path: Path, client: Client) -> None:
    """Its parent is ROOT: no tier drops it with the chain, nor refuses it without."""
    keys = chain("dialog", CHUNKS)
    harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    store_local(harness, client, keys, 1, 4)
    found = look_up(harness, client, keys, 1, 1)
    assert (found.known, found.has) == (0, bits({4}))
    harness.settle()
    harness.pool.close(300.0)


def test_a_local_record_that_is_missing_cuts_the_promise(tmp_path: Path, client: Client) -> None:
    keys = chain("dialog", CHUNKS)
    harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    harness.store(client, keys)
    store_local(harness, client, keys, 1, 3)
    look_up(harness, client, keys, 1, 1)
    missing = KeyRun(1, short(group_key(keys[2], 1)) + short(group_key(keys[3], 1)))
    harness.pool.handle(client, Ask(1, 0, 4, 10_000, stream=True, local=[missing]))
    promise = harness.receive(client, Promise)
    assert promise.total == 4
    harness.pool.handle(client, Release(1, []))
    harness.pool.close(300.0)


def test_a_key_of_another_group_is_not_taken_for_it(tmp_path: Path, client: Client) -> None:
    keys = chain("dialog", CHUNKS)
    harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    harness.store(client, keys)
    store_local(harness, client, keys, 1, 3)
    look_up(harness, client, keys, 1, 1)
    wrong = KeyRun(2, short(group_key(keys[3], 1)))
    harness.pool.handle(client, Ask(1, 0, 4, 10_000, stream=False, local=[wrong]))
    assert harness.receive(client, Promise).total == 4, "without the record of group 1"
    harness.pool.handle(client, Release(1, []))
    harness.pool.close(300.0)


def test_local_records_stream_behind_a_chain_that_is_larger_than_the_load_budget(
    tmp_path: Path, client: Client
) -> None:
    keys = chain("dialog", 24)
    harness = CoreHarness(16 * LENGTH, tmp_path, 1024 * LENGTH)
    harness.store(client, keys)
    store_local(harness, client, keys, 1, 22, 23)
    harness.settle()
    look_up(harness, client, keys, 1, 1)
    local = local_keys(keys, 1)[22:]
    run = KeyRun(1, b"".join(map(short, local)))
    harness.pool.handle(client, Ask(1, 0, 24, 10_000, stream=True, local=[run]))
    promise = harness.receive(client, Promise)
    assert promise.total == 26
    came = len(promise.offsets)
    harness.pool.handle(client, Release(1, list(range(came))))
    while came < 26:
        ready = harness.receive(client, Ready)
        assert ready.length, ready
        assert ready.key == (keys + local)[ready.chunk]
        harness.pool.handle(client, Release(1, [ready.chunk]))
        came += 1
    harness.pool.handle(client, Release(1, []))
    harness.settle()
    harness.pool.close(300.0)


def test_what_was_read_ahead_is_not_taken_for_what_is_asked_for_in_its_place(
    tmp_path: Path, client: Client
) -> None:
    """A chunk at position 2 is on its way when a record of another group is asked for there."""
    keys = chain("dialog", CHUNKS)
    harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    harness.store(client, keys)
    store_local(harness, client, keys, 1, 1)
    harness.settle()
    harness.pool.close(300.0)
    harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    assert look_up(harness, client, keys, 1, 1).ready == 0
    local = group_key(keys[1], 1)
    run = KeyRun(1, short(local))
    harness.pool.handle(client, Ask(1, 0, 2, 10_000, stream=False, local=[run]))
    promise = harness.receive(client, Promise)
    assert promise.proof == proof_of([*keys[:2], local])
    harness.pool.handle(client, Release(1, []))
    harness.settle()
    harness.pool.close(300.0)


def test_an_ask_for_more_of_the_chain_than_is_known_gets_nothing(
    tmp_path: Path, client: Client
) -> None:
    keys = chain("dialog", CHUNKS)
    harness = CoreHarness(64 * LENGTH, tmp_path, 1024 * LENGTH)
    harness.store(client, keys[:2])
    store_local(harness, client, keys, 1, 3)
    look_up(harness, client, keys, 1, 1)
    run = KeyRun(1, short(group_key(keys[3], 1)))
    harness.pool.handle(client, Ask(1, 0, 4, 10_000, stream=False, local=[run]))
    assert harness.receive(client, Promise).total == 0
    harness.pool.close(300.0)
