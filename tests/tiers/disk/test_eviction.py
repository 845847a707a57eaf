"""The region least recently asked for is evicted: what is used outlives what is newer."""

from pathlib import Path

from tests.disk_harness import opened

from forebay.testing.conformance import load, store
from forebay.testing.samples import Sample, chain, single
from forebay.tiers.contract import Hit, Stored
from forebay.tiers.disk import DiskTier

PAYLOAD = 60_000
FILLERS = 200  # more than the tier holds twice


def keys(samples: list[Sample]) -> list[bytes]:
    return [sample.name.key for sample in samples]


def fill(tier: DiskTier, prefix: str, *, asking_for: list[Sample]) -> None:
    for number in range(FILLERS):
        assert store(tier, single(f"{prefix} {number}", PAYLOAD)) == Stored()
        tier.asked(keys([single(f"{prefix} {number}", PAYLOAD)]))
        tier.asked(keys(asking_for))


def test_a_chain_that_is_asked_for_outlives_what_was_written_later(tmp_path: Path) -> None:
    used, unused = chain("used", [PAYLOAD] * 4), chain("unused", [PAYLOAD] * 4)
    with opened(tmp_path) as tier:
        for sample in (*unused, *used):
            assert store(tier, sample) == Stored()
        fill(tier, "newer", asking_for=used)
        assert tier.prefix(keys(used)).chunks == len(used)
        assert tier.prefix(keys(unused[:1])).chunks == 0
        for sample in used:
            outcome, payload = load(tier, sample)
            assert isinstance(outcome, Hit)
            assert payload == sample.payload


def test_a_chain_that_grows_keeps_its_start(tmp_path: Path) -> None:
    """The start lies in the oldest region, and without it nothing of the chain is of use."""
    grown, turns, each = chain("grown", [10_000] * 20), 5, 4
    with opened(tmp_path) as tier:
        for turn in range(turns):
            for sample in grown[turn * each : (turn + 1) * each]:
                assert store(tier, sample) == Stored()
            for number in range(100):
                asked = grown[: (turn + 1) * each] if number % 10 == 0 else []
                tier.asked(keys(asked))  # else another request, which finds nothing
                assert store(tier, single(f"{turn} {number}", 10_000)) == Stored()
        assert tier.prefix(keys(grown)).chunks == len(grown)
        assert not tier.has(single("0 50", 10_000).name.key), "the tier is full"
    with opened(tmp_path) as tier:
        assert tier.prefix(keys(grown)).chunks == len(grown), "a restart finds it"


def test_what_nobody_asks_for_leaves_in_the_order_it_was_written(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        samples = [single(f"plain {number}", PAYLOAD) for number in range(FILLERS)]
        for sample in samples:
            assert store(tier, sample) == Stored()
        kept = [tier.has(sample.name.key) for sample in samples]
        assert any(kept)
        assert kept == sorted(kept)


def test_of_a_chain_asked_for_once_the_end_leaves_first(tmp_path: Path) -> None:
    whole = chain("whole", [PAYLOAD] * 24)
    with opened(tmp_path) as tier:
        for sample in whole:
            assert store(tier, sample) == Stored()
        tier.asked(keys(whole))
        number = 0
        while (left := tier.prefix(keys(whole)).chunks) == len(whole):
            number += 1
            assert number <= FILLERS
            tier.asked([])  # so that what is stored is of a later turn
            assert store(tier, single(f"pushing {number}", PAYLOAD)) == Stored()
        assert left > len(whole) // 2
