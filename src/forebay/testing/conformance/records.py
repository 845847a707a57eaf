"""Records as every tier keeps them: exact or a miss, with their prefix, within the cap."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.record.header import Digest, payload_hash
from forebay.sys import memory
from forebay.testing.conformance.hooks import (
    CLOSE_S,
    HANG_S,
    ConformanceHooks,
    eventually,
    keys,
    load,
    prefix_of,
    store,
)
from forebay.testing.outcomes import FOREVER, Outcomes
from forebay.testing.samples import Sample, chain, single
from forebay.tiers import blocking
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    Hit,
    LoadOutcome,
    Miss,
    MissReason,
    Stored,
    Tier,
    TierListener,
)

LENGTHS = [1, 511, 512, 4095, 4096, 4097, 65_536, 100_001]


class RecordConformance(ConformanceHooks):
    """The part of the contract about single records and chains."""

    @pytest.mark.parametrize("length", LENGTHS)
    def test_what_is_stored_is_loaded_exactly(self, tier: Tier, length: int) -> None:
        sample = single("exact", length)
        assert store(tier, sample) == Stored()
        assert load(tier, sample) == (Hit(length), sample.payload)
        again, payload = load(tier, sample)
        assert (again, payload) == (Hit(length), sample.payload), "loading does not consume"
        header = again.header if isinstance(again, Hit) else None
        assert header is None or (header.name, header.length) == (sample.name, length)

    def test_a_record_of_shards_is_loaded_exactly_and_verified(self, tier: Tier) -> None:
        sample, damaged = single("shards", 12_000), single("damaged shards", 12_000)
        digest = Digest(payload_hash(sample.payload, 3), 3)
        assert digest.payload_hash != payload_hash(sample.payload)
        assert blocking.store(tier, sample.name, sample.payload, digest=digest) == Stored()
        outcome, payload = load(tier, sample)
        assert (outcome, payload) == (Hit(12_000), sample.payload)
        header = outcome.header if isinstance(outcome, Hit) else None
        assert header is None or Digest(header.payload_hash, header.shards) == digest
        assert blocking.store(tier, damaged.name, damaged.payload, digest=digest) == Stored()
        assert isinstance(load(tier, damaged)[0], Miss), "these bytes are not what was hashed"

    def test_what_was_never_stored_is_absent(self, tier: Tier) -> None:
        assert load(tier, single("nothing"))[0] == Miss(MissReason.ABSENT)
        assert prefix_of(tier, [single("nothing").name.key]) == 0

    def test_a_second_store_is_a_duplicate_and_changes_nothing(self, tier: Tier) -> None:
        sample = single("twice")
        assert store(tier, sample) == Stored()
        again = blocking.store(tier, sample.name, b"other bytes of the same name")
        assert again == Dropped(DropReason.DUPLICATE)
        assert load(tier, sample) == (Hit(sample.length), sample.payload)
        assert tier.usage().records == 1

    def test_a_store_beside_its_twin_is_stored_once(self, tier: Tier) -> None:
        outcomes = Outcomes(tier)
        for _ in range(8):
            outcomes.store(single("twins", 50_000))
        outcomes.wait()
        assert len(outcomes.stored) == 1
        assert outcomes.dropped == {DropReason.DUPLICATE: 7}

    def test_an_orphan_is_dropped_until_its_parent_is_there(self, tier: Tier) -> None:
        parent, child = chain("orphan", [5000, 5000])
        assert store(tier, child) == Dropped(DropReason.ORPHAN)
        assert load(tier, child)[0] == Miss(MissReason.ABSENT)
        assert store(tier, parent) == Stored()
        assert store(tier, child) == Stored()
        assert load(tier, child) == (Hit(child.length), child.payload)

    def test_a_chain_is_stored_without_waiting_for_each_link(self, tier: Tier) -> None:
        links = chain("at once", [20_000] * 12)
        outcomes = Outcomes(tier)
        for link in links:
            outcomes.store(link)
        outcomes.wait()
        assert len(outcomes.stored) == 12
        assert prefix_of(tier, keys(links)) == 12

    def test_a_prefix_is_counted_by_full_and_short_keys(self, tier: Tier) -> None:
        links = chain("prefix", [3000] * 5)
        for link in links[:3]:
            store(tier, link)
        full, shortened = keys(links), [key[:16] for key in keys(links)]
        assert prefix_of(tier, []) == 0
        assert prefix_of(tier, full) == prefix_of(tier, shortened) == 3
        assert prefix_of(tier, full[:2]) == prefix_of(tier, shortened[:2]) == 2
        assert prefix_of(tier, [*full[3:], *full]) == 0, (
            "counting ends at the first that is missing"
        )

    def test_removing_removes_all_that_continue_it(self, tier: Tier) -> None:
        links = chain("remove", [3000] * 4)
        other = single("remove, another")
        twig = Sample(replace(single("twig").name, parent=links[1].name.key), 3000)
        for sample in (*links, twig, other):
            assert store(tier, sample) == Stored()
        tier.remove(links[1].name.key)
        assert prefix_of(tier, keys(links)) == 1
        for sample in (links[1], links[2], links[3], twig):
            assert load(tier, sample)[0] == Miss(MissReason.ABSENT)
        for sample in (links[0], other):
            assert load(tier, sample)[0] == Hit(sample.length)
        assert tier.usage().records == 2
        assert store(tier, links[2]) == Dropped(DropReason.ORPHAN)
        assert store(tier, links[1]) == Stored()
        assert load(tier, links[1]) == (Hit(links[1].length), links[1].payload)

    def test_removing_what_is_not_there_does_nothing(self, tier: Tier) -> None:
        store(tier, single("stays"))
        tier.remove(single("goes").name.key)
        tier.remove(bytes(32))
        assert tier.usage().records == 1

    @pytest.mark.parametrize("field", ["namespace", "group", "key"])
    def test_another_name_never_hits(self, tier: Tier, field: str) -> None:
        """A short key may agree although the full name does not."""
        sample = single("names")
        other: dict[str, object] = {
            "namespace": bytes(32),
            "group": 1,
            "key": sample.name.key[:16] + bytes(16),
        }
        store(tier, sample)
        asked = Sample(replace(sample.name, **{field: other[field]}), sample.length)  # type: ignore[arg-type]
        assert isinstance(load(tier, asked)[0], Miss)

    def test_a_target_too_small_is_a_miss_and_harms_nothing(self, tier: Tier) -> None:
        sample = single("large", 50_000)
        store(tier, sample)
        outcome, _ = blocking.load(tier, sample.name, 4096, HANG_S, FOREVER)
        assert isinstance(outcome, Miss)

    def test_what_cannot_fit_is_too_large(self, tier: Tier) -> None:
        huge = single("huge", tier.usage().cap_bytes + 1)
        assert store(tier, huge) == Dropped(DropReason.TOO_LARGE)
        assert tier.usage().records == 0
        assert store(tier, single("small")) == Stored()

    def test_usage_says_what_can_be_loaded(self, tier: Tier) -> None:
        links = chain("usage", [1, 5000, 70_000])
        for link in links:
            store(tier, link)
        found = tier.usage()
        assert found.records == 3
        assert found.payload_bytes == sum(link.length for link in links)
        assert found.payload_bytes <= found.used_bytes <= found.cap_bytes

    def test_a_full_tier_makes_room_and_stays_within_its_cap(self, tier: Tier) -> None:
        samples = self.fill(tier, times=3)
        assert store(tier, samples[-1]) == Dropped(DropReason.DUPLICATE), "the youngest is here"
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
        usage = tier.usage()
        assert len(outcomes.hits) == usage.records
        assert usage.payload_bytes == sum(sample.length for sample in outcomes.hits)
        assert usage.payload_bytes > usage.cap_bytes // 3, "a full tier is used"
        assert outcomes.misses.keys() == {MissReason.ABSENT}

    def test_what_is_here_has_its_whole_prefix_here(self, tier: Tier) -> None:
        samples = self.fill(tier, times=2)
        for at in range(0, len(samples), 4):
            links = samples[at : at + 4]
            count = prefix_of(tier, keys(links))
            here = [isinstance(load(tier, link)[0], Hit) for link in links]
            assert here == [position < count for position in range(4)]

    def test_t23_loads_beside_stores_and_evictions_are_exact_or_misses(self, tier: Tier) -> None:
        samples = [single(f"race {n}", 9000 + n) for n in range(300)]
        recent: list[Sample] = []
        stop = threading.Event()
        writing = Outcomes(tier)
        reading = [Outcomes(tier) for _ in range(2)]

        def load_forever(outcomes: Outcomes) -> None:
            while not stop.wait(0.001):
                for sample in recent[-30:]:
                    outcomes.load(sample)
                outcomes.wait()

        readers = [threading.Thread(target=load_forever, args=[each]) for each in reading]
        for reader in readers:
            reader.start()
        for sample in samples:
            writing.store(sample)
            recent.append(sample)
            if len(recent) % 30 == 0:
                tier.remove(recent[-20].name.key)
                writing.wait()
        eventually(lambda: all(outcomes.hits for outcomes in reading))
        stop.set()
        for reader in readers:
            reader.join()
        for outcomes in reading:
            outcomes.wait()

    def test_a_load_past_its_deadline_is_a_miss(self, tier: Tier) -> None:
        sample = single("late")
        store(tier, sample)
        outcomes = Outcomes(tier)
        outcomes.load(sample, deadline=0.0)
        outcomes.wait()
        assert outcomes.misses == {MissReason.DEADLINE: 1}
        assert load(tier, sample)[0] == Hit(sample.length), "it is late, not gone"

    def test_an_answer_may_submit_the_next_load(self, tier: Tier) -> None:
        links = chain("from answer to answer", [3000] * 20)
        for link in links:
            store(tier, link)
        finished = threading.Event()

        def go_on(position: int) -> None:
            if position == len(links):
                finished.set()
                return

            def done(outcome: LoadOutcome) -> None:
                assert isinstance(outcome, Hit)
                go_on(position + 1)

            tier.submit_load(links[position].name, memory.allocate(3000), done, float("inf"))

        go_on(0)
        assert finished.wait(HANG_S)

    def test_closing_answers_everything_once(self, tmp_path: Path) -> None:
        tier = self.open_tier(tmp_path, TierListener())
        outcomes = Outcomes(tier)
        links = chain("close", [20_000] * 30)
        for link in links:
            outcomes.store(link)
            outcomes.load(link)
        tier.close(CLOSE_S)
        outcomes.wait()
        answered = len(outcomes.stored) + sum(outcomes.dropped.values())
        assert answered == 30

    def test_closing_twice_is_closing_once_and_a_closed_tier_only_misses(
        self, tmp_path: Path
    ) -> None:
        sample = single("closed")
        tier = self.open_tier(tmp_path, TierListener())
        store(tier, sample)
        tier.close(CLOSE_S)
        tier.close(CLOSE_S)
        assert isinstance(load(tier, sample)[0], Miss)
        assert isinstance(store(tier, single("too late")), Dropped)
        tier.remove(sample.name.key)
        assert not tier.has(sample.name.key)
        assert tier.prefix([sample.name.key]).chunks == 0
        assert tier.usage().cap_bytes > 0

    def test_records_outlive_the_tier(self, tmp_path: Path) -> None:
        if not self.is_persistent:
            return
        links = chain("warm", [1, 4096, 50_000])
        with self.opened(tmp_path) as tier:
            for link in links:
                store(tier, link)
            before = tier.usage()
        for _ in range(3):
            with self.opened(tmp_path) as tier:
                assert tier.usage() == before
                assert prefix_of(tier, keys(links)) == 3
                for link in links:
                    assert load(tier, link) == (Hit(link.length), link.payload)

    def test_t6_damage_is_a_miss_once_then_absent_and_a_store_repairs_it(
        self, tmp_path: Path
    ) -> None:
        links = chain("damage", [5000, 60_000])
        with self.opened(tmp_path) as tier:
            for link in links:
                store(tier, link)
            self.damage(tmp_path)
            outcome, _ = load(tier, links[0])
            assert isinstance(outcome, Miss)
            assert outcome.reason is MissReason.CORRUPT
            assert load(tier, links[0])[0] == Miss(MissReason.ABSENT)
            assert prefix_of(tier, keys(links)) == 0
            for link in links:
                assert store(tier, link) == Stored()
                assert load(tier, link) == (Hit(link.length), link.payload)
