"""A registry: the families of one process, each defined once, and their snapshot."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from forebay.metrics.kinds import Counter, Definition, Family, Gauge, Histogram, MetricKind, Unit

PREFIX: Final = "forebay_"  # of every name in Prometheus
TOTAL: Final = "_total"  # at the end of every counter's name in Prometheus
# Bounds of buckets: the same for all histograms of a unit, so that they can be compared.
SECONDS: Final = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
SIZES: Final = tuple(float(1 << power) for power in range(12, 30, 2))  # 4 KiB to 256 MiB
AGES: Final = (
    *(1.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0),
    *(21_600.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0),
)
_Made = TypeVar("_Made", bound=Family)


class Registry:
    """Families by name, in the order of their definition."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def counter(
        self, name: str, doc: str, labels: Sequence[str] = (), unit: Unit = Unit.NONE
    ) -> Counter:
        """Define a counter."""
        return self._add(Counter(Definition(name, MetricKind.COUNTER, doc, tuple(labels), unit)))

    def gauge(
        self, name: str, doc: str, labels: Sequence[str] = (), unit: Unit = Unit.NONE
    ) -> Gauge:
        """Define a gauge."""
        return self._add(Gauge(Definition(name, MetricKind.GAUGE, doc, tuple(labels), unit)))

    def histogram(
        self, name: str, doc: str, bounds: tuple[float, ...], labels: Sequence[str] = ()
    ) -> Histogram:
        """Define a histogram, in bytes if the bounds are `SIZES`, else in seconds."""
        unit = Unit.BYTES if bounds is SIZES else Unit.SECONDS
        made = Definition(name, MetricKind.HISTOGRAM, doc, tuple(labels), unit, bounds)
        return self._add(Histogram(made))

    def definitions(self) -> list[Definition]:
        """All metrics, in the order of their definition."""
        return [family.definition for family in self._families.values()]

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Every family by name, as plain values that do not change afterwards."""
        return {name: family.snapshot() for name, family in self._families.items()}

    def _add(self, family: _Made) -> _Made:
        name = family.definition.name
        assert name not in self._families, f"{name} is defined twice"
        self._families[name] = family
        return family


def exposed_name(definition: Definition) -> str:
    """A metric's name in Prometheus."""
    return PREFIX + definition.name + (TOTAL if definition.kind is MetricKind.COUNTER else "")
