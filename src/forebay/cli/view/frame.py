"""One frame of `forebay top`: lines that fit a terminal of any size; pure, without colour codes."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay.cli.view import sections
from forebay.cli.view.figures import Figures, Snapshot, TierFigures, figures
from forebay.cli.view.lines import (
    BAD,
    SOFT,
    TITLE,
    Glyphs,
    Line,
    TextPiece,
    bar,
    beside,
    cut,
    line,
    spark,
)
from forebay.cli.view.outlook import RunOut, outlook
from forebay.cli.view.sections import ORDERS, ViewSection
from forebay.cli.view.units import count, frequency, rate, size

POINTS_MAX: Final = 300  # intervals in a sparkline
INTERVALS_MAX: Final = 30  # over which misses and run-outs are computed
_WIDE: Final = 140  # letters from which lists are shown beside each other
_BAR_MAX: Final = 40
_KEYS: Final = "q quit  p pause  s sort  + - interval"


@dataclass(frozen=True, slots=True)
class Point:
    """One interval, for the sparklines."""

    hit_rate: float | None
    load_bytes_s: float
    store_bytes_s: float
    lookups_s: float


@dataclass(slots=True)
class View:
    """What `top` has seen, and how it shows it."""

    interval_s: float
    snapshots: deque[Snapshot] = field(default_factory=lambda: deque(maxlen=INTERVALS_MAX + 1))
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    order: str = "size"
    is_paused: bool = False
    note: str = ""  # why there is no newer snapshot

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        before = self.snapshots[-1] if self.snapshots else None
        if before is not None and before["pid"] != snapshot["pid"]:
            self.snapshots.clear()  # another pool: the old snapshots do not apply
            before = None
        self.snapshots.append(snapshot)
        if before is not None:
            now = figures(snapshot, before)
            self.points.append(
                Point(now.hit_rate, now.load_bytes_s, now.store_bytes_s, now.lookups / now.seconds)
            )
        self.note = ""

    def next_order(self) -> None:
        """Sort namespaces by the next order."""
        names = list(ORDERS)
        self.order = names[(names.index(self.order) + 1) % len(names)]

    def latest(self) -> Figures:
        """The figures of the last interval; before there is one, since the pool started."""
        return figures(self.snapshots[-1], self.snapshots[-2] if len(self.snapshots) > 1 else None)

    def recent(self) -> Figures:
        """The figures of the last intervals, in which rare events are seen."""
        return figures(self.snapshots[-1], self._oldest())

    def runs_out(self) -> list[RunOut]:
        """What runs out, at the rates of the last intervals."""
        return outlook(self.snapshots[-1], self._oldest())

    def _oldest(self) -> Snapshot | None:
        return self.snapshots[0] if len(self.snapshots) > 1 else None


def frame(view: View, width: int, height: int | None, glyphs: Glyphs) -> list[Line]:
    """The lines for a terminal; `height` None: no limit."""
    if not view.snapshots:
        return [cut(line(view.note or "waiting for the pool"), width, glyphs)]
    now = view.latest()
    top = [*_head(view), (), *_tiers(now, width, glyphs), (), *_sparks(view, now, width, glyphs)]
    left = None if height is None else max(0, height - len(top) - 2)
    lists = _lists(view, now, width, left, glyphs)
    lines = [cut(row, width, glyphs) for row in [*top, (), *lists]]
    if height is None:
        return lines
    lines = lines[: max(0, height - 1)]
    lines += [()] * (height - 1 - len(lines))
    return [*lines, cut(line(TextPiece(_KEYS, SOFT)), width, glyphs)][:height]


def _head(view: View) -> list[Line]:
    state = [TextPiece("  paused", BAD)] if view.is_paused else []
    every = TextPiece(f"  every {view.interval_s:g} s", SOFT)
    note = [line(TextPiece.of(view.note, BAD))] if view.note else []
    return [(*sections.pool_line(view.snapshots[-1]), every, *state), *note]


def _tiers(now: Figures, width: int, glyphs: Glyphs) -> list[Line]:
    """One bar per tier; on a narrow terminal the text after it is cut."""
    names = max([4, *(len(tier.name) for tier in now.tiers)])
    bar_width = max(10, min(_BAR_MAX, width - names - 72))
    rows: list[Line] = []
    for tier in now.tiers:
        used = f"{size(tier.used_bytes)} of {size(tier.cap_bytes)}"
        moved = f"out {rate(tier.load_bytes_s)}  in {rate(tier.store_bytes_s)}"
        drives = [each for each in tier.volumes if not each.is_on]
        off = (
            [TextPiece(f"  {len(drives)} of {len(tier.volumes)} directories off", BAD)]
            if drives
            else []
        )
        rows.append(
            line(
                TextPiece(f"{tier.name:<{names}} ", TITLE),
                *bar(tier.share, bar_width, glyphs),
                f" {tier.share:>4.0%}  {used:<22}  ",
                TextPiece(f"{moved:<30}  {count(tier.chunks)} chunks", SOFT),
                *off,
                *_spent(tier),
            )
        )
    return rows


def _spent(tier: TierFigures) -> list[TextPiece]:
    """The cost of a store, in another style if its request budget of today is used up."""
    if not tier.stores:
        return []
    dollars = sum(each.dollars_a_day for each in tier.stores)
    is_over = any(0 < each.budget <= each.today for each in tier.stores)
    return [TextPiece(f"  ${dollars:,.2f} a day", BAD if is_over else SOFT)]


def _sparks(view: View, now: Figures, width: int, glyphs: Glyphs) -> list[Line]:
    points = view.points
    hits = "-" if now.hit_rate is None else f"{now.hit_rate:.0%}"
    rows: list[tuple[str, str, list[float | None], float | None]] = [
        ("hit rate", hits, [each.hit_rate for each in points], 1.0),
        ("loads", rate(now.load_bytes_s), [each.load_bytes_s for each in points], None),
        ("stores", rate(now.store_bytes_s), [each.store_bytes_s for each in points], None),
        ("lookups", frequency(now.lookups, now.seconds), [each.lookups_s for each in points], None),
    ]
    letters = max(0, min(POINTS_MAX, width - 23))
    return [
        line(
            TextPiece(f"{name:<8} ", TITLE), f"{value:>12}  ", spark(values, letters, glyphs, most)
        )
        for name, value, values, most in rows
    ]


def _lists(view: View, now: Figures, width: int, height: int | None, glyphs: Glyphs) -> list[Line]:
    """The lists in the room that is left, in two columns if the terminal is wide enough."""
    recent = view.recent()
    if width < _WIDE:
        shown = [
            sections.runs_out(view.runs_out()),
            sections.misses(recent),
            sections.engines(now, width, glyphs),
            sections.namespaces(now, view.order, width, glyphs),
        ]
        return _stacked(shown, height)
    left_width = max(40, 2 * width // 5)
    right_width = width - left_width
    left = _stacked([sections.runs_out(view.runs_out()), sections.misses(recent)], height)
    left = [cut(row, left_width - 2, glyphs) for row in left]
    right = _stacked(
        [
            sections.engines(now, right_width, glyphs),
            sections.namespaces(now, view.order, right_width, glyphs),
        ],
        height,
    )
    return beside(left, right, left_width)


def _stacked(shown: Sequence[ViewSection], height: int | None) -> list[Line]:
    """Sections below each other, which share the rows evenly."""
    wanted = [len(each.rows) for each in shown]
    gaps = len(shown) - 1  # blank lines between them, where there is room for those too
    rooms = _rooms(wanted, height, len(shown) + gaps)
    if rooms != wanted:
        gaps, rooms = 0, _rooms(wanted, height, len(shown))
    lines: list[Line] = []
    for section, room in zip(shown, rooms, strict=True):
        if not room:
            continue
        lines += [()] if lines and gaps else []
        lines += [line(TextPiece(section.title, TITLE)), *section.rows[:room]]
    return lines


def _rooms(wanted: Sequence[int], height: int | None, headings: int) -> list[int]:
    """How many rows each list gets: short lists are complete, the others get equal shares."""
    if height is None:
        return list(wanted)
    rooms, left = [0] * len(wanted), height - headings
    while left > 0 and (hungry := [at for at, want in enumerate(wanted) if rooms[at] < want]):
        for at in hungry[:left]:
            rooms[at] += 1
        left -= min(left, len(hungry))
    return rooms
