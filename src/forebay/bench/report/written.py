"""The report as files: the page for people, the result for programs, side by side."""

from pathlib import Path

from forebay.bench.report.page import page
from forebay.bench.result import files
from forebay.bench.result.format import Ab


def write(directory: Path, ab: Ab) -> Path:
    """Write both; the page's path, or a StartupError that says why not."""
    files.write(directory / "ab.json", files.as_text(ab))
    path = directory / "report.html"
    files.write(path, page(ab))
    return path
