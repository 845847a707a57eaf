"""A real Chromium without a screen or a network: what it draws, says and prints of a page."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FOUND = next((found for name in NAMES if (found := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(
    FOUND is None, reason="Chromium is not installed; have it with: apt-get install chromium"
)
SCHEMES = {"light": "1", "dark": "0"}


@dataclass(frozen=True)
class Seen:
    """What became of a page."""

    dom: str
    said: list[str]  # on the console
    asked: list[str]  # of the network


def look(page: Path) -> Seen:
    """Open a page and read what it became."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "net.json"
        ended = _run(home, page, "--dump-dom", "--enable-logging=stderr", f"--log-net-log={log}")
        urls = _asked(log)
    said = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    return Seen(ended.stdout, said, urls)


def photograph(page: Path, target: Path, scheme: str, height: int = 1500) -> None:
    """A picture of the page as somebody with light or dark windows has it."""
    with tempfile.TemporaryDirectory() as home:
        _run(
            home,
            page,
            f"--screenshot={target}",
            f"--window-size=1200,{height}",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        )


def printed(page: Path, target: Path) -> None:
    """The page on paper."""
    with tempfile.TemporaryDirectory() as home:
        _run(home, page, f"--print-to-pdf={target}", "--no-pdf-header-footer")


def _asked(log: Path) -> list[str]:
    """URLs that the page asked for; what a browser wants for itself has no origin."""
    text = log.read_text(errors="replace").rstrip()
    known = json.loads(text if text.endswith("}") else text.rstrip(",") + "]}")
    begun = known["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [event.get("params", {}) for event in known["events"] if event["type"] == begun]
    return [each["url"] for each in asked if each.get("initiator") not in {None, "not an origin"}]


def command(home: str, *words: str) -> list[str]:
    """Chromium with a profile of its own, that reaches nothing beyond this machine."""
    assert FOUND is not None
    return [
        FOUND,
        "--headless=new",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--proxy-server=127.0.0.1:9",  # nothing listens there: whatever is asked for fails
        f"--user-data-dir={home}/profile",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        *words,
    ]


def _run(home: str, page: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    words = (*words, page.resolve().as_uri())
    return subprocess.run(
        command(home, *words), capture_output=True, text=True, timeout=110, check=True
    )


def colours(picture: Path) -> Counter[tuple[int, int, int]]:
    """How many pixels of a PNG have which colour."""
    data, at, packed = picture.read_bytes(), 8, b""
    width = channels = 0
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, form = struct.unpack(">IIBB", body[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[form]
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    return _counted(zlib.decompress(packed), width * channels, channels)


def _counted(raw: bytes, row_bytes: int, channels: int) -> Counter[tuple[int, int, int]]:
    found: Counter[tuple[int, int, int]] = Counter()
    above = bytes(row_bytes)
    for at in range(0, len(raw), row_bytes + 1):
        row = _unfiltered(raw[at], bytearray(raw[at + 1 : at + 1 + row_bytes]), above, channels)
        found.update(zip(row[0::channels], row[1::channels], row[2::channels], strict=True))
        above = row
    return found


def _unfiltered(kind: int, row: bytearray, above: bytes, channels: int) -> bytes:
    """A row of pixels as PNG's five filters have left it."""
    if kind == 2:
        return bytes((one + up) & 255 for one, up in zip(row, above, strict=True))
    for at in range(len(row)) if kind else ():
        left = row[at - channels] if at >= channels else 0
        corner = above[at - channels] if at >= channels else 0
        row[at] = (row[at] + _guess(kind, left, above[at], corner)) & 255
    return bytes(row)


def _guess(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 1:
        return left
    if kind == 3:
        return (left + up) // 2
    near = left + up - corner
    return min((left, up, corner), key=lambda value: abs(near - value))
