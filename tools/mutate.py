"""Take each verification away in turn; some test must notice.

A line that verifies carries a `# verify: …` comment. In a copy of the tree it is neutralised (a
condition becomes False, an assigned value True, a call nothing) and the fast tests of its layer
or package are run: those first that were seen to run the line, the quickest before all others. A
mutant that every test accepts is a verification that no test holds: exit status 1.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.tests_that_ran import DIRECTORY, TestsThatRan  # noqa: E402

MARK: Final = re.compile(r"# verify: (.+?)\s*$")
TESTS: Final = {  # by layer, the quickest to notice first; other packages have their own directory
    "record": ["tests/record", "tests/tiers", "tests/promises"],
    "tiers": ["tests/tiers", "tests/promises"],
    "tenants.py": ["tests/test_tenants.py"],
}
SKIPPED: Final = {"engines": "needs an inference engine"}  # by layer, with the reason
HANG_S: Final = 240  # of one test; that all together take long says nothing about a mutant
RUN_S: Final = 7200  # of all tests together
SEEN_MAX: Final = 200  # tests that ran a line and are tried before all of its directories
TESTS_FAILED: Final = 1  # pytest's exit status; another one means that the mutant is no program


class Verification(NamedTuple):
    """One marked line."""

    path: Path  # relative to the root
    line: int
    what: str


def main() -> int:
    """Print a row a mutant; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only lines whose comment has it")
    parser.add_argument("--under", nargs="+", default=["src"], help="only files below these paths")
    parsed = parser.parse_args()
    found_all = [
        found
        for found in verifications()
        if parsed.word in found.what and str(found.path).startswith(tuple(parsed.under))
    ]
    wanted = [found for found in found_all if found.path.parts[2] not in SKIPPED]
    for found in found_all:
        if why := SKIPPED.get(found.path.parts[2]):
            print(f"{found.what:24} {found.path}:{found.line}  skipped: its layer {why}")
    with tempfile.TemporaryDirectory(prefix="forebay-mutate-") as temporary:
        tree = Path(temporary)
        copy_tree(tree)
        ran = tests_that_ran(tree, wanted)
        if isinstance(ran, str):
            print(f"{ran} fails without any mutation; mend it first")
            return 1
        survivors = sum(not is_noticed(tree, found, ran) for found in wanted)
    skipped = len(found_all) - len(wanted)
    print(f"{len(wanted)} verifications, {survivors} that no test holds; {skipped} skipped")
    return 1 if survivors or not wanted else 0


def tests_that_ran(tree: Path, wanted: list[Verification]) -> TestsThatRan | str:
    """What each test runs of the marked lines; or one that fails without any mutation."""
    place = tree / "tests-that-ran"
    place.mkdir()
    os.environ[DIRECTORY] = str(place)
    where = sorted({each for found in wanted for each in tests_of(found.path)})
    failed = failing_test(tree, ["-n", "2", "-p", "tools.tests_that_ran", *where], RUN_S)
    return failed or TestsThatRan.read(place)


def is_noticed(tree: Path, found: Verification, ran: TestsThatRan) -> bool:
    """Print what becomes of one mutant."""
    began = time.monotonic()
    noticed = notice(tree, found, ran)
    place = f"{found.path}:{found.line}"
    verdict = f"noticed by {noticed}" if noticed else "SURVIVED"
    print(f"{found.what:24} {place:52} {time.monotonic() - began:5.1f} s  {verdict}", flush=True)
    return noticed is not None


def verifications() -> Iterator[Verification]:
    """Every marked line of the package."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if match := MARK.search(line):
                yield Verification(path.relative_to(ROOT), number, match[1])


def copy_tree(tree: Path) -> None:
    """What the tests need, away from the original."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests", "tools", "docs", "examples"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)


def notice(tree: Path, found: Verification, ran: TestsThatRan) -> str | None:
    """The test that fails without this verification, or None."""
    path = tree / found.path
    source = path.read_text()
    node, _ = _replaced(ast.parse(source), found)
    seen = ran.of(str(found.path), node.lineno, node.end_lineno or node.lineno)
    path.write_text(neutralised(source, found))
    try:
        noticed = failing_test(tree, seen[:SEEN_MAX]) if seen else None
        return noticed or failing_test(tree, tests_of(found.path))
    finally:
        path.write_text(source)


def neutralised(source: str, found: Verification) -> str:
    """The source without what one line verifies."""
    node, replacement = _replaced(ast.parse(source), found)
    start = _offset(source, node.lineno, node.col_offset)
    end = _offset(source, node.end_lineno or 0, node.end_col_offset or 0)
    return source[:start] + replacement + source[end:]


def _replaced(tree: ast.Module, found: Verification) -> tuple[ast.expr | ast.stmt, str]:
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) if _covers(test, found.line):
                return test, "False"
            case ast.Assign(value=value) if _covers(value, found.line):
                return value, "True"
            case ast.Expr() if _covers(node, found.line):
                return node, "pass"
    raise SystemExit(f"{found.path}:{found.line}: only if, assignment and call can be taken away")


def _covers(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _offset(source: str, line: int, column_bytes: int) -> int:
    lines = source.splitlines(keepends=True)
    column = len(lines[line - 1].encode()[:column_bytes].decode())
    return sum(map(len, lines[: line - 1])) + column


def tests_of(path: Path) -> tuple[str, ...]:
    """The directories whose tests should notice a mutant of this file."""
    if named := TESTS.get(path.parts[2]):
        return tuple(named)
    mirror = Path("tests", *path.parts[2:-1])
    while not (ROOT / mirror).is_dir():
        mirror = mirror.parent
    return (str(mirror),)


def failing_test(tree: Path, where: Sequence[str], hang_s: float = HANG_S) -> str | None:
    """The first fast test that fails of these tests, or in these directories; or None."""
    arguments = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no"]
    arguments += ["-o", f"timeout={hang_s}", *where]
    path = os.pathsep.join(str(tree / name) for name in ("src", "."))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"these take longer than {RUN_S} s: {' '.join(where)}") from None
    if ended.returncode == 0:
        return None
    assert ended.returncode == TESTS_FAILED, ended.stdout[-2000:] + ended.stderr[-2000:]
    if "+ Timeout +" in ended.stdout + ended.stderr:
        return f"a test that takes longer than {hang_s} s"
    failed = re.search(r"^FAILED (\S+)", ended.stdout, re.MULTILINE)
    return failed[1].rpartition("/")[2][:90] if failed else "an error"


if __name__ == "__main__":
    sys.exit(main())
