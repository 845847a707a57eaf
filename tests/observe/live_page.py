"""A page in a real Chromium that stays open: asked over its DevTools protocol, on a websocket.

Every request, every line on the console and every exception of the page is kept. A question that
the page asks again and again may fail where the machine is busy, and the page says so itself:
`POLLED` are left out of what failed. Nothing sleeps and hopes: `until` asks again until the page
says so, and gives up after two minutes.
"""

import asyncio
import base64
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
from tests.bench.report import browser
from tests.pool_process import HANG_S, wait_until

POLLED = ("/stats.json", "/requests.json", "/dashboard/stats.json")
_START_S = 2 * HANG_S
_MESSAGE_BYTES_MAX = 64 << 20  # a screenshot of a wall


class LivePage:
    """One tab and what it said and asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, runner: asyncio.Runner) -> None:
        self.said: list[str] = []  # on the console, warnings and exceptions among it
        self.asked: list[str] = []  # URLs
        self.failed: list[str] = []  # URLs without an answer, and why
        self._urls: dict[str, str] = {}  # by the number of a request
        self._socket = socket
        self._runner = runner
        self._number = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One method of the protocol; events that come before its answer are kept."""
        return self._runner.run(asyncio.wait_for(self._call(method, parameters), _START_S))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = json.loads(await self._socket.receive_str())
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])
            self._keep(message.get("method", ""), message.get("params", {}))

    def _keep(self, event: str, told: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
            self._urls[told["requestId"]] = told["request"]["url"]
        elif event == "Network.loadingFailed":
            url = self._urls.get(told["requestId"], "")
            if not _is_polled(url):
                self.failed.append(f"{url}: {told['errorText']}")
        elif event == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(each.get("value")) for each in told["args"]))
        elif event == "Runtime.exceptionThrown":
            self.said.append(json.dumps(told["exceptionDetails"]))
        elif event == "Log.entryAdded":
            entry = told["entry"]
            if not (entry["source"] == "network" and _is_polled(entry.get("url", ""))):
                self.said.append(f"{entry['level']}: {entry['text']}")

    def open(self, url: str) -> None:
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        assert "errorText" not in self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true on the page."""
        deadline = time.monotonic() + _START_S
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, (condition, self.said, self.failed)
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str, code: int) -> None:
        """A key, as a keyboard sends it."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    def prefer(self, scheme: str) -> None:
        """Light or dark, as the system of a reader has it."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def photograph(self, target: Path) -> Path:
        """What the window shows now."""
        answer = self.call("Page.captureScreenshot", format="png")
        target.write_bytes(base64.b64decode(answer["data"]))
        return target


def _is_polled(url: str) -> bool:
    return urlsplit(url).path in POLLED


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


async def _connect(session: aiohttp.ClientSession, port: int) -> aiohttp.ClientWebSocketResponse:
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        [address] = [
            each["webSocketDebuggerUrl"] for each in await answer.json() if each["type"] == "page"
        ]
    return await session.ws_connect(address, max_msg_size=_MESSAGE_BYTES_MAX)


class _Process:
    """A Chromium with its DevTools at a port that it chose."""

    def __init__(self, home: str) -> None:
        words = ("--remote-debugging-port=0", "--window-size=1280,900", "about:blank")
        self._said = Path(home) / "stderr"
        with self._said.open("wb") as file:
            self._process = subprocess.Popen(
                browser.command(home, *words), stdout=file, stderr=file, stdin=subprocess.DEVNULL
            )
        self._chosen = Path(home) / "profile" / "DevToolsActivePort"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(HANG_S)

    def port(self) -> int:
        def has_chosen() -> bool:
            assert self._process.poll() is None, self._said.read_text(errors="replace")
            return self._chosen.exists() and self._chosen.read_text().count("\n") > 0

        wait_until(has_chosen, "Chromium to listen", _START_S)
        return int(self._chosen.read_text().split("\n", maxsplit=1)[0])


@contextmanager
def opened(url: str) -> Iterator[LivePage]:
    """A page until the end of the block."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        _Process(home) as process,
        asyncio.Runner() as runner,
    ):
        session = runner.run(_session())
        try:
            page = LivePage(runner.run(_connect(session, process.port())), runner)
            page.open(url)
            yield page
        finally:
            runner.run(session.close())
