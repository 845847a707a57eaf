"""Reads a snapshot, as `forebay stats --json` and the HTTP port's /stats.json give it."""

from collections.abc import Mapping
from typing import Any


def total(stats: Mapping[str, Any], name: str, **labels: str) -> float:
    """The sum of a counter's or gauge's series that have these labels; 0 if there is none.

    For a histogram, the number of values that were observed.
    """
    values = (value for _, value in series_of(stats, name, **labels))
    return float(sum(each["count"] if isinstance(each, Mapping) else each for each in values))


def count(stats: Mapping[str, Any], name: str, **labels: str) -> int:
    """As `total`, for metrics that count in whole numbers."""
    return int(total(stats, name, **labels))


def series_of(
    stats: Mapping[str, Any], name: str, **labels: str
) -> list[tuple[dict[str, str], Any]]:
    """The series of a metric that have these labels, with their values."""
    family = stats["metrics"].get(name, {"values": []})
    wanted = labels.items()
    return [(series, value) for series, value in family["values"] if wanted <= series.items()]


def counters(stats: Mapping[str, Any]) -> dict[str, float]:
    """All counters in one mapping, with series named like `operations.disk.load.ok`."""
    return {
        ".".join([name, *series.values()]): value
        for name, family in stats["metrics"].items()
        if family["kind"] == "counter"
        for series, value in family["values"]
    }


def tier_of(stats: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A tier's section of the statistics; empty if the pool has no such tier."""
    return next((tier for tier in stats["tiers"] if tier["name"] == name), {})
