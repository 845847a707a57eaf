"""The three kinds of metrics: counters, gauges and histograms, each a family of labelled series.

Promised: adding and observing cost one dictionary access, take no lock and never fail; a family has
at most `SERIES_MAX` series, and what would need more counts under the label `OTHER`. Assumed: one
thread owns a family, changes it and takes its snapshots.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

SERIES_MAX: Final = 1024  # of one family
OTHER: Final = "other"  # the labels of all further ones
Labels = tuple[str, ...]


class MetricKind(StrEnum):
    """How to read a metric."""

    COUNTER = "counter"  # only grows, from 0 when the pool starts
    GAUGE = "gauge"  # a current value
    HISTOGRAM = "histogram"  # how many values were observed up to each bound


class Unit(StrEnum):
    """The unit of a metric."""

    NONE = ""
    BYTES = "bytes"
    SECONDS = "seconds"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric as the catalogue and the docs have it."""

    name: str  # without the prefix and without _total
    kind: MetricKind
    doc: str  # one sentence
    labels: tuple[str, ...] = ()
    unit: Unit = Unit.NONE
    bounds: tuple[float, ...] = ()  # of a histogram's buckets: the largest value in each


class Family(ABC):
    """All series of one metric."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    @abstractmethod
    def series(self) -> Iterable[tuple[Labels, Any]]:
        """Every series with its value, as plain numbers and lists that the caller may keep."""

    def snapshot(self) -> dict[str, Any]:
        """The family as `forebay stats --json` shows it."""
        names = self.definition.labels
        values = [[dict(zip(names, labels, strict=True)), now] for labels, now in self.series()]
        return {
            "kind": self.definition.kind.value,
            "unit": self.definition.unit.value,
            "values": values,
        }


class Counter(Family):
    """A value that only grows."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._values: dict[Labels, float] = {} if definition.labels else {(): 0}

    def preset(self, series: Iterable[Labels]) -> None:
        """Create these series at 0: a rate needs a value from before the first count."""
        for labels in series:
            self._values.setdefault(tuple(map(str, labels)), 0)

    def add(self, by: float = 1, labels: Labels = ()) -> None:
        """Increase the value of a series."""
        try:
            self._values[labels] += by
        except KeyError:
            self._values[self._new(labels)] = self._values.get(self._new(labels), 0) + by

    def set_total(self, total: float, labels: Labels = ()) -> None:
        """Set the value of a series that is counted elsewhere, from 0 as well."""
        self._values[labels if labels in self._values else self._new(labels)] = total

    def get(self, labels: Labels = ()) -> float:
        """The value of a series."""
        return self._values.get(labels, 0)

    def series(self) -> Iterable[tuple[Labels, float]]:
        """See Family."""
        return list(self._values.items())

    def _new(self, labels: Labels) -> Labels:
        is_full = len(self._values) >= SERIES_MAX
        return (OTHER,) * len(labels) if is_full else tuple(map(str, labels))


class Gauge(Family):
    """A value that can rise and fall."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._values: dict[Labels, float] = {}

    def set(self, value: float, labels: Labels = ()) -> None:
        """Set the value of a series."""
        if len(self._values) < SERIES_MAX or labels in self._values:
            self._values[labels] = value

    def replace(self, values: Mapping[Labels, float]) -> None:
        """Replace all series."""
        self._values = dict(list(values.items())[:SERIES_MAX])

    def get(self, labels: Labels = ()) -> float:
        """The value of a series; 0 if there is none."""
        return self._values.get(labels, 0)

    def series(self) -> Iterable[tuple[Labels, float]]:
        """See Family."""
        return list(self._values.items())


class _Buckets:
    """One series of a histogram."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets  # the last one counts values above every bound
        self.sum = 0.0


class Histogram(Family):
    """Counts values by size."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._bounds = definition.bounds
        self._series: dict[Labels, _Buckets] = {}
        if not definition.labels:
            self.preset([()])

    def preset(self, series: Iterable[Labels]) -> None:
        """Create these series, empty."""
        for labels in series:
            self._series.setdefault(tuple(map(str, labels)), _Buckets(len(self._bounds) + 1))

    def observe(self, value: float, labels: Labels = (), count: int = 1) -> None:
        """Count a value, `count` times."""
        buckets = self._series.get(labels)
        if buckets is None:
            buckets = self._new(labels)
        buckets.counts[bisect_left(self._bounds, value)] += count
        buckets.sum += value * count

    def series(self) -> Iterable[tuple[Labels, dict[str, Any]]]:
        """See Family. Counts are cumulative; `count` includes values above every bound."""
        found = []
        for labels, buckets in self._series.items():
            up_to = list(accumulate(buckets.counts))
            rows = [list(row) for row in zip(self._bounds, up_to, strict=False)]
            found.append((labels, {"buckets": rows, "sum": buckets.sum, "count": up_to[-1]}))
        return found

    def _new(self, labels: Labels) -> _Buckets:
        is_full = len(self._series) >= SERIES_MAX
        labels = (OTHER,) * len(labels) if is_full else tuple(map(str, labels))
        return self._series.setdefault(labels, _Buckets(len(self._bounds) + 1))
