"""The gateway's page: its files, who may see it, and in a real browser before real requests."""

import base64
import hashlib
import json
import re
import tomllib
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from tests.bench.report.browser import needs_chromium
from tests.gateway_harness import (
    GatewayProcess,
    SmallEngine,
    engine_table,
    gateway,
    says,
    streams,
)
from tests.observe import live_page
from tests.observe.live_page import LivePage
from tests.observe.test_dashboard import AXE, LOOKS
from tests.observe.test_dashboard_files import Tags
from tests.pool_process import HANG_S, wait_until

from forebay.gateway import page as gateway_page
from forebay.gateway.seen import GatewayMetrics

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(gateway_page.__file__).parent
LINES_MAX = 400
SCRIPTS = ("gateway.js", "gateway-panels.js")


def text_of(name: str) -> str:
    return gateway_page.read(f"/dashboard/{name}").body.decode()


def rows(page: LivePage, table: str) -> list[dict[str, str]]:
    """A table's rows by its columns' names."""
    found: list[dict[str, str]] = page.evaluate(
        f"(() => {{ const table = document.querySelector('#{table}');"
        " const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);"
        " return [...table.tBodies[0].rows].map((row) => Object.fromEntries("
        "[...row.cells].map((cell, at) => [names[at], cell.textContent]))); })()"
    )
    return found


def started(page: LivePage) -> str:
    return {each["name"]: each["started"] for each in rows(page, "gateway-engines")}["a"]


