"""The dashboard's words in a real browser: before an answer, of full tiers, at a common width."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bench.report.browser import needs_chromium
from tests.cli.view.snapshots import metric, moved, namespace, snapshot, tier
from tests.observe.test_dashboard import Watched, watched

from forebay.cli.view.outlook import outlook
from forebay.cli.view.units import duration

pytestmark = [needs_chromium, pytest.mark.slow]
WAITING = "Waiting for the pool …"
WIDTH = 1280


@pytest.fixture(scope="module")
def seen() -> Iterator[Watched]:
    with watched() as found:
        found.page.until("document.querySelector('#state').innerText === 'Live'")
        found.page.click("#pause")
        yield found


def test_nothing_is_denied_before_the_first_answer(seen: Watched) -> None:
    said = seen.page.evaluate(
        "fetch('/').then((a) => a.text()).then((text) => [...new DOMParser()"
        ".parseFromString(text, 'text/html').querySelectorAll('.empty, #limits-list li')]"
        ".map((each) => each.textContent))"
    )
    assert said == [WAITING] * 4
    charts = seen.page.evaluate(
        "Promise.all([import('/chart.js'), import('/panels.js')]).then(([charts, panels]) =>"
        " Object.values(panels.PANELS).flat().map((panel) => { const chart ="
        " new charts.Chart(panel); const first = chart.empty.textContent; chart.isWaiting = false;"
        " chart.show(); return [first, chart.empty.textContent]; }))"
    )
    assert {first for first, _ in charts} == {WAITING}
    assert "This pool has no drive." in {then for _, then in charts}
    assert seen.text("#no-engines") == "No engine has joined."
    assert seen.text("#no-namespaces") == "Nothing is stored."


def limits(seen: Watched, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return list(
        seen.page.evaluate(
            "Promise.all([import('/tables.js'), import('/snapshot.js')]).then(([tables, values]) =>"
            " { const recent = new values.Recent();"
            f" for (const each of {json.dumps([before, now])})"
            " recent.add(new values.Snapshot(each, each.uptime_s));"
            " return tables.limitsOf(recent).map(([, text]) => text); })"
        )
    )


@pytest.mark.parametrize("came_bytes", [0, 100])
def test_of_a_full_tier_page_and_terminal_say_the_same(seen: Watched, came_bytes: int) -> None:
    tiers = [tier("dram", 0, 1000), tier("disk", 960, 1000)]
    before = snapshot(100.0, tiers=tiers, moved_bytes=metric(*moved("disk", store=50)))
    later = metric(*moved("disk", store=50 + came_bytes))
    now = snapshot(110.0, tiers=tiers, moved_bytes=later)
    [terminal] = outlook(now, before)
    assert limits(seen, before, now)[0] == f"{terminal.sentence}."


@pytest.mark.parametrize("span_s", [1, 59, 75, 11_520, 1_000_000])
def test_times_are_written_as_in_the_terminal(seen: Watched, span_s: float) -> None:
    assert seen.written("seconds", span_s) == duration(span_s)


REQUEST = {
    "number": 1,
    "time_s": 1.7e9,
    "request": "chatcmpl-0123456789abcdef0123456789abcdef-0",
    "decision": "wait_too_long",
    "what": "Words about what became of it. " * 3,
    "detail": "Words with figures. " * 4,
    "advice": "Words of advice. " * 4,
    "prompt_tokens": 123_456,
    "engine_tokens": 123_456,
    "found_tokens": {"dram": 123_456, "disk": 123_456},
    "loaded_tokens": {"dram": 123_456, "disk": 123_456},
    "computed_tokens": 123_456,
    "lookup_ms": 123.4,
    "wait_ms": 123.4,
    "load_ms": 123.4,
    "saved_gpu_ms_estimate": 75_000.0,
    "was_preempted": False,
    "model": "an-organisation/A-Model-With-A-Name-405B-Instruct",
}


def test_all_columns_of_requests_are_seen_at_a_common_width(seen: Watched) -> None:
    seen.page.resize(WIDTH, 900)
    shown, room = seen.page.evaluate(
        f"import('/tables.js').then((m) => {{ m.showRequests([{json.dumps(REQUEST)}]);"
        " const table = document.querySelector('#requests');"
        " return [table.scrollWidth, table.parentElement.clientWidth]; })"
    )
    assert shown <= room
    assert len(seen.rows("requests")[0]) == 15


def test_a_model_without_a_name_is_called_as_in_the_terminal(seen: Watched) -> None:
    nameless = snapshot(1.0, namespaces=[namespace("a" * 16, "", 100)])
    seen.page.evaluate(
        "Promise.all([import('/tables.js'), import('/snapshot.js')]).then(([tables, values]) =>"
        f" tables.showNamespaces(new values.Snapshot({json.dumps(nameless)}, 0)))"
    )
    assert seen.rows("namespaces")[0][1] == "(no name)"


def test_who_may_not_see_requests_is_told_what_to_do(seen: Watched) -> None:
    seen.page.evaluate("import('/tables.js').then((m) => m.showRefusal('ask as an operator'))")
    assert seen.text("#no-requests") == "Ask as an operator."


def test_what_the_pool_does_not_list_is_counted(seen: Watched) -> None:
    many = {**snapshot(1.0, namespaces=[namespace("a" * 16, "m", 100)]), "namespaces_more": 29_900}
    seen.page.evaluate(
        "Promise.all([import('/tables.js'), import('/snapshot.js')]).then(([tables, values]) =>"
        f" tables.showNamespaces(new values.Snapshot({json.dumps(many)}, 0)))"
    )
    assert seen.rows("namespaces")[1][0] == "and 29,900 more"
