"""What runs out first: from rates between two snapshots, nothing else."""

import pytest
from tests.cli.view.snapshots import metric, moved, snapshot, tier

from forebay.cli.view.outlook import RunOut, outlook

DAY_S = 86_400.0


def first(found: list[RunOut]) -> tuple[str, float]:
    return found[0].what, round(found[0].seconds, 3)


def test_a_tier_that_grows_is_full_when_its_room_is_gone() -> None:
    before = snapshot(100.0, tiers=[tier("dram", 200, 1000)])
    now = snapshot(110.0, tiers=[tier("dram", 300, 1000)])
    assert first(outlook(now, before)) == ("room in dram", 70.0)
    assert outlook(now, before)[0].sentence == "dram is full in 1 min 10 s (700 B left)"


def test_the_first_to_end_stands_first() -> None:
    before = snapshot(100.0, tiers=[tier("dram", 0, 1000), tier("disk", 0, 100_000)])
    now = snapshot(110.0, tiers=[tier("dram", 10, 1000), tier("disk", 50_000, 100_000)])
    assert [each.what for each in outlook(now, before)] == ["room in disk", "room in dram"]


def test_of_a_full_tier_it_is_said_how_long_a_chunk_stays() -> None:
    tiers = [tier("dram", 990, 1000), tier("disk", 0, 10_000)]
    came = [*moved("dram", store=1000), *moved("disk", load=500)]
    more = [*moved("dram", store=1100), *moved("disk", load=510)]
    before = snapshot(100.0, tiers=tiers, moved_bytes=metric(*came))
    now = snapshot(110.0, tiers=tiers, moved_bytes=metric(*more))
    # 10 a second come from engines, 1 from the disk: 990 bytes are replaced in 90 s.
    assert first(outlook(now, before)) == ("room in dram", 0.0)
    assert outlook(now, before)[0].sentence == (
        "dram is full: older chunks make room for new ones;"
        " with 11 B/s coming in, a chunk stays 1 min 30 s"
    )


def test_a_full_tier_is_named_also_where_nothing_comes_in() -> None:
    tiers = [tier("dram", 0, 0), tier("disk", 1000, 1000)]
    rests = [snapshot(at, tiers=tiers) for at in (100.0, 110.0)]
    for before in (None, rests[0]):
        [found] = outlook(rests[1], before)
        assert found.sentence == "disk is full: older chunks make room for new ones"


def test_nothing_ends_in_a_pool_that_rests_or_was_restarted() -> None:
    tiers = [tier("dram", 300, 1000)]
    assert outlook(snapshot(110.0, tiers=tiers), snapshot(100.0, tiers=tiers)) == []
    assert outlook(snapshot(110.0, tiers=tiers), None) == []
    other = snapshot(100.0, pid=8, tiers=[tier("dram", 0, 1000)])
    assert outlook(snapshot(110.0, tiers=tiers), other) == []
    shrinking = snapshot(100.0, tiers=[tier("dram", 500, 1000)])
    assert outlook(snapshot(110.0, tiers=tiers), shrinking) == []


@pytest.mark.parametrize(
    ("used_bytes", "ends_s", "said"),
    [
        (0, 10 * DAY_S / 20, "in 12 h 0 min"),
        (DAY_S * 9, DAY_S / 20, "in 1 h 12 min"),
        (10 * DAY_S, 0, ""),
    ],
)
def test_a_budget_of_writes_ends_where_more_is_written_than_a_day_has(
    used_bytes: float, ends_s: float, said: str
) -> None:
    tiers = [tier("dram", 0, 1000), tier("disk", 0, 1000)]
    written = [metric(({"tier": "disk", "volume": "0"}, total)) for total in (1000, 1200)]
    budget = {
        "write_budget_bytes": metric(({"tier": "disk"}, 10 * DAY_S)),
        "write_budget_used_bytes": metric(({"tier": "disk"}, used_bytes)),
    }
    before = snapshot(100.0, tiers=tiers, written_bytes=written[0], **budget)
    now = snapshot(110.0, tiers=tiers, written_bytes=written[1], **budget)  # 20 a second
    assert first(outlook(now, before)) == ("writes to disk", ends_s)
    assert f"is spent {said}".rstrip() in outlook(now, before)[0].sentence
    slow = snapshot(200.0, tiers=tiers, written_bytes=written[1], **budget)  # 2 a second
    assert outlook(slow, before) == []


def test_drives_have_a_life() -> None:
    tiers = [tier("dram", 0, 1000), tier("disk", 0, 1000)]
    life = {
        "rated_life_bytes": metric(({"tier": "disk"}, 1000 * DAY_S)),
        "life_written_bytes": metric(
            ({"tier": "disk", "volume": "0"}, 200 * DAY_S), ({"tier": "disk", "volume": "1"}, 0)
        ),
    }
    written = [metric(({"tier": "disk", "volume": "0"}, total)) for total in (0, 10)]
    before = snapshot(100.0, tiers=tiers, written_bytes=written[0], **life)
    now = snapshot(110.0, tiers=tiers, written_bytes=written[1], **life)
    assert first(outlook(now, before)) == ("life of disk", 800 * DAY_S)
    assert "rated life ends in 2.2 years" in outlook(now, before)[0].sentence
