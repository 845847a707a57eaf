"""The docs say what the code does: tables, modules, links, commands and log lines."""

import importlib
import importlib.util
import re
import shlex
import struct
from pathlib import Path
from types import ModuleType

import pytest

from forebay.cli.main import build_parser
from forebay.identity import keys
from forebay.record import forgotten, header, region
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.disk.regions import data_keys

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FIELD = re.compile(r"(\d*)([sHIQ])")
BYTES = {"s": 1, "H": 2, "I": 4, "Q": 8}
PAGE_HASH = (PAGE_BYTES - header.HASH_BYTES, header.HASH_BYTES)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fields_of(layout: struct.Struct) -> list[tuple[int, int]]:
    """Offset and size of every field of a packed struct."""
    found, at = [], 0
    for count, code in FIELD.findall(layout.format):
        size = BYTES[code] * int(count or 1)
        found.append((at, size))
        at += size
    assert at == layout.size
    return found


def rows_of(heading: str) -> list[tuple[int, int]]:
    page = (ROOT / "docs" / "format.md").read_text()
    section = page.split(heading, 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \|", section, re.MULTILINE)
    return [(int(offset), int(size)) for offset, size in rows]


@pytest.mark.parametrize(
    ("heading", "layout", "ending"),
    [
        ("### Record header\n", header._FIELDS, [PAGE_HASH]),
        ("#### The medium's part in a region\n", region._POSITION, []),
        ("### Region header\n", region._HEADER, [PAGE_HASH]),
        ("### Footer\n", region._FOOTER, [PAGE_HASH]),
        ("### List of forgotten tenants\n", forgotten._HEADER, []),
        ("### Entry of the table of contents\n", region._ENTRY, []),
        ("## Keys and namespaces\n", keys._ROOT, []),
        ("### File of keys\n", data_keys._HEADER, [PAGE_HASH]),
        ("#### Entry of the file of keys\n", data_keys._ENTRY, []),
    ],
)
def test_byte_tables_agree_with_the_code(
    heading: str, layout: struct.Struct, ending: list[tuple[int, int]]
) -> None:
    assert rows_of(heading) == fields_of(layout) + ending


def test_magics_and_version_agree_with_the_code() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    for magic in (header.MAGIC, header.ERASED_MAGIC, region._MAGIC_HEADER, region._MAGIC_FOOTER):
        assert f"`{magic.decode()}`" in page
    assert f"Version {header.VERSION}." in page


def test_generated_parts_are_current() -> None:
    docs = tool("docs")
    assert docs.SETTINGS.read_text() == docs.settings_page(), "run: make docs"
    assert docs.ARCHITECTURE.read_text() == docs.architecture_page(), "run: make docs"
    assert docs.COMPATIBILITY.read_text() == docs.compatibility_page(), "run: make docs"
    assert docs.DOCTOR.read_text() == docs.doctor_page(), "run: make docs"
    assert docs.WHY.read_text() == docs.why_page(), "run: make docs"
    assert docs.METRICS.read_text() == docs.metrics_page(), "run: make docs"
    assert docs.GATEWAY.read_text() == docs.gateway_page(), "run: make docs"


def test_the_readme_is_short_and_has_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    at = next(at for at, line in enumerate(lines) if line.startswith("    make run "))
    assert lines[at + 1].startswith("    make test ")


def test_symptoms_are_lines_that_the_code_writes() -> None:
    """Every quoted line of the operator's table, between what varies, stands in the source."""
    source = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    source = re.sub(r'"\s+f?"', "", source)  # texts that are written over several lines
    page = (ROOT / "docs" / "operating.md").read_text()
    rows = re.findall(r"^\| (`.+?) \|", page.split("## Symptoms")[1], re.MULTILINE)
    assert len(rows) > 20
    for line in re.findall(r"`([^`]+)`", " ".join(rows)):
        for part in re.split(r"…|: |[{}=,]", line):
            assert part.strip(' .()"') in source, line


def test_the_threat_model_names_tests_that_there_are() -> None:
    """Every line of what may be attempted has a test, and each stands where the page says."""
    page = (ROOT / "SECURITY.md").read_text()
    tables = re.findall(r"^\| attempt \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) == 8
    for row in "".join(tables).splitlines():
        assert "::test_" in row.split("|")[-2], row
    for path, name in re.findall(r"`(\S+\.py)::(test_\w+)`", page):
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), (path, name)


def test_the_glossary_is_sorted() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = re.findall(r"^\| ([a-z ]+) \|", page, re.MULTILINE)[1:]
    assert words == sorted(words)
    assert len(words) > 20


def commands_of(page: Path) -> list[str]:
    """The `forebay …` lines of a page's code blocks; those with words to fill in left out."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?:    |\$ |)(forebay [a-z][^#\n]*)", text, re.MULTILINE)
    return [line for line in lines if not re.search(r"[…|<>\[$]", line)]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "traces" / "README.md"], ids=str)
def test_commands_can_be_given_as_written(page: Path) -> None:
    for command in commands_of(page):
        build_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_that_a_page_shows_work(page: Path) -> None:
    pattern = r"^ *from (forebay[\w.]*) import ([\w, ]+)$"
    for module, names in re.findall(pattern, page.read_text(), re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text()):
        places = [ROOT / name, *(ROOT / "src" / "forebay").rglob(name)]
        assert any(place.exists() for place in places), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
