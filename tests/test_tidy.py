"""The style as tests: sizes, names, and calls that the code must not make."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "forebay"
FILES = sorted(SOURCE.rglob("*.py"))
FILE_LINES_WISHED, FILE_LINES_MAX = 400, 600
FUNCTION_LINES_WISHED, FUNCTION_LINES_MAX = 40, 70
PARAMETERS_WISHED, PARAMETERS_MAX = 5, 7
PACKAGE_FILES_MAX = 10
# Not within a hyphenated name: DeepSeek-V2-Lite is somebody else's.
WORDS = re.compile(r"(?<!-)\b\w*(Manager|Helper|Util|Utils|V2)\b|\bHACK\b|\bXXX\b|\bTODO\b(?! #\d)")
BROAD_ALLOWED = 2  # the engine boundary and the pool's barrier; start-up errors are typed


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_file_is_small_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES_MAX
    assert ast.get_docstring(ast.parse(text)), "a module says what it promises"
    assert not (found := WORDS.search(text)), found
    for node in functions(path):
        size = (node.end_lineno or node.lineno) - node.lineno + 1
        assert size <= FUNCTION_LINES_MAX, f"{node.name} has {size} lines"
        count = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
        assert count <= PARAMETERS_MAX, f"{node.name} has {count} parameters"


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_contributing_says_the_limits_that_are_enforced() -> None:
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    for limit in (
        f"Files have up to {FILE_LINES_WISHED} lines (never over {FILE_LINES_MAX})",
        f"functions up to {FUNCTION_LINES_WISHED} (never over {FUNCTION_LINES_MAX})",
        f"{PARAMETERS_WISHED} parameters (never over {PARAMETERS_MAX})",
        f"packages at most {PACKAGE_FILES_MAX} files",
    ):
        assert limit in page, limit


def test_every_page_names_the_same_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least, below = re.findall(r"3\.(\d+)", project["requires-python"])
    versions = f"Python 3.{least} to 3.{int(below) - 1}"
    for page in ("README.md", "CONTRIBUTING.md"):
        assert versions in " ".join((ROOT / page).read_text().split()), page


def test_packages_have_few_files() -> None:
    for package in SOURCE.rglob("__init__.py"):
        names = [path.name for path in package.parent.glob("*.py")]
        assert len(names) <= PACKAGE_FILES_MAX, package.parent


def test_almost_nothing_catches_everything() -> None:
    broad = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                names = {
                    child.id for child in ast.walk(node.type or node) if isinstance(child, ast.Name)
                }
                if node.type is None or names & {"Exception", "BaseException"}:
                    broad.append(f"{path}:{node.lineno}")
    assert len(broad) <= BROAD_ALLOWED, broad


def test_t48_library_code_leaves_the_process_alone() -> None:
    banned = ("set_start_method", "gc.disable", "basicConfig", "signal.signal(")
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] in {"cli", "testing"}:
            continue
        for word in banned:
            assert word not in path.read_text(), f"{path}: {word}"
