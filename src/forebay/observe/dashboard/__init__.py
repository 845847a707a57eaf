"""The dashboard: the page that a pool's HTTP port serves at `/`, and the headers it goes out with.

Promised: only files that are named in `TYPES` are given out, and none names another host. The files
are data of this package: plain HTML, CSS and JavaScript that a browser takes as they are. They hold
nothing of a pool, so they need no token; what the page asks for, /stats.json and /requests.json, does.
"""

from importlib import resources
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
    "panels.js": _SCRIPT,
    "snapshot.js": _SCRIPT,
    "style.css": _STYLE,
    "tables.js": _SCRIPT,
    "uPlot.LICENSE.txt": "text/plain; charset=utf-8",
    "uPlot.iife.min.js": _SCRIPT,
    "uPlot.min.css": _STYLE,
}
# A browser runs and loads what comes from this server, and sends nothing to any other.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageFile(NamedTuple):
    """One file of the page."""

    content_type: str
    body: bytes


def read(path: str) -> PageFile | None:
    """The file at a path of the HTTP port, such as `/` or `/app.js`; None where there is none."""
    name = path.removeprefix("/") or INDEX
    if name not in TYPES:
        return None
    return PageFile(TYPES[name], resources.files(__name__).joinpath(name).read_bytes())
