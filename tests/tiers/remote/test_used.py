"""What hosts publish of their use: as bytes, and as whoever starts finds it."""

from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from tests.remote_harness import AGE_S, CLOSE_S, PATIENT, open_remote, opened_remote
from tests.store_faults import WarmListener, check_warm_start, is_stored

from forebay.record.header import DEFAULT_TENANT, Damage
from forebay.record.region import short
from forebay.sys.memory import PAGE_BYTES
from forebay.testing.conformance.hooks import eventually
from forebay.testing.samples import NAMESPACE, single
from forebay.tiers.contract import USED_RECORDS_MAX, UsedRecord, WarmStart
from forebay.tiers.remote.index import table, used
from forebay.tiers.remote.index.published import Publication, tail_name, unpack
from forebay.tiers.remote.index.used import MergedUses, pack_used, unpack_used, used_name
from forebay.tiers.remote.io.polling import HostPolling
from forebay.tiers.remote.process.messages import Action, Answer
from forebay.tiers.remote.process.watching import UsedByHosts
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.tiers.remote.tier import RemoteTier


def record(label: str, uses: int = 3) -> UsedRecord:
    return UsedRecord(NAMESPACE, DEFAULT_TENANT, 0, label.encode().ljust(16, b"."), uses)


def test_records_come_back_and_no_more_than_a_host_may_have() -> None:
    records = [record("a"), record("b", 2)]
    assert unpack_used(pack_used(records)) == records
    assert unpack_used(pack_used([])) == []
    many = [record(str(number)) for number in range(USED_RECORDS_MAX + 5)]
    data = pack_used(many)
    assert unpack_used(data) == many[:USED_RECORDS_MAX]
    assert len(data) == used.USED_BYTES_MAX
    assert unpack_used(pack_used([record("a", 1 << 40)])) == [record("a", (1 << 32) - 1)]


def test_any_changed_byte_and_any_cut_says_nothing() -> None:
    data = pack_used([record("a"), record("b", 2)])
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert isinstance(unpack_used(bytes(changed)), Damage), at
        assert isinstance(unpack_used(data[:at]), Damage), at
    forged = bytearray(data[:-16])
    forged[12] += 1  # one more than there are
    assert unpack_used(bytes(forged) + xxhash.xxh3_128_digest(bytes(forged))) is Damage.LENGTH


def test_a_newer_version_is_left_alone() -> None:
    body = bytearray(pack_used([record("a")])[:-16])
    body[8] = 2
    assert unpack_used(bytes(body) + bytes(16)) is Damage.NEWER_VERSION


def most_used(*hosts: list[UsedRecord]) -> list[UsedRecord]:
    uses = MergedUses()
    for records in hosts:
        uses.add(records)
    return uses.most()


def test_hosts_uses_add_up_and_equals_keep_their_order() -> None:
    first = [record("head", 3), record("tail", 3)]
    second = [record("other", 5), record("tail", 1), record("last", 4)]
    assert [each.key.rstrip(b".") for each in most_used(first, second)] == [
        b"other",
        b"tail",
        b"last",
        b"head",
    ]


def test_a_host_of_too_many_records_leaves_room_for_none_but_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(used, "MERGED_MAX", 3)
    monkeypatch.setattr(used, "WARM_RECORDS_MAX", 2)
    flood = [record(str(number), 1) for number in range(10)]
    assert most_used([record("head", 9)], flood, [record("head", 1)]) == [
        record("head", 10),
        flood[0],
    ]


def test_nothing_is_told_of_a_forgotten_tenant(tmp_path: Path) -> None:
    """It may have been forgotten since what is told was counted."""
    gone, kept = bytes([7]) * 16, record("kept")
    tier = open_remote(tmp_path)
    tier.delete_forgotten(frozenset({gone}))
    tier.publish_used([record("gone")._replace(tenant=gone), kept])
    told = tmp_path / used_name("a")
    eventually(told.exists)
    assert unpack_used(told.read_bytes()) == [kept]
    tier.close(CLOSE_S)


