"""Hit rate against capacity as one HTML file: inline SVG, no script, nothing from the network."""

import html
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 860
HEIGHT: Final = 460
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 30, 50
COLOURS: Final = ("#c1121f", "#1d3557", "#457b9d", "#6a994e", "#bc6c25", "#8d99ae")


class Curve(NamedTuple):
    """One policy's line."""

    name: str
    rates: Sequence[float]  # 0 to 1, one a capacity


def page(capacities: Sequence[int], curves: Sequence[Curve]) -> str:
    """The whole file; capacities are tokens, in ascending order."""
    parts = [*_grid(capacities)]
    for number, curve in enumerate(curves):
        parts += _line(capacities, curve, COLOURS[number % len(COLOURS)])
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<title>forebay sim: hit rate against capacity</title>"
        "<style>body{font:14px system-ui,sans-serif;margin:2em;color:#222}"
        "text{font:12px system-ui,sans-serif}</style></head><body>"
        "<h1>Hit rate against capacity</h1>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">\n{body}\n</svg>'
        "<p>Share of all prompt tokens found in DRAM or on disk, by tokens of both.</p>"
        "</body></html>\n"
    )


def _x(capacities: Sequence[int], capacity: int) -> float:
    low, high = math.log(max(1, capacities[0])), math.log(max(2, capacities[-1]))
    share = (math.log(max(1, capacity)) - low) / (high - low) if high > low else 0.0
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(rate: float) -> float:
    return HEIGHT - BOTTOM - rate * (HEIGHT - TOP - BOTTOM)


def _grid(capacities: Sequence[int]) -> list[str]:
    parts = []
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth * 10}%</text>'
        )
    for capacity in capacities:
        x = _x(capacities, capacity)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
            f"{capacity / 1e6:.3g}M</text>"
        )
    return parts


def _line(capacities: Sequence[int], curve: Curve, colour: str) -> list[str]:
    points = [
        (_x(capacities, capacity), _y(rate))
        for capacity, rate in zip(capacities, curve.rates, strict=True)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    label = f"{html.escape(curve.name)} {100 * curve.rates[-1]:.0f}%"
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{label}</text>',
    ]
