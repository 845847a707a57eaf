"""The dashboard in a real browser, against a real pool under a real load."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.bench.report.browser import needs_chromium
from tests.observe import live_page
from tests.observe.live_page import LivePage
from tests.pool_process import HANG_S, PoolProcess, environment, short_directory, wait_until

from forebay.decisions import WORDS, Decision
from forebay.engines.reporting.attribution import RequestOutcome
from forebay.engines.reporting.reporter import Reporter, description_of
from forebay.metrics.reading import count, tier_of
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

pytestmark = [needs_chromium, pytest.mark.slow]
AXE = Path(__file__).parent / "axe-core" / "axe.min.js"
# What looking at a pool changes, and what time alone changes.
NOT_COMPARED = {"scrapes", "connections", "connections_accepted", "healthy", "uptime_seconds"}
LOOKS = (("light", 3840, 2160), ("light", 360, 780), ("dark", 1280, 900))


class Watched:
    """A pool with its page."""

    def __init__(self, pool: PoolProcess, page: LivePage, url: str) -> None:
        self.pool, self.page, self.url = pool, page, url

    def choose(self, field: str, value: str) -> None:
        """One of a field's options."""
        self.page.evaluate(
            f"(() => {{ const field = document.getElementById({json.dumps(field)});"
            f" field.value = {json.dumps(value)};"
            " field.dispatchEvent(new Event('input')); field.dispatchEvent(new Event('change'));"
            f" if (field.value !== {json.dumps(value)}) throw new Error('no such option'); }})()"
        )

    def text(self, selector: str) -> str:
        return str(self.page.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def written(self, how: str, value: float) -> str:
        """A number as the page writes it."""
        return str(
            self.page.evaluate(f"import('/format.js').then((m) => m.{how}({json.dumps(value)}))")
        )

    def rows(self, table: str) -> list[list[str]]:
        """The text of a table's body."""
        return list(
            self.page.evaluate(
                f"[...document.querySelectorAll('#{table} tbody tr')]"
                ".map((row) => [...row.cells].map((cell) => cell.textContent))"
            )
        )

    def picture(self, chart: str) -> str:
        """What a chart has drawn."""
        found = self.page.evaluate(
            f"document.querySelector('#chart-{chart} canvas')?.toDataURL() ?? ''"
        )
        return str(found)


@contextmanager
def watched(*flags: str) -> Iterator[Watched]:
    """A pool and its page, until the end of the block."""
    with ExitStack() as stack:
        place = stack.enter_context(short_directory())
        pool = PoolProcess(place, "--metrics-address", "127.0.0.1:0", *flags).start()
        stack.callback(pool.stop)
        url = http_url(pool)
        page = stack.enter_context(live_page.opened(url))
        found = Watched(pool, page, url)
        found.choose("interval", "1")
        yield found


def http_url(pool: PoolProcess) -> str:
    """Where its page is, by its log."""
    pattern = re.compile(r"a dashboard at (http://\S+/),")
    wait_until(lambda: pattern.search(pool.log.read_text()), "the pool to name its page")
    found = pattern.search(pool.log.read_text())
    assert found is not None
    return found[1]


@contextmanager
def loaded(pool: PoolProcess, clients: int = 2) -> Iterator[None]:
    """Real clients that store and load, until the end of the block; they check every byte."""
    words = [sys.executable, "-m", "tests.load_generator", pool.socket]
    running = [
        subprocess.Popen(
            [*words, str(number), "7", "0.02"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        for number in range(clients)
    ]
    try:
        yield
    finally:
        ended = [client.communicate(timeout=2 * HANG_S) for client in running]
    assert [client.returncode for client in running] == [0] * clients, ended


REQUESTS = (
    RequestOutcome(
        "chat-1",
        Decision.LOADED,
        4000,
        engine_tokens=512,
        loaded=(("dram", 2048), ("disk", 1024)),
        computed_tokens=416,
        wait_ms=12.5,
        load_ms=30.0,
        saved_gpu_ms=150.0,
    ),
    RequestOutcome("chat-2", Decision.SHORT, 100, computed_tokens=100),
    RequestOutcome("chat-3", Decision.EVICTED, 900, computed_tokens=900, wait_ms=1.0),
)


@contextmanager
def reporting(pool: PoolProcess) -> Iterator[None]:
    """An engine that says who it is and what became of its requests, as the connector does."""
    session = PoolSession(pool.socket, Clock())
    try:
        assert session.wait_until_joined(time.monotonic() + HANG_S), session.why
        reporter = Reporter(session)
        name = description_of("a/model", "vLLM 0.32.0", "declined", "It is too old.", b"n" * 32)
        reporter.describe(name)
        for outcome in REQUESTS:
            reporter.tell(outcome)
        reporter.send()
        session.post(name)  # what was to be said later goes with it
        yield
    finally:
        session.close()


def on_the_page(seen: Watched) -> dict[str, float]:
    """Every value of the table of all metrics."""
    rows = {name: float(value) for name, _, _, value in seen.rows("metrics")}
    return {name: value for name, value in rows.items() if not _is_left_out(name)}


def in_the_pool(stats: dict[str, Any]) -> dict[str, float]:
    """The same from the pool's own socket."""
    found: dict[str, float] = {}
    for name, family in stats["metrics"].items():
        suffix = "_total" if family["kind"] == "counter" else ""
        for labels, value in family["values"]:
            named = ",".join(f'{key}="{text}"' for key, text in labels.items())
            named = f"{{{named}}}" if named else ""
            if isinstance(value, dict):
                found[f"forebay_{name}_count{named}"] = value["count"]
                found[f"forebay_{name}_sum{named}"] = value["sum"]
            else:
                found[f"forebay_{name}{suffix}{named}"] = value
    return {name: value for name, value in found.items() if not _is_left_out(name)}


def _is_left_out(name: str) -> bool:
    plain = name.partition("{")[0].removeprefix("forebay_").removesuffix("_total")
    return plain in NOT_COMPARED


def test_the_page_says_what_the_pool_counts() -> None:
    with ExitStack() as stack:
        seen = stack.enter_context(watched())
        page = seen.page
        seen.choose("window", "60")
        page.click("#metrics-details summary")
        stack.enter_context(reporting(seen.pool))
        with loaded(seen.pool):
            moves(seen, "bandwidth")
            moves(seen, "lookups")
            page.until(
                "/[1-9].*B.s/.test(document.querySelector('#chart-bandwidth .legend').innerText)"
            )
        shows_the_counters(seen)
        shows_the_tiers(seen)
        shows_the_requests(seen)
        page.until("document.querySelector('#state').innerText === 'Live'")
        assert page.said == []
        assert page.failed == []
        assert len(page.asked) > 15
        assert {url for url in page.asked if not url.startswith(seen.url)} == set()
        complains_where_it_must(seen)


def moves(seen: Watched, chart: str) -> None:
    """A chart is drawn, and drawn otherwise afterwards."""
    seen.page.until(f"document.querySelector('#chart-{chart} canvas')")
    first = seen.picture(chart)
    wait_until(lambda: seen.picture(chart) != first, f"{chart} to move", 2 * HANG_S)


def shows_the_counters(seen: Watched) -> None:
    """All values of a quiet pool are on the page, and what they are made from was real."""
    stats = seen.pool.stats()

    def is_equal() -> bool:
        nonlocal stats
        stats = seen.pool.stats()
        return on_the_page(seen) == in_the_pool(stats)

    until = time.monotonic() + 2 * HANG_S
    while not is_equal():
        there, here = in_the_pool(stats), on_the_page(seen)
        unlike = {name: (there.get(name), here.get(name)) for name in there | here}
        assert time.monotonic() < until, {k: v for k, v in unlike.items() if v[0] != v[1]}
    for direction, card in (("load", "loaded"), ("store", "stored")):
        moved = count(stats, "moved_bytes", tier="dram", direction=direction)
        assert moved > 0
        assert seen.text(f"#card-{card}-bytes") == seen.written("bytes", moved)
    assert count(stats, "lookups") > 0
    assert count(stats, "operations", tier="disk", direction="store", outcome="ok") > 0


def shows_the_tiers(seen: Watched) -> None:
    """The tables name what the snapshot has."""
    stats = seen.pool.stats()
    rows = {row[0]: row for row in seen.rows("tiers")}
    for name in ("dram", "disk"):
        tier = tier_of(stats, name)
        expected = [seen.written("bytes", tier[key]) for key in ("used_bytes", "cap_bytes")]
        assert rows[name][2:5] == [*expected, seen.written("count", tier["chunks"])]
    [volume] = tier_of(stats, "disk")["volumes"]
    assert rows[f"disk directory 0: {volume['path']}"][5] == "on"
    assert [row[0] for row in seen.rows("namespaces")] == [
        each["namespace"] for each in stats["namespaces"]
    ]
    assert len(stats["namespaces"]) == 2
    assert "dram is" in seen.text("#limits-list")


def shows_the_requests(seen: Watched) -> None:
    """What an engine told of its requests, in its figures and row by row."""
    assert seen.text("#card-requests") == "3"
    assert seen.text("#card-pool-share") == seen.written("percent", 3072 / 5000)
    assert seen.text("#card-hit-rate") == seen.written("percent", 3584 / 5000)
    assert seen.text("#card-saved-tokens") == "3,072"
    third, second, first = seen.rows("requests")
    assert first[1:3] == ["chat-1", "loaded"]
    assert first[4:9] == ["4,000", "512", "0", "dram 2,048, disk 1,024", "416"]
    assert (second[1:3], third[1:3]) == (["chat-2", "short"], ["chat-3", "evicted"])
    assert WORDS[Decision.EVICTED].what in third[3]
    seen.choose("decision-filter", "short")
    assert [row[1] for row in seen.rows("requests")] == ["chat-2"]
    [engine] = [row for row in seen.rows("engines") if row[1] == "a/model"]
    assert engine[2:5] == ["vLLM 0.32.0", "declined", "It is too old."]


def complains_where_it_must(seen: Watched) -> None:
    """The witness: what the policy forbids is refused, and heard of."""
    assert not seen.page.evaluate(
        "(() => { const bad = document.createElement('script'); bad.textContent = 'window.bad = 1';"
        " document.body.append(bad); return window.bad; })()"
    )
    refused = "fetch('http://127.0.0.2:9/').then(() => 'sent', () => 'refused')"
    assert seen.page.evaluate(refused) == "refused"

    def is_heard_of(rule: str) -> bool:
        seen.page.evaluate("true")  # what was said before the answer is kept
        return any("Content Security Policy" in line and rule in line for line in seen.page.said)

    wait_until(lambda: is_heard_of("script-src"), "the inline script to be refused")
    wait_until(lambda: is_heard_of("connect-src"), "the other host to be refused")


FIGURES = """
Promise.all([import('/panels.js'), import('/snapshot.js')]).then(([charts, values]) => {
  const recent = new values.Recent();
  const add = (pid, time, metrics) =>
    recent.add(new values.Snapshot({ pid, uptime_s: time, metrics }, time));
  const [first, second] = %s;
  const others = [add(1, 100, first), add(1, 110, second)];
  const curves = ({ xs, series }) => [xs, [...series]];
  const read = Object.values(charts.PANELS).flat().map((panel) => [panel.id, panel.readCurves
    ? curves(panel.readCurves(recent)) : [...panel.read(recent)]]);
  return [...read, ["others", [...others, add(2, 120, first)]]];
})
"""


def family(*values: tuple[dict[str, str], Any]) -> dict[str, Any]:
    return {"values": [list(value) for value in values]}


def ages(*counts: int) -> dict[str, Any]:
    rows = [[upper, number] for upper, number in zip((1, 60, 3600, 86400), counts, strict=False)]
    return {"buckets": rows, "sum": 1.0, "count": counts[-1]}


def test_shares_rates_and_curves_are_those_of_the_counters() -> None:
    dram, disk, load = {"tier": "dram"}, {"tier": "disk"}, {"direction": "load"}
    first = {
        "lookup_chunks": family(({"found": "dram"}, 10), ({"found": "absent"}, 10)),
        "moved_bytes": family(({**disk, **load}, 1000)),
        "requests": family(({"outcome": "loaded"}, 1)),
        "saved_gpu_seconds_estimate": family(({}, 1.0)),
        "operations": family(({**disk, **load, "outcome": "ok"}, 4)),
        "queue_wait_seconds": family(({**disk, **load}, {"buckets": [], "sum": 1.0, "count": 1})),
    }
    second = {
        "lookup_chunks": family(({"found": "dram"}, 40), ({"found": "absent"}, 20)),
        "moved_bytes": family(({**disk, **load}, 3000)),
        "requests": family(({"outcome": "loaded"}, 3), ({"outcome": "short"}, 2)),
        "saved_gpu_seconds_estimate": family(({}, 7.0)),
        "operations": family(
            ({**disk, **load, "outcome": "ok"}, 9),
            ({**disk, **load, "outcome": "busy"}, 5),
            ({**disk, **load, "outcome": "corrupt"}, 0),
        ),
        "queue_wait_seconds": family(({**disk, **load}, {"buckets": [], "sum": 4.0, "count": 4})),
        "used_bytes": family((dram, 50), (disk, 10)),
        "cap_bytes": family((dram, 100), (disk, 40)),
        "age_at_eviction_seconds": family((dram, ages(0, 5, 10, 10)), (disk, ages(0, 0, 0, 0))),
    }
    with watched() as seen:
        answer = seen.page.evaluate(FIGURES % json.dumps([first, second]))
    found = dict(answer)
    assert dict(found["lookups"]) == {"dram": 0.75, "absent": 0.25}
    assert dict(found["bandwidth"]) == {"disk load": 200}
    assert dict(found["saved"]) == {"each request": 1.5, "each loaded": 3}
    assert dict(found["decisions"]) == {"loaded": 0.2, "short": 0.2}
    assert dict(found["misses"]) == {"short": 0.2}
    assert dict(found["failed-loads"]) == {"disk busy": 0.5}
    assert dict(found["waits"]) == {"chunks found": 0.75, "disk load": 1, "disk store": None}
    assert dict(found["occupancy"]) == {"dram": 0.5, "disk": 0.25}
    assert found["lifetimes"] == [[1, 60, 3600], [["dram evicted", [1, 0.5, 0]]]]
    assert found["hits"] == []
    assert found["others"] == [False, False, True]


def test_names_that_others_chose_are_text() -> None:
    hostile = "<img src=x onerror=alert(1)>\u202eevil\n\x1b[2J"
    engine = {"id": "1", "model": hostile, "engine": hostile, "sharing": hostile, "why": hostile}
    with watched() as seen:
        seen.page.click("#pause")
        shown = seen.page.evaluate(
            "Promise.all([import('/tables.js'), import('/snapshot.js')]).then(([tables, values]) =>"
            f" {{ tables.showEngines(new values.Snapshot({json.dumps({'engines': [engine]})}, 0));"
            " return document.querySelector('#engines tbody').innerText; })"
        )
        assert "<img src=x onerror=alert(1)>\\u202eevil\\u000a\\u001b[2J" in shown
        assert seen.page.evaluate("document.images.length") == 0
        assert seen.page.said == []


def test_everybody_can_read_it() -> None:
    with watched() as seen:
        page = seen.page
        with loaded(seen.pool, clients=1):
            moves(seen, "bandwidth")
        page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        page.until("document.querySelectorAll('#chart-bandwidth tbody tr').length === 4")
        page.click("#pause")
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
        assert is_heard(page), "the witness: what axe must find"
        reaches_everything_by_keyboard(page)


def is_heard(page: LivePage) -> bool:
    page.evaluate("document.querySelector('#pause').textContent = ''")
    found = page.evaluate("axe.run().then((all) => all.violations.map((each) => each.id))")
    page.evaluate("document.querySelector('#pause').textContent = 'Pause'")
    return bool(found == ["button-name"])


def reaches_everything_by_keyboard(page: LivePage) -> None:
    """Tab leads to all that can be pressed, chosen or scrolled, and keys press it."""
    wanted = page.evaluate(
        "[...document.querySelectorAll('a, button, select, input, summary, [tabindex=\"0\"]')]"
        ".filter((each) => each.checkVisibility()).map((each, at) => (each.dataset.at = at, at))"
    )
    assert len(wanted) > 30
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(2 * len(wanted)):
        page.press("Tab", 9)
        reached.add(page.evaluate("Number(document.activeElement.dataset?.at ?? -1)"))
        if set(wanted) <= reached:
            break
    assert set(wanted) <= reached
    page.evaluate("document.querySelector('#pause').focus()")
    assert page.evaluate("document.querySelector('#state').innerText") == "Paused"
    page.press(" ", 32)
    page.until("document.querySelector('#state').innerText === 'Live'")


def test_a_pool_with_a_token_shows_its_page_to_who_has_it() -> None:
    with ExitStack() as stack:
        place = stack.enter_context(short_directory())
        secret = place / "token"
        secret.write_text("0123456789abcdef0123456789abcdef\n")
        secret.chmod(0o600)
        flags = ("--metrics-address", "127.0.0.1:0", "--metrics-token-file", str(secret))
        pool = PoolProcess(place, *flags, disk=False).start()
        stack.callback(pool.stop)
        url = http_url(pool)
        page = stack.enter_context(
            live_page.opened(url.replace("//", f"//me:{secret.read_text().strip()}@"))
        )
        page.until("document.querySelector('#state').innerText === 'Live'")
        assert page.said == []
        # Without it, not even the page: the browser would ask for it.
        answer = page.evaluate(
            "fetch(location.origin, { credentials: 'omit' }).then((a) => a.status)"
        )
        assert answer == 401


def test_a_pool_that_does_not_answer_is_said_once() -> None:
    with watched() as seen:
        page = seen.page
        page.until("document.querySelector('#state').innerText === 'Live'")
        page.evaluate(
            "(() => { window.heard = []; new MutationObserver(() => heard.push("
            "document.querySelector('#state').textContent)).observe(document.querySelector('#state'),"
            " { childList: true, characterData: true, subtree: true }); })()"
        )
        polls = "performance.getEntriesByName(new URL('stats.json', location).href).length"
        before = page.evaluate(polls)
        page.until(f"{polls} >= {before + 3}")
        seen.pool.signal(signal.SIGSTOP)
        try:
            page.until("/^No answer since/.test(document.querySelector('#state').innerText)")
        finally:
            seen.pool.signal(signal.SIGCONT)
        page.until("document.querySelector('#state').innerText === 'Live'")
        said = page.evaluate("heard")
        # A busy machine may have lost the pool once more; the same is never said again.
        assert all(one != other for one, other in pairwise(said)), said
        assert len([text for text in said if text.startswith("No answer")]) >= 1
