"""The gateway's page for operators, below `/dashboard/`, with the pool dashboard's charts.

Promised: only files that are named in `TYPES` are served, and none refers to another host. The page
gets its data from `stats.json` beside it.
"""

from pathlib import Path
from typing import Final

from forebay.observe import dashboard
from forebay.observe.dashboard import PageFile

PLACE: Final = "/dashboard/"
STATS: Final = f"{PLACE}stats.json"
HEADERS: Final = dashboard.HEADERS
_OWN: Final = ("index.html", "gateway.js", "gateway-panels.js")
# The files of the pool's page that are not about pools.
_SHARED: Final = (
    *("chart.js", "dom.js", "format.js", "icon.svg", "live.js", "series.js", "snapshot.js"),
    *("style.css", "uPlot.LICENSE.txt", "uPlot.iife.min.js", "uPlot.min.css"),
)
TYPES: Final = {
    name: dashboard.TYPES.get(name, "text/javascript; charset=utf-8") for name in _OWN + _SHARED
}
PATHS: Final = frozenset({PLACE, *(f"{PLACE}{name}" for name in TYPES)})


def read(path: str) -> PageFile:
    """The file at one of `PATHS`."""
    name = path.removeprefix(PLACE) or "index.html"
    if name in _SHARED:
        return dashboard.read(f"/{name}")
    return PageFile(TYPES[name], (Path(__file__).parent / name).read_bytes())
