"""Curves as inline SVG: no script, nothing from the network; colours come from the page's style."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 520
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 16, 46
_LOG_FROM: Final = 8.0  # largest x / smallest x from which the x axis is logarithmic
_LABEL_GAP: Final = 26.0  # between labels on the x axis
_TICKS: Final = 5
_CAP: Final = 4.0  # half the width of an error bar's end
_TITLE_X: Final = 12  # of the y axis
_ROUNDED_BELOW: Final = 100.0  # labels of the x axis below this have three digits
COLOURS: Final = ("on", "off", "other", "fourth", "fifth", "sixth")  # CSS classes of the page


@dataclass(frozen=True, slots=True)
class ChartLine:
    name: str
    colour: str  # one of COLOURS, followed by `dashed` if there are more lines than colours
    points: Sequence[tuple[float, float]]  # ascending in x
    mark: float | None = None  # the x of the operating point
    spans: Sequence[tuple[float, float, float]] = ()  # x, least and greatest y of several runs


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    unit: str
    across: str  # what x is
    lines: Sequence[ChartLine]
    bound: float | None = None  # the SLA
    bound_name: str = ""
    is_even: bool = False  # x is an ordinal number: equal steps, never logarithmic
    is_log_y: bool = False  # the y axis is logarithmic; all values are above 0


@dataclass(frozen=True, slots=True)
class _Axes:
    low: float
    high: float
    top: float
    is_log: bool
    bottom: float = 0.0  # above 0: the y axis is logarithmic

    def x(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = value / self.top
        if self.bottom:
            share = math.log(value / self.bottom) / math.log(self.top / self.bottom)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def levels(self) -> list[float]:
        """The values of y at which lines cross the chart."""
        if not self.bottom:
            return [self.top * tick / _TICKS for tick in range(_TICKS + 1)]
        decades = round(math.log10(self.top / self.bottom))
        return [self.bottom * 10.0**decade for decade in range(decades + 1)]


def svg(chart: Chart) -> str:
    """The chart as SVG; empty if it has no points."""
    places = sorted({x for line in chart.lines for x, _ in line.points})
    if not places:
        return ""
    values = [y for line in chart.lines for _, y in line.points]
    values += [y for line in chart.lines for span in line.spans for y in span[1:]]
    bounds = [] if chart.bound is None else [chart.bound]
    top, bottom = _ceiling(max([*values, *bounds])), 0.0
    if chart.is_log_y:
        bottom = 10.0 ** math.floor(math.log10(min([*values, *bounds])))
        top = max(10 * bottom, 10.0 ** math.ceil(math.log10(max([*values, *bounds]))))
    is_log = not chart.is_even and places[-1] / places[0] >= _LOG_FROM
    scale = _Axes(places[0], places[-1], top, is_log, bottom)
    parts = _grid(chart, scale, places)
    for line in chart.lines:
        parts += _line(line, chart.unit, chart.across, scale)
    body = "\n".join(parts)
    name = html.escape(chart.title)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">\n{body}\n</svg>'


def _ceiling(value: float) -> float:
    """A round number, not below the value, that five lines divide well."""
    if value <= 0:
        return 1.0
    step = value / _TICKS
    size = 10.0 ** math.floor(math.log10(step))
    factor = next((each for each in (1.0, 2.0, 2.5, 5.0) if each * size >= step), 10.0)
    return factor * size * _TICKS


def _grid(chart: Chart, scale: _Axes, places: Sequence[float]) -> list[str]:
    parts = []
    for value in scale.levels():
        parts += [
            _across("grid", scale.y(value)),
            _text(LEFT - 8, scale.y(value) + 4, f"{value:g}"),
        ]
    last = -math.inf
    for place in places:
        if scale.x(place) - last >= _LABEL_GAP:
            last = scale.x(place)
            label = f"{place:.3g}" if place < _ROUNDED_BELOW else f"{place:g}"
            parts.append(_text(last, HEIGHT - BOTTOM + 18, label, "middle"))
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 6, chart.across, "middle", "axis"))
    parts.append(_upright(chart.unit))
    if chart.bound is not None:
        y = scale.y(chart.bound)
        parts += [_across("sla", y), _text(LEFT + 6, y - 5, chart.bound_name, "start", "sla")]
    return parts


def _across(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "end", kind: str = "") -> str:
    said = f'class="{kind}" ' if kind else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {said}{place}>{html.escape(text)}</text>"


def _upright(text: str) -> str:
    """The title of the y axis, written upwards."""
    y = TOP + (HEIGHT - TOP - BOTTOM) / 2
    place = f'x="{_TITLE_X}" y="{y:.1f}" text-anchor="middle"'
    turned = f'transform="rotate(-90 {_TITLE_X} {y:.1f})"'
    return f'<text class="axis" {place} {turned}>{html.escape(text)}</text>'


def _line(line: ChartLine, unit: str, across: str, scale: _Axes) -> list[str]:
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    parts = [f'<polyline class="curve {line.colour}" points="{path}"/>']
    for x, low, high in line.spans:
        parts += _span(line.colour, scale.x(x), (scale.y(low), scale.y(high)))
    for x, y in line.points:
        place = f'cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}"'
        said = f"{line.name}: {number(y)} {unit} at {x:g} {across}"
        if x == line.mark:
            said += ", the operating point"
            parts.append(f'<circle class="ring {line.colour}" {place} r="8"/>')
        title = f"<title>{html.escape(said)}</title>"
        parts.append(f'<circle class="dot {line.colour}" {place} r="4">{title}</circle>')
    return parts


def _span(colour: str, x: float, ends: tuple[float, float]) -> list[str]:
    """An error bar: an upright line with a cap at each end."""
    low, high = ends
    kind = f'class="span {colour}"'
    parts = [f'<line {kind} x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>']
    for y in ends:
        cap = f'x1="{x - _CAP:.1f}" x2="{x + _CAP:.1f}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f"<line {kind} {cap}/>")
    return parts


def number(value: float | None) -> str:
    """A number with three or four digits; a dash for None."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
