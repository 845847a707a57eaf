"""The dashboard's files: complete, small, without a word of HTML in scripts or of another host."""

import re
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest

from forebay.metrics.catalog import PoolMetrics
from forebay.observe import dashboard

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(dashboard.__file__).parent
LINES_MAX = 400
VENDORED = {"uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE.txt"}
OWN = sorted(set(dashboard.TYPES) - VENDORED)
SCRIPTS = [name for name in OWN if name.endswith(".js")]
VOID = {"meta", "link", "br", "input"}


def text_of(name: str) -> str:
    return dashboard.read(f"/{name}").body.decode()


class Tags(HTMLParser):
    """Tags that are open, ids, and everything that names another file."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            elif name in {"src", "href"}:
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert not (data.strip() and self.open[-1] in {"script", "style"}), "nothing is inline"


@pytest.fixture(scope="module")
def page() -> Tags:
    tags = Tags()
    tags.feed(text_of(dashboard.INDEX))
    return tags


def test_every_file_is_served_and_every_served_file_is_in_the_wheel() -> None:
    there = {path.name for path in FOLDER.iterdir() if path.suffix not in {".py", ".md", ""}}
    assert there == set(dashboard.TYPES)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["forebay.observe.dashboard"]
    for name in dashboard.TYPES:
        assert any(fnmatch(name, pattern) for pattern in patterns), name


def test_the_index_is_at_the_root() -> None:
    assert dashboard.read("/") == dashboard.read("/index.html")


def test_the_page_is_whole_and_names_only_what_is_served(page: Tags) -> None:
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {link for link in page.links if link[0] != "#"} <= set(dashboard.TYPES)
    assert {link[1:] for link in page.links if link[0] == "#"} <= set(page.ids)
    assert not {name for name in page.attributes if name.startswith("on") or name == "style"}
    for name in SCRIPTS:
        for target in re.findall(r'from "\./([^"]+)"', text_of(name)):
            assert target in dashboard.TYPES, (name, target)


def test_scripts_find_the_elements_that_they_name(page: Tags) -> None:
    named = {each for name in SCRIPTS for each in re.findall(r'byId\("([a-z-]+)"\)', text_of(name))}
    assert len(named) > 15
    assert named <= set(page.ids)


@pytest.mark.parametrize("name", OWN)
def test_a_file_is_small_and_names_no_host(name: str) -> None:
    text = text_of(name)
    assert text.count("\n") <= LINES_MAX
    text = text.replace("http://www.w3.org/2000/svg", "")  # a name, not a place
    assert not re.search(r"https?:|//[a-z]+\.[a-z]|@import|url\(", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_never_becomes_html_or_code(name: str) -> None:
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(banned, text_of(name))


def test_the_policy_admits_this_server_alone() -> None:
    policy = dashboard.HEADERS["Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules.values()) <= {"'none'", "'self'"}


def test_the_readme_says_which_library_it_is() -> None:
    version = re.search(r"uPlot v?([\d.]+)|\(v([\d.]+)\)", text_of("uPlot.iife.min.js")[:200])
    assert version is not None
    assert (version[1] or version[2]) in (FOLDER / "README.md").read_text()
    assert "MIT" in text_of("uPlot.LICENSE.txt")


def test_every_metric_that_the_page_reads_is_in_the_catalogue() -> None:
    known = {each.name: each for each in PoolMetrics(("disk",)).definitions()}
    calls = r'\b(?:sum|by|rows|histograms|total|rates|shares|failures|rise)\((?:recent, )?"(\w+)"'
    pairs = r'\["(\w+_seconds)", "\w+"\]'
    text = "".join(map(text_of, SCRIPTS))
    read = {*re.findall(calls, text), *re.findall(pairs, text)}
    assert len(read) > 15
    assert read <= set(known), read - set(known)
