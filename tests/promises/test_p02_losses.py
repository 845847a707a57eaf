"""P2: lost regions and tables cost misses; a second owner of a directory is refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.disk_harness import CAP_BYTES, flip, open_tier, opened, overwrite, records, regions

from forebay.errors import DirectoryError
from forebay.record.header import HEADER_BYTES
from forebay.testing.conformance import keys, load, store
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, chain, single
from forebay.tiers.contract import Hit, Miss, MissReason, Stored


def filled(place: Path, count: int = 30) -> list[Sample]:
    samples = [single(f"filled {n}", 30_000) for n in range(count)]
    with opened(place) as tier:
        for sample in samples:
            assert store(tier, sample) == Stored()
    return samples


def hits(place: Path, samples: list[Sample]) -> list[Sample]:
    with opened(place) as tier:
        outcomes = Outcomes(tier)
        for sample in samples:
            outcomes.load(sample)
        outcomes.wait()
        assert outcomes.misses.keys() <= {MissReason.ABSENT, MissReason.CORRUPT}
        return outcomes.hits


def test_t19_a_missing_region_is_a_miss_and_nothing_more(swift_path: Path) -> None:
    samples = filled(swift_path)
    regions(swift_path)[1].unlink()
    found = hits(swift_path, samples)
    assert len(samples) - 8 <= len(found) < len(samples)


def test_t19_a_region_cut_beneath_us_is_a_miss_and_the_index_is_mended(swift_path: Path) -> None:
    samples = [single(f"cut {n}", 30_000) for n in range(5)]
    with opened(swift_path) as tier:
        for sample in samples:
            store(tier, sample)
        with regions(swift_path)[0].open("r+b") as file:
            file.truncate(50_000)
        found = [load(tier, sample)[0] for sample in samples]
        assert found[0] == Hit(30_000)
        assert {outcome.reason for outcome in found[1:] if isinstance(outcome, Miss)} == {
            MissReason.CORRUPT
        }
        assert tier.usage().records == 1
        assert load(tier, samples[4])[0] == Miss(MissReason.ABSENT)


def damage_footers(place: Path) -> None:
    for path in regions(place):
        flip(path, (path.stat().st_size - HEADER_BYTES + 20) * 8)


def damage_contents(place: Path) -> None:
    for path in regions(place):
        last = max(offset for file, offset in records(place) if file == path)
        flip(path, (last + 9 * HEADER_BYTES + 3) * 8)


def damage_region_headers(place: Path) -> None:
    for path in regions(place):
        overwrite(path, 0, bytes(HEADER_BYTES))


def damage_headers_and_footers(place: Path) -> None:
    damage_region_headers(place)
    damage_footers(place)


@pytest.mark.parametrize(
    "damage",
    [damage_footers, damage_contents, damage_region_headers, damage_headers_and_footers],
)
def test_t20_an_index_that_is_lost_is_rebuilt_by_walking(
    swift_path: Path, damage: Callable[[Path], None]
) -> None:
    samples = filled(swift_path)
    damage(swift_path)
    assert len(hits(swift_path, samples)) == len(samples)
    assert len(hits(swift_path, samples)) == len(samples), "and is whole again"


def test_t20_records_behind_a_damaged_one_are_found(swift_path: Path) -> None:
    samples = filled(swift_path, 6)
    damage_footers(swift_path)
    path, offset = list(records(swift_path))[2]
    overwrite(path, offset, bytes(HEADER_BYTES))
    assert len(hits(swift_path, samples)) == 5


def test_t20_children_of_a_lost_record_are_absent(swift_path: Path) -> None:
    links = chain("chain", [30_000] * 6)
    with opened(swift_path) as tier:
        for link in links:
            store(tier, link)
    damage_footers(swift_path)
    path, offset = list(records(swift_path))[2]
    overwrite(path, offset, bytes(HEADER_BYTES))
    with opened(swift_path) as tier:
        assert tier.prefix(keys(links)).chunks == 2
        assert tier.usage().records == 2


def test_t22_a_second_owner_is_refused_with_a_sentence(swift_path: Path) -> None:
    sample = single("owned")
    with opened(swift_path) as tier:
        store(tier, sample)
        with pytest.raises(DirectoryError, match="in use by another pool") as caught:
            open_tier(swift_path, cap_bytes=2 * CAP_BYTES)
        assert str(caught.value).startswith(str(swift_path))
        assert load(tier, sample)[0] == Hit(5000), "the first is not disturbed"
        assert another_process_opens(swift_path) == "DirectoryError"
    assert another_process_opens(swift_path) == "opened"


def another_process_opens(place: Path) -> str:
    program = (
        "import sys; from forebay.tiers.disk import *; from forebay.errors import *\n"
        "try: DiskTier.open([Directory(sys.argv[1], 3 << 20)]).close(9); print('opened')\n"
        "except DirectoryError as error: print(type(error).__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(place)], capture_output=True, check=True, text=True
    )
    return found.stdout.strip()
