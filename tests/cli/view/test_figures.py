"""Figures for people: shares and rates between two snapshots, or since the pool began."""

import pytest
from tests.cli.view.snapshots import histogram, metric, moved, snapshot

from forebay.cli.view.figures import figures
from forebay.cli.view.units import duration, frequency, rate, share


def tokens(dram: int, disk: int, engine: int, computed: int) -> dict[str, object]:
    sources = {"dram": dram, "disk": disk, "engine": engine, "computed": computed}
    return metric(*(({"source": name}, number) for name, number in sources.items()))


def test_amounts_are_since_the_older_snapshot_or_since_the_start() -> None:
    before = snapshot(10.0, lookups=metric(({}, 40)), moved_bytes=metric(*moved("dram", load=100)))
    now = snapshot(30.0, lookups=metric(({}, 100)), moved_bytes=metric(*moved("dram", load=500)))
    found = figures(now, before)
    assert (found.seconds, found.lookups, found.load_bytes_s) == (20.0, 60.0, 20.0)
    whole = figures(now)
    assert (whole.seconds, whole.lookups) == (30.0, 100.0)


def test_a_pool_that_was_restarted_counts_from_its_start() -> None:
    before = snapshot(1000.0, pid=6, lookups=metric(({}, 4000)))
    found = figures(snapshot(30.0, lookups=metric(({}, 100))), before)
    assert (found.seconds, found.lookups) == (30.0, 100.0)


def test_the_hit_rate_leaves_out_what_engines_had_themselves() -> None:
    found = figures(snapshot(1.0, request_tokens=tokens(30, 20, 900, 50)))
    assert found.hit_rate == pytest.approx(0.5)
    chunks = metric(({"found": "dram"}, 3), ({"found": "absent"}, 1))
    assert figures(snapshot(1.0, lookup_chunks=chunks)).hit_rate == pytest.approx(0.75)
    assert figures(snapshot(1.0)).hit_rate is None


def test_reasons_are_ranked_and_what_is_no_miss_is_left_out() -> None:
    requests = metric(({"outcome": "loaded"}, 90), ({"outcome": "not_worth"}, 2))
    way = {"tier": "disk", "direction": "load"}
    operations = metric(({**way, "outcome": "ok"}, 50), ({**way, "outcome": "io_error"}, 7))
    refused = metric(({"reason": "have"}, 9), ({"reason": "later"}, 1))
    found = figures(snapshot(1.0, requests=requests, operations=operations, stores_refused=refused))
    assert found.misses == (("disk: io error", 7.0), ("not worth", 2.0))
    assert found.stores_left_out == (("later", 1.0),)


def test_a_median_is_of_what_was_added_between() -> None:
    def ages(within_10: int, within_100: int, count: int) -> dict[str, object]:
        return metric(({"tier": "dram"}, histogram({10.0: within_10, 100.0: within_100}, count)))

    before = snapshot(1.0, age_at_eviction_seconds=ages(50, 50, 50))
    now = snapshot(2.0, age_at_eviction_seconds=ages(51, 55, 56))
    assert figures(now).tiers[0].age_s == 10.0
    assert figures(now, before).tiers[0].age_s == 100.0
    assert figures(now, before).tiers[0].gap_s is None


def test_amounts_read_as_people_write_them() -> None:
    assert [duration(each) for each in (0.2, 59.9, 61, 7300, 90_000, 63_072_000)] == [
        "less than a second",
        "59 s",
        "1 min 1 s",
        "2 h 1 min",
        "1 d 1 h",
        "2.0 years",
    ]
    assert (rate(1 << 30), share(1, 3), share(1, 0)) == ("1 GiB/s", "33 %", "-")
    assert (frequency(30, 10), frequency(1, 10), frequency(0, 10)) == ("3.0/s", "6.0/min", "0.0/s")