def put(place: Path, host: str, data: bytes) -> None:
    path = place / used_name(host)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "shared"
    found.mkdir(mode=0o700)
    return found


def test_what_cannot_be_read_is_passed_over(place: Path) -> None:
    put(place, "a", pack_used([record("a")]))
    put(place, "b", b"FOREBAYU" + bytes(100))
    put(place, "c", b"x" * (used.USED_BYTES_MAX + PAGE_BYTES))
    put(place, "d", b"")
    (place / "hosts" / "e").mkdir()
    store = DirectoryStore(str(place), "z")
    found = UsedByHosts(store).poll()
    assert isinstance(found, bytes)
    assert unpack_used(found) == [record("a")]


def test_a_store_that_fails_is_no_store_without_uses(place: Path) -> None:
    store = DirectoryStore(str(place), "z")
    assert UsedByHosts(store).poll() == pack_used([]), "nobody has told anything"
    (place / used_name("a")).mkdir(parents=True)
    assert UsedByHosts(store).poll() is StoreFailure.FAILED
    place.chmod(0o777)
    assert UsedByHosts(store).poll() is StoreFailure.DENIED


def test_a_tier_tells_what_is_used_and_offers_it_where_it_is_told_to(place: Path) -> None:
    first = open_remote(place, "a")
    first.publish_used([record("a")])
    eventually((place / used_name("a")).exists)
    first.close(CLOSE_S)
    listener = WarmListener()
    url = f"file://{place}?cap=1MiB&warm=7GiB:1MiB"
    second = RemoteTier.open(url, "b", PATIENT, listener=listener)
    eventually(lambda: bool(listener.offered))
    second.close(CLOSE_S)
    assert listener.offered == [WarmStart([record("a")], 7 << 30, 1 << 20)], "once"


def test_where_it_lies_is_published_before_it_is_told_to_be_used(place: Path) -> None:
    sample = single("used")
    name = sample.name
    used = UsedRecord(name.namespace, name.tenant, name.group, short(name.key), 7)
    with opened_remote(place, options=replace(PATIENT, publish_s=AGE_S)) as tier:
        eventually((place / tail_name("a")).exists)
        eventually(lambda: is_stored(tier, sample))
        tier.publish_used([used])
        eventually((place / used_name("a")).exists)
        tail = unpack((place / tail_name("a")).read_bytes())
    assert isinstance(tail, Publication)
    assert len(tail.packs) == 1, "another host would pass over what it cannot find"


def test_what_is_used_is_asked_for_before_where_it_lies_and_offered_behind(place: Path) -> None:
    listener = WarmListener()
    url = f"file://{place}?cap=1MiB&warm=7GiB:1MiB"
    tier = RemoteTier.open(url, "b", PATIENT, listener=listener)
    polling, told = HostPolling(tier.parts), [record("a")]
    nothing = memoryview(table.build([], []))
    first = polling.request(0.0)
    assert first is not None
    polling.answered(first, Answer(0), [])  # some hosts, not yet all
    rest = polling.request(0.0)
    assert rest is not None
    assert first.action is rest.action is Action.USED
    polling.answered(rest, Answer(0), [memoryview(pack_used(told))])
    assert not listener.offered, "it is not known where it lies"
    then = polling.request(0.0)
    assert then is not None
    assert then.action is Action.REFRESH
    polling.answered(then, Answer(0), [nothing, nothing])
    assert [each.records for each in listener.offered] == [told]
    assert polling.request(0.0) is None
    tier.close(CLOSE_S)


def test_a_host_that_starts_hears_of_it(place: Path) -> None:
    check_warm_start(f"file://{place}?cap=3MiB")


def test_with_a_budget_uses_are_told_less_often(place: Path) -> None:
    url = f"file://{place}?cap=1MiB&requests=16000"
    tier = RemoteTier.open(url, "a", PATIENT)
    tier.publish_used([record("a")])
    eventually((place / used_name("a")).exists)
    assert tier.parts.apart_s(1, 1 / 16) == 86.4
    tier.close(CLOSE_S)
