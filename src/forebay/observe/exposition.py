"""A snapshot of a pool as text for Prometheus, in the words of `prometheus_client`.

The library writes each metric once, which takes ten microseconds per line; afterwards, while a
metric has the same series, only the numbers at the ends of its lines are replaced. A test compares
the result with what the library would write.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.kinds import Definition, MetricKind
from forebay.metrics.registry import PREFIX

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_number: Final[Callable[[float], str]] = floatToGoString  # it has no types of its own
_DEFINITIONS: Final = {each.name: each for each in PoolMetrics().definitions()}


class _WrittenMetric(NamedTuple):
    """The text of a metric as it was written last, without its numbers."""

    series: list[Mapping[str, str]]  # the labels of each series
    head: str  # the lines with help and type
    starts: list[str]  # every other line without its number


class Exposition:
    """Writes snapshots. Any thread may ask; the lock guards what was written before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[str, _WrittenMetric] = {}

    def text(self, stats: Mapping[str, Any]) -> bytes:
        """The text of every metric that has series; undefined metrics are left out."""
        with self._lock:
            texts = []
            for name, family in stats["metrics"].items():
                definition = _DEFINITIONS.get(name)
                if definition is not None and family["values"]:
                    texts.append(self._text_of(definition, family["values"]))
                    time.sleep(0)  # let the pool's thread go first if it has work
            return "".join(texts).encode()

    def _text_of(self, definition: Definition, values: list[Any]) -> str:
        series = [labels for labels, _ in values]
        before = self._written.get(definition.name)
        if before is None or before.series != series:
            text = written_anew(definition, values)
            lines = text.split("\n")[:-1]  # `splitlines` would also split inside some labels
            head = "".join(f"{line}\n" for line in lines[:2])
            starts = [line.rpartition(" ")[0] for line in lines[2:]]
            self._written[definition.name] = _WrittenMetric(series, head, starts)
            return text
        numbers = _numbers(values)
        lines = [
            f"{start} {_number(number)}\n"
            for start, number in zip(before.starts, numbers, strict=True)
        ]
        return before.head + "".join(lines)


def written_anew(definition: Definition, values: list[Any]) -> str:
    """The text of a metric, written by the library."""
    return generate_latest(_One(_family(definition, values))).decode()


class _One(Collector):
    """One metric, where `prometheus_client` expects a registry of them."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _numbers(values: list[Any]) -> Iterator[float]:
    """The number at the end of each line, in the library's order."""
    for _, value in values:
        if isinstance(value, Mapping):
            yield from (count for _, count in value["buckets"])
            yield from (value["count"], value["count"], value["sum"])  # of +Inf, and of all
        else:
            yield value


def _family(definition: Definition, values: list[Any]) -> Metric:
    name, doc = PREFIX + definition.name, definition.doc
    labels = list(definition.labels)
    if definition.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, doc, labels=labels)
        for series, value in values:
            buckets = [(_number(bound), count) for bound, count in value["buckets"]]
            buckets.append(("+Inf", value["count"]))
            histogram.add_metric(_ordered(labels, series), buckets, value["sum"])
        return histogram
    is_counter = definition.kind is MetricKind.COUNTER
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    family = kind(name, doc, labels=labels)
    for series, value in values:
        family.add_metric(_ordered(labels, series), value)
    return family


def _ordered(labels: list[str], series: Mapping[str, str]) -> list[str]:
    return [series[label] for label in labels]
