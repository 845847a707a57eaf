"""What a stack of tiers needs of each: what it has, what left it, namespaces, erasure, volumes."""

import queue
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

from forebay.record.header import ROOT
from forebay.record.region import short
from forebay.testing.conformance.hooks import (
    HANG_S,
    ConformanceHooks,
    eventually,
    keys,
    load,
    prefix_of,
    store,
)
from forebay.testing.outcomes import RecordingListener
from forebay.testing.samples import NAMESPACE, Sample, chain, single
from forebay.tiers.contract import (
    Hit,
    LargestNamespaces,
    Miss,
    MissReason,
    NamespaceUsage,
    Prefix,
    Removed,
    Stored,
    Tier,
    VolumeProbe,
)

OTHER = bytes(32)  # a namespace that differs from that of the samples


class StackConformance(ConformanceHooks):
    """The part of the contract that a stack of tiers relies on."""

    def test_what_it_has_is_told_by_full_and_short_keys(self, tier: Tier) -> None:
        sample = single("asked", 7000)
        for key in (sample.name.key, short(sample.name.key)):
            assert (tier.has(key), tier.length_of(key)) == (False, None)
        store(tier, sample)
        for key in (sample.name.key, short(sample.name.key)):
            assert (tier.has(key), tier.length_of(key)) == (True, 7000)
        tier.remove(short(sample.name.key))
        for key in (sample.name.key, short(sample.name.key)):
            assert (tier.has(key), tier.length_of(key)) == (False, None)

    def test_what_is_unknown_is_asked_and_told(self, tmp_path: Path) -> None:
        """A tier that has just been opened may have to ask its medium; others know at once."""
        links = chain("unknown", [3000] * 4)
        with self.opened(tmp_path) as tier:
            for link in links[:3]:
                store(tier, link)
        expected = 3 if self.is_persistent else 0
        listener = RecordingListener()
        with self.opened(tmp_path, listener) as tier:
            for _ in range(len(links)):
                found = tier.prefix(keys(links))
                assert found.chunks <= expected
                if not found.is_unknown:
                    break
                assert self.may_ask
                assert listener.wait_until_known(links[found.chunks].name.key, HANG_S)
            assert tier.prefix(keys(links)) == Prefix(expected)

    def test_what_leaves_is_told_with_whether_it_was_read(
        self, tier: Tier, listener: RecordingListener
    ) -> None:
        links = chain("told", [1000, 2000, 3000])
        for link in links:
            store(tier, link)
        load(tier, links[1])
        assert listener.gone == []
        tier.remove(links[0].name.key)
        eventually(lambda: len(listener.gone) == 3)
        told = {(gone.key, gone.length, gone.was_read) for gone in listener.gone}
        assert told == {(short(link.name.key), link.length, link is links[1]) for link in links}

    def test_outcomes_say_when_the_medium_began_and_the_chunk_was_used(self, tier: Tier) -> None:
        """If the tier knows such times, it returns the ones that it was told."""
        sample = single("timed", 5000)
        before = time.monotonic()
        stored = store(tier, sample)
        assert stored.begun is None or stored.begun <= time.monotonic()
        tier.used(sample.name.key, 41.0)
        tier.used(single("never seen").name.key, 42.0)
        found, _ = load(tier, sample)
        assert isinstance(found, Hit)
        assert found.used_at in {None, 41.0}
        assert found.begun is None or found.begun >= before
        again, _ = load(tier, sample)
        assert isinstance(again, Hit)
        # A tier may keep times more coarsely than the clock tells them.
        assert again.used_at is None or again.used_at != 41.0, "the load was a use too"

    def test_a_probe_comes_back_and_leaves_nothing(
        self, tier: Tier, listener: RecordingListener
    ) -> None:
        store(tier, single("kept"))
        before = tier.usage()
        for _ in range(2):
            probed: queue.SimpleQueue[VolumeProbe] = queue.SimpleQueue()
            found = [probed.get(timeout=HANG_S) for _ in range(tier.probe(probed.put))]
            assert sorted(found) == [VolumeProbe(number) for number in range(len(found))]
        assert tier.usage() == before
        assert not listener.gone

    def test_every_record_that_is_evicted_is_told_once(
        self, tier: Tier, listener: RecordingListener
    ) -> None:
        stored = {short(sample.name.key) for sample in self.fill(tier, times=2)}
        eventually(lambda: len(listener.gone) + tier.usage().records == len(stored))
        gone = {removed.key for removed in listener.gone}
        assert len(gone) == len(listener.gone)
        assert gone == {key for key in stored if not tier.has(key)}

    def test_a_listener_may_ask_the_tier(self, tmp_path: Path) -> None:
        class Asking(RecordingListener):
            def removed(self, records: list[Removed]) -> None:
                seen.extend((tier.has(each.key), tier.usage().records) for each in records)

        seen: list[tuple[bool, int]] = []
        with self.opened(tmp_path, Asking()) as tier:
            store(tier, single("leaves"))
            tier.remove(single("leaves").name.key)
            eventually(lambda: bool(seen))
        assert seen == [(False, 0)]

    def test_a_continuation_goes_when_no_tier_has_its_parent(
        self, tier: Tier, listener: RecordingListener
    ) -> None:
        """Before that, it may stay or go; if it stays, it must be exact."""
        head, tail = chain("continued", [3000, 3001])
        fillers = (single(f"filler {n}", 60_000) for n in count())
        store(tier, head)
        while tier.usage().used_bytes < tier.usage().cap_bytes // 2:
            assert store(tier, next(fillers)) == Stored()
        assert store(tier, tail) == Stored()
        listener.hold(head)
        while tier.has(head.name.key):
            assert store(tier, next(fillers)) == Stored()
        assert load(tier, head)[0] == Miss(MissReason.ABSENT)
        if tier.has(tail.name.key):
            assert load(tier, tail) == (Hit(tail.length), tail.payload)
        listener.held.clear()
        tier.lost(head.name.key)
        assert not tier.has(tail.name.key)
        assert load(tier, tail)[0] == Miss(MissReason.ABSENT)

    def test_losing_what_is_here_or_was_never_changes_nothing(self, tier: Tier) -> None:
        links = chain("both", [3000, 3000])
        for link in links:
            store(tier, link)
        tier.lost(links[0].name.key)
        tier.lost(single("never seen").name.key)
        assert prefix_of(tier, keys(links)) == 2

    def test_a_record_needs_its_parent_and_nothing_else(self, tier: Tier) -> None:
        """The caller decides which parent a record of a group has, by its name."""
        first, second = chain("full attention", [3000, 3000])
        window = Sample(replace(single("window").name, group=1, parent=ROOT), 3000)
        mixed = Sample(replace(single("mixed").name, group=2, parent=first.name.key), 3000)
        for sample in (window, first, mixed, second):
            assert store(tier, sample) == Stored()
        tier.remove(first.name.key)
        assert [tier.has(sample.name.key) for sample in (window, mixed, second)] == [
            True,
            False,
            False,
        ]
        assert load(tier, window) == (Hit(3000), window.payload)

    def test_a_namespace_is_erased_for_good_and_no_other(
        self, tmp_path: Path, listener: RecordingListener
    ) -> None:
        ours, others = chain("erased", [3000] * 3), chain("kept", [4000] * 2, OTHER)
        with self.opened(tmp_path, listener) as tier:
            for sample in (*ours, *others):
                store(tier, sample)
            usage = {NAMESPACE: NamespaceUsage(3, 9000), OTHER: NamespaceUsage(2, 8000)}
            assert tier.namespaces() == usage
            assert tier.usage_of([OTHER, b"?" * 32]) == [usage[OTHER], NamespaceUsage()]
            assert tier.largest_namespaces(1) == LargestNamespaces([NAMESPACE], 2)
            assert tier.erase(b"?" * 32) == 0
            assert tier.erase(NAMESPACE) == 3
            assert tier.erase(NAMESPACE) == 0
            assert tier.namespaces().get(NAMESPACE, NamespaceUsage()) == NamespaceUsage()
            assert tier.largest_namespaces(9) == LargestNamespaces([OTHER], 1)
            assert [tier.has(key) for key in keys(ours)] == [False] * 3
            assert prefix_of(tier, keys(others)) == 2
            eventually(lambda: len(listener.gone) == 3)
            assert {removed.length for removed in listener.gone} == {3000}
        with self.opened(tmp_path, listener) as tier:
            assert load(tier, ours[0])[0] == Miss(MissReason.ABSENT)
            assert tier.usage().records == (2 if self.is_persistent else 0)
            assert store(tier, ours[0]) == Stored()

    def test_all_is_erased(self, tier: Tier) -> None:
        samples = [*chain("one", [3000] * 3), *chain("two", [3000] * 2, OTHER)]
        for sample in samples:
            store(tier, sample)
        assert tier.erase(None) == 5
        assert tier.usage().records == 0
        assert not any(tier.has(key) for key in keys(samples))
        assert store(tier, samples[0]) == Stored()
        assert load(tier, samples[0]) == (Hit(3000), samples[0].payload)

    def test_volumes_say_what_they_took_and_moved(self, tier: Tier) -> None:
        samples = [single(f"moved {n}", 20_000) for n in range(8)]
        for sample in samples:
            store(tier, sample)
            load(tier, sample)
        volumes = tier.volumes()
        assert all(volume.is_on and volume.errors == 0 for volume in volumes)
        assert len({volume.path for volume in volumes}) == len(volumes)
        if volumes:
            assert sum(each.allocated_bytes for each in volumes) == tier.usage().used_bytes
            assert sum(each.written_bytes for each in volumes) >= 160_000
            assert sum(each.read_bytes for each in volumes) >= 160_000

    def test_a_volume_is_resized_and_an_unknown_one_is_not(self, tier: Tier) -> None:
        self.fill(tier, times=1)
        assert not tier.resize("no such volume", tier.usage().cap_bytes)
        volumes = tier.volumes()
        if not volumes:
            return
        each_bytes = tier.usage().cap_bytes // len(volumes) // 2
        for volume in volumes:
            assert tier.resize(volume.path, each_bytes)
        assert tier.usage().cap_bytes == each_bytes * len(volumes)
        assert tier.usage().used_bytes <= tier.usage().cap_bytes
        assert store(tier, single("after it")) == Stored()
        assert load(tier, single("after it")) == (Hit(5000), single("after it").payload)

    def test_it_has_a_name_and_says_how_it_is_doing(self, tier: Tier) -> None:
        assert tier.name
        eventually(tier.takes_stores)
        assert tier.off_reason() in {MissReason.TIER_OFF, MissReason.BUDGET}
        speed = tier.speed()
        assert speed is None or min(speed) >= 0

    def test_new_keys_cost_no_record(self, tier: Tier) -> None:
        old, new = single("before it"), single("after it")
        assert store(tier, old) == Stored()
        tier.rotate()
        assert store(tier, new) == Stored()
        for sample in (old, new):
            assert load(tier, sample) == (Hit(5000), sample.payload)