def test_the_page_is_whole_small_and_names_only_what_is_served() -> None:
    there = {path.name for path in FOLDER.iterdir() if path.suffix not in {".py", ""}}
    assert there < set(gateway_page.TYPES)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["forebay.gateway.page"]
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in there)
    tags = Tags()
    tags.feed(text_of("index.html"))
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    assert {link for link in tags.links if link[0] != "#"} <= set(gateway_page.TYPES)
    assert {link[1:] for link in tags.links if link[0] == "#"} <= set(tags.ids)
    for name in gateway_page.TYPES:
        for target in re.findall(r'from "\./([^"]+)"', text_of(name)):
            assert target in gateway_page.TYPES, (name, target)
    for name in (*SCRIPTS, "index.html"):
        text = text_of(name)
        assert text.count("\n") <= LINES_MAX
        assert not re.search(r"https?:|@import|url\(", text)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(", text)
    asked = {each for name in SCRIPTS for each in re.findall(r'byId\("([a-z-]+)"\)', text_of(name))}
    assert asked <= set(tags.ids)


def test_every_metric_that_the_page_reads_is_counted() -> None:
    text = text_of("gateway-panels.js").replace("`gateway_${kind}`", '"gateway_retried"')
    read = set(re.findall(r'"(gateway_\w+)"', text))
    swaps = ("swaps", "wake_seconds", "kept", "swap_failures")
    assert {f"gateway_{name}" for name in swaps} <= read
    assert read <= {each.name for each in GatewayMetrics().registry.definitions()}


def keys_of(*names: str) -> str:
    return "".join(
        f'[[key]]\nname = "{name}"\noperator = {json.dumps(name == "boss")}\n'
        f'token_sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n'
        for name in names
    )


def basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{token}".encode()).decode()


def test_the_page_is_for_operators_and_their_password_is_for_the_page() -> None:
    with SmallEngine(streams) as engine, gateway(engine, config=keys_of("boss", "team")) as front:
        for path in ("/dashboard/", "/dashboard/gateway.js", "/dashboard/stats.json"):
            status, headers, _ = front.fetch(path)
            assert status == 401
            assert headers["www-authenticate"].startswith("Basic ")
            assert front.fetch(path, Authorization=basic("boss"))[0] == 200
            assert front.fetch(path, Authorization="Bearer boss")[0] == 200
            assert front.fetch(path, Authorization=basic("team"))[0] == 403
            assert front.fetch(path, b"{}", Authorization=basic("boss"))[0] == 405
        for path in ("/status", "/metrics", "/v1/models"):
            status, headers, _ = front.fetch(path, Authorization=basic("boss"))
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
        body = json.dumps({"model": "small", "messages": []}).encode()
        assert front.fetch("/v1/completions", body, Authorization=basic("boss"))[0] == 401
        assert engine.asked == []
        for broken in ("Basic", "Basic !", "Basic " + "=" * 9000, "basic Ym9zcw=="):
            assert front.fetch("/dashboard/", Authorization=broken)[0] == 401


def test_nothing_but_its_files_lies_below_the_page() -> None:
    with SmallEngine(streams) as engine, gateway(engine) as front:
        status, headers, body = front.fetch("/dashboard/")
        assert (status, body.decode()) == (200, text_of("index.html"))
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        status, headers, _ = front.fetch("/dashboard")
        assert (status, headers["location"]) == (308, "/dashboard/")
        for path in (
            *("/dashboard/__init__.py", "/dashboard/../status", "/dashboard/app.js", "/dashboards"),
            *("/dashboard//etc/passwd", "/dashboard/%2e%2e/x", "/dashboard/requests.json"),
        ):
            assert front.fetch(path)[0] == 404, path
        assert front.fetch("/dashboard/", Host="evil.example")[0] == 421


@needs_chromium
@pytest.mark.slow
def test_the_page_says_what_the_gateway_counts() -> None:
    with ExitStack() as stack:
        good = stack.enter_context(SmallEngine(streams))
        bad = stack.enter_context(SmallEngine(says(503)))
        tables = engine_table("other", bad.url, model="large", gpu="H200 3")
        front = stack.enter_context(gateway(good, config=tables))
        page = stack.enter_context(live_page.opened(f"{front.url}/dashboard/"))
        for number in range(5):
            assert front.chat(str(number), stream=True)[0] == 200
        front.fetch("/v1/chat/completions", {"model": "none"})
        page.until("document.querySelector('#state').innerText === 'Live'")
        wait_until(lambda: started(page) == "5", "the page", HANG_S)
        shows_the_tables(page, front)
        page.until("document.querySelector('#chart-ttft canvas')")
        for name in ("requests", "waiting", "refused", "tokens", "queue"):
            page.until(f"document.querySelector('#chart-{name} canvas')")
        legend = page.evaluate("document.querySelector('#chart-ttft .legend').innerText")
        assert re.search(r"expected\s+[\d.,]+ (s|ms|µs)", legend), legend
        assert re.search(r"real\s+[\d.,]+ (s|ms|µs)", legend), legend
        assert page.said == []
        assert page.failed == []
        assert {url for url in page.asked if not url.startswith(f"{front.url}/dashboard/")} == set()
        follows_the_data(page)
        everybody_can_read_it(page)
        goes_on_after_the_gateway(page, front)


def shows_the_tables(page: LivePage, front: GatewayProcess) -> None:
    wait_until(lambda: front.condition("other") == "other model", "the look", HANG_S)
    page.until("/other model/.test(document.querySelector('#gateway-engines').innerText)")
    told = {each["name"]: each for each in front.status()["engines"]}
    shown = {each["name"]: each for each in rows(page, "gateway-engines")}
    assert set(shown) == {"a", "other"}
    for name, each in shown.items():
        assert each["condition"] == told[name]["condition"]
        assert each["why"] == (told[name]["why"] or "\u2013")
    assert shown["a"]["started"] == "5"
    assert shown["other"]["gpu"] == "H200 3"
    assert {each["name"] for each in rows(page, "gateway-models")} == {"small", "large"}
    assert [each["name"] for each in rows(page, "gateway-keys")] == ["anonymous"]


HOSTILE = "<img src=x onerror=alert(1)>\u202eevil"


def follows_the_data(page: LivePage) -> None:
    """A column more in the answer is a column more on the page; what it says is text."""
    more: list[dict[str, Any]] = [
        {"name": "x", "awake": True, "swaps": 12345, "of": ["a", "b"], "at": {"is_up": None}},
        {"name": HOSTILE, "later": 0.5},
    ]
    page.evaluate(
        f"import('./gateway.js').then((m) => m.showRows('gateway-models', {json.dumps(more)}))"
    )
    first, second = rows(page, "gateway-models")
    assert list(first.items()) == [
        ("name", "x"),
        ("awake", "yes"),
        ("swaps", "12,345"),
        ("of", "a, b"),
        ("at", "is up \u2013"),
        ("later", "\u2013"),
    ]
    assert second["name"] == "<img src=x onerror=alert(1)>\\u202eevil"
    assert second["later"] == "0.5"
    assert page.evaluate("document.images.length") == 0


def everybody_can_read_it(page: LivePage) -> None:
    page.click("#pause")
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    page.evaluate(f"{AXE.read_text()}; typeof axe.run")
    for scheme, width, height in LOOKS:
        page.prefer(scheme)
        page.resize(width, height)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        found = page.evaluate(
            "axe.run().then((all) => all.violations.map((each) => ({ id: each.id,"
            " impact: each.impact, where: each.nodes.map((node) => node.html) })))"
        )
        assert found == [], json.dumps(found, indent=1)
    page.click("#pause")


def goes_on_after_the_gateway(page: LivePage, front: GatewayProcess) -> None:
    port = front.port
    front.kill()
    page.until("/No answer since/.test(document.querySelector('#state').innerText)")
    front.file.write_text(front.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    front.start()
    page.until("document.querySelector('#state').innerText === 'Live'")
    page.until(f"/Process {front.process.pid},/.test(document.querySelector('#gateway').innerText)")
