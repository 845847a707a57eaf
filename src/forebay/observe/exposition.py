"""A snapshot of a pool as text for Prometheus, written by `prometheus_client`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.kinds import Definition, MetricKind
from forebay.metrics.registry import PREFIX

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_DEFINITIONS: Final = {each.name: each for each in PoolMetrics().definitions()}


def exposition(stats: Mapping[str, Any]) -> bytes:
    """Every metric of a snapshot, with its help text; metrics that nobody defined are left out."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(stats))
    return generate_latest(registry)


class _Snapshot(Collector):
    """What `prometheus_client` asks for the metrics."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._metrics = stats["metrics"]

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for name, family in self._metrics.items():
            definition = _DEFINITIONS.get(name)
            if definition is not None and family["values"]:
                yield _family(definition, family["values"])


def _family(definition: Definition, values: list[Any]) -> Metric:
    name, doc = PREFIX + definition.name, definition.doc
    labels = list(definition.labels)
    if definition.kind is MetricKind.COUNTER:
        counter = CounterMetricFamily(name, doc, labels=labels)
        for series, value in values:
            counter.add_metric(_ordered(labels, series), value)
        return counter
    if definition.kind is MetricKind.GAUGE:
        gauge = GaugeMetricFamily(name, doc, labels=labels)
        for series, value in values:
            gauge.add_metric(_ordered(labels, series), value)
        return gauge
    histogram = HistogramMetricFamily(name, doc, labels=labels)
    for series, value in values:
        buckets = [(str(float(bound)), count) for bound, count in value["buckets"]]
        buckets.append(("+Inf", value["count"]))
        histogram.add_metric(_ordered(labels, series), buckets, value["sum"])
    return histogram


def _ordered(labels: list[str], series: Mapping[str, str]) -> list[str]:
    return [series[label] for label in labels]
