"""Several hosts on one directory: they find each other's records, and outlive each other."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.remote_harness import (
    CAP_BYTES,
    CLOSE_S,
    PATIENT,
    SHARING,
    damage_payloads,
    flip,
    opened_remote,
    packs_in,
)

from forebay.testing.conformance import keys, load, store
from forebay.testing.conformance.hooks import eventually
from forebay.testing.outcomes import RecordingListener
from forebay.testing.samples import NAMESPACE, Sample, chain, single
from forebay.tiers.contract import Dropped, DropReason, Hit, Miss, MissReason, Stored
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import Publication
from forebay.tiers.remote.tier import RemoteTier

ROOT = Path(__file__).parent.parent.parent.parent


@contextmanager
def two_hosts(place: Path) -> Iterator[tuple[RemoteTier, RemoteTier]]:
    with (
        opened_remote(place, "a", options=SHARING) as a,
        opened_remote(place, "b", options=SHARING) as b,
    ):
        yield a, b


def test_what_one_host_stores_the_other_finds_and_continues(tmp_path: Path) -> None:
    links = chain("shared", [3000, 60_000, 1, 5000])
    with two_hosts(tmp_path) as (a, b):
        for link in links[:3]:
            assert store(a, link) == Stored()
        eventually(lambda: b.prefix(keys(links)).chunks == 3)
        for link in links[:3]:
            assert b.length_of(link.name.key) == link.length
            assert load(b, link) == (Hit(link.length), link.payload)
            assert store(b, link) == Dropped(DropReason.DUPLICATE)
        assert b.usage().records == 0, "what others have counts for them"
        assert store(b, links[3]) == Stored(), "its parent is in another host's pack"
        eventually(lambda: a.prefix(keys(links)).chunks == 4)
        assert load(a, links[3]) == (Hit(5000), links[3].payload)
    with opened_remote(tmp_path, "b") as b:
        assert b.prefix(keys(links)).chunks == 4, "neither is lost with a restart"
        assert b.usage().records == 1


def test_t21_both_hosts_may_store_the_same(tmp_path: Path) -> None:
    sample = single("twins", 9000)
    with opened_remote(tmp_path, "a") as a, opened_remote(tmp_path, "b") as b:
        assert store(a, sample) == store(b, sample) == Stored()
    assert len(packs_in(tmp_path)) == 2
    with opened_remote(tmp_path, "c") as c:
        assert load(c, sample) == (Hit(9000), sample.payload)
        packs_in(tmp_path, "a")[0].unlink()
        assert c.has(sample.name.key)
        load(c, sample)
        assert load(c, sample) == (Hit(9000), sample.payload), "the other copy is found"


def test_t21_two_hosts_that_publish_the_same_prefix_are_each_enough(tmp_path: Path) -> None:
    """Neither knows of the other when it stores; what one clears the other still has."""
    links = chain("twice", [3000, 60_000, 1])
    with opened_remote(tmp_path, "a") as a, opened_remote(tmp_path, "b") as b:
        for link in links:
            assert store(a, link) == store(b, link) == Stored()
        with opened_remote(tmp_path, "c", options=SHARING) as c:
            eventually(lambda: c.prefix(keys(links)).chunks == 3)
            for link in links:
                assert load(c, link) == (Hit(link.length), link.payload)
            assert sum(c.packs_of_others().values()) == 6
            assert a.erase(None) == 3
            eventually(lambda: not packs_in(tmp_path, "a"))
            eventually(lambda: c.packs_of_others()[NAMESPACE] == 3)
            for link in links:  # one that is listed and gone is asked for once
                eventually(partial(is_exact, c, link))
            assert c.usage().records == 0


def is_exact(tier: RemoteTier, link: Sample) -> bool:
    return load(tier, link) == (Hit(link.length), link.payload)


def test_a_pack_that_is_listed_and_gone_is_a_miss_and_not_asked_for_again(tmp_path: Path) -> None:
    listener = RecordingListener()
    links = chain("gone", [3000] * 2)
    with opened_remote(tmp_path, "a") as a:
        for link in links:
            store(a, link)
    with opened_remote(tmp_path, "b", listener=listener) as b:
        packs_in(tmp_path, "a")[0].unlink()
        packs_in(tmp_path, "a")[0].unlink()
        assert load(b, links[0])[0] == Miss(MissReason.ABSENT)
        assert b.prefix(keys(links)).chunks == 0
        assert b.volumes()[0].errors == 0
        eventually(lambda: bool(listener.gone))
        assert store(b, links[0]) == Stored()
    with opened_remote(tmp_path, "a") as a:
        assert a.usage().records == 0


def test_an_own_pack_that_somebody_deleted_is_a_miss_and_counts_no_more(tmp_path: Path) -> None:
    with opened_remote(tmp_path) as tier:
        store(tier, single("deleted"))
        packs_in(tmp_path)[0].unlink()
        assert load(tier, single("deleted"))[0] == Miss(MissReason.ABSENT)
        eventually(lambda: tier.usage().used_bytes == 0)
        assert store(tier, single("deleted")) == Stored()


def test_what_is_erased_is_unpublished(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (a, b):
        store(a, single("erased"))
        eventually(lambda: b.has(single("erased").name.key))
        assert a.erase(NAMESPACE) == 1
        eventually(lambda: not b.has(single("erased").name.key))


def test_what_another_host_removes_is_forgotten_here_alone(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (a, b):
        store(a, single("removed"))
        eventually(lambda: b.has(single("removed").name.key))
        b.remove(single("removed").name.key)
        assert not b.has(single("removed").name.key)
        assert load(a, single("removed"))[0] == Hit(5000)


def test_t27_a_host_of_damaged_records_is_not_read_from(tmp_path: Path) -> None:
    samples = [single(f"bad {n}", 3000) for n in range(10)]
    with opened_remote(tmp_path, "a") as a:
        for sample in samples:
            store(a, sample)
    damage_payloads(tmp_path)
    listener = RecordingListener()
    with opened_remote(tmp_path, "b", listener=listener) as b:
        outcomes = [load(b, sample)[0] for sample in samples]
        reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Miss)]
        assert reasons == [MissReason.CORRUPT] * 8 + [MissReason.ABSENT] * 2
        assert len(listener.gone) == 8
        assert store(b, samples[9]) == Stored(), "it is stored anew by whoever has it"


def test_snapshots_and_tails_together_are_what_a_host_has(tmp_path: Path) -> None:
    few = replace(SHARING, tail_entries_max=3)
    samples = [single(f"many {n}", 3000) for n in range(20)]
    with opened_remote(tmp_path, "b", options=SHARING) as b:
        with opened_remote(tmp_path, "a", options=few) as a:
            for sample in samples:
                assert store(a, sample) == Stored()
            eventually(lambda: all(b.has(sample.name.key) for sample in samples))
            assert (tmp_path / "hosts" / "a" / "snapshot").exists()
            assert a.erase(NAMESPACE) == 20
            eventually(lambda: not any(b.has(sample.name.key) for sample in samples))
            assert store(a, samples[0]) == Stored()
        eventually(lambda: b.has(samples[0].name.key))
        assert load(b, samples[0])[0] == Hit(3000)


def test_a_damaged_publication_says_nothing(tmp_path: Path) -> None:
    few = replace(PATIENT, tail_entries_max=0)
    with opened_remote(tmp_path, "a", options=few) as a:
        store(a, single("told"))
    for name in ("tail", "snapshot"):
        flip(tmp_path / "hosts" / "a" / name, 40)
        with opened_remote(tmp_path, "b") as b:
            assert not b.has(single("told").name.key)
            assert b.volumes()[0].is_on
        flip(tmp_path / "hosts" / "a" / name, 40)
    with opened_remote(tmp_path, "b") as b:
        assert load(b, single("told"))[0] == Hit(5000)


HOST = """
import sys
from pathlib import Path
from dataclasses import replace
from tests.remote_harness import PATIENT, open_remote
from forebay.testing.conformance import store
from forebay.testing.samples import single
publish_s, count = float(sys.argv[2]), int(sys.argv[3])
tier = open_remote(Path(sys.argv[1]), "dying", options=replace(PATIENT, publish_s=publish_s))
for n in range(count):
    store(tier, single(f"dying {n}", 9000))
    print(n, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_t62_a_host_that_dies_leaves_what_it_had(tmp_path: Path, moment: str) -> None:
    """Killed with packs that nobody knows of; at any moment; and with everything published."""
    samples = [single(f"dying {n}", 9000) for n in range(8)]
    publish_s = {"before": 3600.0, "during": 0.0, "after": 0.0}[moment]
    told = 3 if moment == "during" else 8
    arguments = [sys.executable, "-c", HOST, str(tmp_path), str(publish_s), "8"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as host:
        assert host.stdout is not None
        for _ in range(told):
            assert host.stdout.readline()
        with opened_remote(tmp_path, "b", options=SHARING) as b:
            if moment == "after":
                eventually(lambda: all(b.has(sample.name.key) for sample in samples))
            host.send_signal(signal.SIGKILL)
            host.wait()
            found = [sample for sample in samples if b.has(sample.name.key)]
            assert (moment == "before") <= (not found)
            for sample in found:
                assert load(b, sample) == (Hit(9000), sample.payload)
    with opened_remote(tmp_path, "dying") as again:
        # Its packs are found again by itself; those that no index lists are read meanwhile.
        eventually(lambda: again.usage().records >= told)
        for sample in samples[:told]:
            assert load(again, sample) == (Hit(9000), sample.payload)
        assert not [path for path in (tmp_path / ".new").iterdir() if path.name[:5] == "dying"]


def test_t62_the_cap_of_a_host_holds_for_all_of_its_objects(tmp_path: Path) -> None:
    cap_bytes = 1 << 20
    with opened_remote(tmp_path, "b") as b:
        store(b, single("another's", 30_000))
        with opened_remote(tmp_path, "a", cap_bytes=cap_bytes) as a:
            for n in range(60):
                assert store(a, single(f"flood {n}", 60_000)) == Stored()
                assert taken(tmp_path, "a") <= cap_bytes
            assert a.volumes()[0].evictions > 40
        assert load(b, single("another's", 30_000))[0] == Hit(30_000)


def taken(place: Path, host: str) -> int:
    own = [*place.glob(f"packs/*/{host}/*"), *place.glob(f"hosts/{host}/*")]
    unfinished = place.glob(f".new/{host}.*")
    sizes = []
    for path in (*own, *unfinished):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue  # renamed or deleted meanwhile
    return sum(sizes)


def test_a_record_whose_parent_is_gone_is_of_use_when_that_is_stored_again(tmp_path: Path) -> None:
    links: list[Sample] = chain("headless", [3000, 3001])
    with opened_remote(tmp_path) as tier:
        store(tier, links[0])
        head = packs_in(tmp_path)
        store(tier, links[1])
    head[0].unlink()
    with opened_remote(tmp_path) as tier:
        assert tier.prefix(keys(links)).chunks == 0
        assert store(tier, links[0]) == Stored()
        assert tier.prefix(keys(links)).chunks == 2
        assert load(tier, links[1]) == (Hit(3001), links[1].payload)


def test_a_tier_is_opened_with_its_defaults(tmp_path: Path) -> None:
    tier = RemoteTier.open(f"file://{tmp_path}?cap={CAP_BYTES}", "plain")
    eventually(lambda: tier.volumes()[0].is_on)
    tier.close(CLOSE_S)


def test_what_a_store_loses_by_itself_is_learnt_and_published(tmp_path: Path) -> None:
    auditing = replace(SHARING, audit_s=0.0, tail_entries_max=1)
    dialog = chain("dialog", [5000, 6000, 7000])
    with (
        opened_remote(tmp_path, "a", options=auditing) as a,
        opened_remote(tmp_path, "b", options=SHARING) as b,
    ):
        for each in dialog:
            assert store(a, each) == Stored()
        eventually(lambda: b.prefix(keys(dialog)).chunks == 3)
        own = tmp_path / "hosts" / "a"

        def is_whole() -> bool:
            """Whether the tail continues the snapshot that is there."""
            try:
                tail, snapshot = (
                    published.unpack((own / name).read_bytes()) for name in ("tail", "snapshot")
                )
            except FileNotFoundError:
                return False
            assert isinstance(tail, Publication)
            assert isinstance(snapshot, Publication)
            return tail.snapshot == snapshot.generation

        for lost in ("snapshot", "tail"):
            eventually(is_whole)
            (own / lost).unlink()
        eventually(is_whole)
        eventually(lambda: b.prefix(keys(dialog)).chunks == 3)
        assert a.usage().records == 3
        for path in packs_in(tmp_path):
            path.unlink()
        eventually(lambda: a.usage().used_bytes == 0 and a.usage().records == 0)
        eventually(lambda: b.prefix(keys(dialog)).chunks == 0)
