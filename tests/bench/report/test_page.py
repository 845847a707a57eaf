"""The report: everything that was measured is on the page, and nothing else is needed for it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from tests.bench.report import browser
from tests.bench.report.browser import needs_chromium
from tests.bench.report.sample import sample
from tests.bench.result.reference import OFF, ON, document

from forebay.bench.report.page import page, write
from forebay.bench.report.text import ab_text, result_text
from forebay.bench.result import files
from forebay.bench.result.compare import compare
from forebay.bench.result.format import AbResult, LoadResult
from forebay.plan.measured import Sla
from forebay.report.page import STYLE

VOID = {"meta", "link", "br", "line", "circle", "polyline"}
TIMES = "\N{MULTIPLICATION SIGN}"
CURVES = 7 * 3 + 4  # of the sample: seven charts of three variants, four counters over time


class Tags(HTMLParser):
    """Tags that are open, and all attributes that name something elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "action"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing() -> None:
    text = page(sample())
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.links == ["data:,"]
    assert not {"script", "img", "iframe", "object"} & tags.seen
    assert "@import" not in text
    assert "url(" not in text
    assert len(text) < 200_000


def test_everything_that_was_measured_is_on_it() -> None:
    text = page(sample())
    for words in (
        f'<b class="gain">4.0 {TIMES}</b>',
        f'<b class="gain">3.5 {TIMES}</b>',
        '<b class="gain">82.0 ms</b>to the first token at 16 clients',
        "first violation at 128 and 32",
        "SLA 50 ms",
        "+206 %",
        "TTFT turn by turn, at 16 clients",
        "99.0% of the answers are equal",
        "Where it does not help",
        "Evidence of offload",
        "read from DRAM by engines",
        "Each run by itself",
        "3 failed (3 http_429)",
        "TTFT by throughput, p95",
        "bar: least and most of the runs",
        "Tiers over time",
        "Hits, and misses by reason",
        "too little",
        "$1.92",
        "$0.54",
        "ended early: the SLA was long broken",
        "What the servers said of themselves",
        "vllm serve m",
        "forebay bench ab m --dram 1TiB",
        "workload: turns",
        "a &lt;model&gt; &amp; co",
        "prefers-color-scheme:dark",
        "@media print",
    ):
        assert words in text, words
    assert "a <model>" not in text
    assert text.count("<polyline") == CURVES
    assert "prefers-color-scheme" in STYLE


def test_the_terminal_says_the_same() -> None:
    ab = sample()
    text = ab_text(ab, compare(ab.off, ab.on, ab.sla))
    for words in ("+206 %", "198 of 200", "stored in DRAM", "nothing comes back", "another", "429"):
        assert words in text
    for words in ("End to end, ms", "Goodput, requests a second", "What it takes", "misses by"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 130
    steps = [line for line in text.splitlines() if line[:8].strip().isdigit()][:6]
    assert len({len(line) for line in steps}) == 1, "columns stand beneath each other"
    points = {line.rindex(".", 0, 58) for line in steps}  # of the first column that has marks
    assert len(points) == 1
    alone = result_text(ab.off, Sla())
    assert "16 clients, 3.47 requests/s; the first violation is at 32" in alone


def test_a_result_with_nothing_but_steps_has_a_page() -> None:
    off, on = (msgspec.convert(document(side), LoadResult) for side in (OFF, ON))
    text = page(AbResult(off=off, on=on))
    assert text.count("<polyline") == 5 * 2
    assert "Conditions" not in text


def test_a_side_without_an_answer_has_a_page() -> None:
    step = {"clients": 1, "req_s": 0, "tpot_ms": None, "errors": 3, "requests": 0}
    dead = msgspec.convert({"steps": [step], "name": "dead"}, LoadResult)
    ab = AbResult(off=msgspec.convert(document(OFF), LoadResult), on=dead)
    text = page(ab)
    assert "no step against 16" in text
    assert "no step against 16" in ab_text(ab, compare(ab.off, ab.on, ab.sla))


def test_both_files_are_written_and_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "out", sample())
    assert path.read_text() == page(sample())
    assert files.read(path.with_name("ab.json")) == sample()
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "ab.json",
        "report.html",
        "steps.csv",
    ]


@needs_chromium
@pytest.mark.slow
def test_a_browser_draws_it_without_a_network_and_without_complaint(tmp_path: Path) -> None:
    seen = browser.look(write(tmp_path, sample()))
    assert seen.said == []
    assert seen.asked == []
    assert seen.dom.count("<polyline") == CURVES
    assert seen.dom.count('class="span on"') == 3 * 6, "the runs of one chart differ"
    assert 'class="curve on"' in seen.dom
    # The witness: a page that does complain and ask is heard.
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/x.png'><script>nonsense()</script>")
    seen = browser.look(bad)
    assert any("nonsense is not defined" in line for line in seen.said)
    assert any("x.png" in url for url in seen.asked)


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_curves_are_seen_in_light_and_in_dark(scheme: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    browser.photograph(write(tmp_path, sample()), picture, scheme)
    found = browser.colours(picture)
    place = STYLE.index("prefers-color-scheme:dark") if scheme == "dark" else 0
    for name, least in (("ground", 100_000), ("off", 1000), ("on", 1000), ("sla", 100)):
        match = re.compile(rf"--{name}:#([0-9a-f]{{3,6}})").search(STYLE, place)
        assert match is not None
        text = match[1] if len(match[1]) == 6 else "".join(2 * letter for letter in match[1])
        colour = tuple(bytes.fromhex(text))
        assert found[colour] >= least, (name, text, found.most_common(8))  # type: ignore[index]


@needs_chromium
@pytest.mark.slow
def test_it_prints(tmp_path: Path) -> None:
    target = tmp_path / "paper.pdf"
    browser.printed(write(tmp_path, sample()), target)
    data = target.read_bytes()
    assert data.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type ?/Page\b", data)) <= 8
