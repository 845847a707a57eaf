"""The dashboard: the page that a pool's HTTP port serves at `/`, and the headers it goes out with.

Promised: only files that are named in `TYPES` are served, and none refers to another host. They are
data of this package: plain HTML, CSS and JavaScript, without a build step. The page gets its data
from /stats.json and /requests.json of the same port.
"""

from pathlib import Path
from typing import Final, NamedTuple

INDEX: Final = "index.html"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_STYLE: Final = "text/css; charset=utf-8"
TYPES: Final = {
    INDEX: "text/html; charset=utf-8",
    "app.js": _SCRIPT,
    "chart.js": _SCRIPT,
    "dom.js": _SCRIPT,
    "format.js": _SCRIPT,
    "icon.svg": "image/svg+xml",
    "live.js": _SCRIPT,
    "panels.js": _SCRIPT,
    "series.js": _SCRIPT,
    "snapshot.js": _SCRIPT,
    "style.css": _STYLE,
    "tables.js": _SCRIPT,
    "uPlot.LICENSE.txt": "text/plain; charset=utf-8",
    "uPlot.iife.min.js": _SCRIPT,
    "uPlot.min.css": _STYLE,
}
PATHS: Final = ("/", *(f"/{name}" for name in TYPES))
# The browser may load and run only what this server sends, and send nothing to any other.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}


class PageFile(NamedTuple):
    """One file of the page."""

    content_type: str
    body: bytes


def read(path: str) -> PageFile:
    """The file at one of `PATHS`."""
    name = path.removeprefix("/") or INDEX
    return PageFile(TYPES[name], (Path(__file__).parent / name).read_bytes())
