"""Counters, gauges and histograms: what they count, and that they stay bounded."""

import pytest

from forebay.metrics import labels
from forebay.metrics.catalog import PoolMetrics, label_values
from forebay.metrics.kinds import OTHER, SERIES_MAX
from forebay.metrics.reading import count, counters, series_of, tier_of
from forebay.metrics.registry import SECONDS, Registry
from forebay.metrics.requests import RequestSample
from forebay.tiers.contract import DropReason, EvictionCause, MissReason


def test_t65_a_family_has_so_many_series_and_no_more() -> None:
    registry = Registry()
    counter = registry.counter("c", "Counted.", ("who",))
    gauge = registry.gauge("g", "Is.", ("who",))
    histogram = registry.histogram("h", "Seen.", SECONDS, ("who",))
    for number in range(SERIES_MAX + 50):
        counter.add(2, (f"n{number}",))
        gauge.set(1, (f"n{number}",))
        histogram.observe(0.1, (f"n{number}",))
    found = {"metrics": registry.snapshot()}
    sizes = {name: len(family["values"]) for name, family in found["metrics"].items()}
    assert sizes == {"c": SERIES_MAX + 1, "g": SERIES_MAX, "h": SERIES_MAX + 1}
    assert count(found, "c") == 2 * (SERIES_MAX + 50), "nothing is lost"
    assert count(found, "c", who=OTHER) == 100
    assert count(found, "h") == SERIES_MAX + 50


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Registry().histogram("h", "Seen.", (1.0, 2.0, 5.0))
    for value, times in ((0.5, 1), (1.0, 1), (1.5, 3), (7.0, 2)):
        histogram.observe(value, (), times)
    ((_, found),) = histogram.series()
    assert found == {"buckets": [[1.0, 2], [2.0, 5], [5.0, 5]], "sum": 20.0, "count": 7}


def test_what_is_read_from_a_snapshot() -> None:
    metrics = PoolMetrics(("disk",))
    metrics.tiers.operations.add(3, ("disk", "load", "ok"))
    metrics.held.used.set(7, ("disk",))
    stats = {"metrics": metrics.snapshot(), "tiers": [{"name": "dram"}]}
    assert count(stats, "operations", tier="disk") == count(stats, "operations") == 3
    assert count(stats, "operations", tier="dram") == count(stats, "nonsense") == 0
    assert counters(stats)["operations.disk.load.ok"] == 3
    assert "used_bytes.disk" not in counters(stats), "a gauge is no counter"
    assert series_of(stats, "used_bytes") == [({"tier": "disk"}, 7)]
    assert (tier_of(stats, "dram"), tier_of(stats, "disk")) == ({"name": "dram"}, {})


def test_every_reason_has_a_series_from_the_start() -> None:
    """A rate needs a value before the first event; and the labels are the code's own enums."""
    stats = {"metrics": PoolMetrics(("disk",)).snapshot()}
    loads = {labels["outcome"] for labels, _ in series_of(stats, "operations", direction="load")}
    stores = {labels["outcome"] for labels, _ in series_of(stats, "operations", direction="store")}
    assert loads == {labels.OK, *MissReason} - {MissReason.NO_POOL}
    assert stores == {labels.OK, *DropReason}
    causes = {labels["cause"] for labels, _ in series_of(stats, "evictions", tier="disk")}
    assert causes == set(EvictionCause)


def test_every_metric_says_what_it_is_and_every_label_what_it_can_be() -> None:
    for metric in PoolMetrics().definitions():
        assert metric.doc.endswith("."), metric.name
        assert metric.name == metric.name.lower()
        for label in metric.labels:
            assert label_values(metric.name, label), (metric.name, label)


@pytest.mark.parametrize("was_preempted", [False, True])
def test_a_requests_tokens_are_counted_once(was_preempted: bool) -> None:
    metrics = PoolMetrics(("disk",))
    outcome = RequestSample(
        "loaded",
        prompt_tokens=1000,
        engine_tokens=200,
        loaded_tokens={"dram": 300, "disk": 100},
        wait_s=0.5,
        saved_s=2.5,
        was_preempted=was_preempted,
    )
    metrics.requests.record(outcome)
    stats = {"metrics": metrics.snapshot()}
    assert count(stats, "requests", outcome="loaded") == (not was_preempted), "once a request"
    assert count(stats, "request_wait_seconds") == 1
    tokens = {labels["source"]: value for labels, value in series_of(stats, "request_tokens")}
    again = {labels["source"]: value for labels, value in series_of(stats, "preempted_tokens")}
    if was_preempted:
        assert not sum(tokens.values()), "they were counted when the request came first"
        assert again == {"loaded": 400, "recomputed": 400}
    else:
        assert tokens == {"engine": 200, "computed": 400, "dram": 300, "disk": 100}
        assert not sum(again.values())
    assert count(stats, "preemptions") == int(was_preempted)
    assert count(stats, "saved_tokens") == 400
    assert series_of(stats, "saved_gpu_seconds_estimate") == [({}, 2.5)]
