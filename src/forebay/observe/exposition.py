"""A snapshot of a pool as text for Prometheus, written by `prometheus_client`."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.kinds import Definition, MetricKind
from forebay.metrics.registry import PREFIX

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_DEFINITIONS: Final = {each.name: each for each in PoolMetrics().definitions()}


class Exposition:
    """Writes snapshots; of a metric that is as it was, what was written before is used again.

    The library takes some ten microseconds a line, and most lines stay as they are. The lock guards
    what was written; any thread may ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[str, tuple[list[Any], bytes]] = {}  # metric → its values, their text

    def text(self, stats: Mapping[str, Any]) -> bytes:
        """Every metric, with its help text; metrics that nobody defined are left out."""
        with self._lock:
            families = stats["metrics"].items()
            return b"".join(self._text_of(name, family["values"]) for name, family in families)

    def _text_of(self, name: str, values: list[Any]) -> bytes:
        definition = _DEFINITIONS.get(name)
        if definition is None or not values:
            return b""
        before = self._written.get(name)
        if before is None or before[0] != values:
            text = generate_latest(_One(_family(definition, values)))
            before = self._written[name] = values, text
            time.sleep(0)  # the pool's thread goes first where it has something to do
        return before[1]


class _One(Collector):
    """One metric, where `prometheus_client` expects a registry of them."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


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
