"""Take each verification away in turn; some test must notice.

A line that verifies carries a `# verify: …` comment. In a copy of the tree it is neutralised (a
condition becomes False, an assigned value True, a call nothing) and the fast tests of its layer
or package are run. A mutant that every test accepts is a verification that no test holds: exit
status 1.

Usage: mutate.py [WORD]   only lines whose comment contains WORD
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
MARK: Final = re.compile(r"# verify: (.+?)\s*$")
TESTS: Final = {  # by layer, the quickest to notice first; other packages have their own directory
    "record": ["tests/record", "tests/tiers", "tests/promises"],
    "tiers": ["tests/tiers", "tests/promises"],
}
SKIPPED: Final = {"engines": "needs an inference engine"}  # by layer, with the reason
TIMEOUT_S: Final = 300
TESTS_FAILED: Final = 1  # pytest's exit status; another one means that the mutant is no program


class Verification(NamedTuple):
    """One marked line."""

    path: Path  # relative to the root
    line: int
    what: str


def main() -> int:
    """Print a row a mutant; 1 if one survives."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    found_all = [found for found in verifications() if word in found.what]
    wanted = [found for found in found_all if found.path.parts[2] not in SKIPPED]
    for found in found_all:
        if why := SKIPPED.get(found.path.parts[2]):
            print(f"{found.what:24} {found.path}:{found.line}  skipped: its layer {why}")
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="forebay-mutate-") as temporary:
        tree = Path(temporary)
        copy_tree(tree)
        for where in sorted({tests_of(found.path) for found in wanted}):
            if failed := failing_test(tree, where):
                print(f"{failed} fails without any mutation; mend it first")
                return 1
        for found in wanted:
            began = time.monotonic()
            noticed = notice(tree, found)
            survivors += noticed is None
            place = f"{found.path}:{found.line}"
            verdict = f"noticed by {noticed}" if noticed else "SURVIVED"
            print(f"{found.what:24} {place:52} {time.monotonic() - began:5.1f} s  {verdict}")
            sys.stdout.flush()
    skipped = len(found_all) - len(wanted)
    print(f"{len(wanted)} verifications, {survivors} that no test holds; {skipped} skipped")
    return 1 if survivors or not wanted else 0


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


def notice(tree: Path, found: Verification) -> str | None:
    """The test that fails without this verification, or None."""
    path = tree / found.path
    source = path.read_text()
    path.write_text(neutralised(source, found))
    try:
        return failing_test(tree, tests_of(found.path))
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


def failing_test(tree: Path, where: tuple[str, ...]) -> str | None:
    """The first fast test that fails in these directories, or None."""
    arguments = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no", *where]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a hang of {TIMEOUT_S} s"
    if ended.returncode == 0:
        return None
    assert ended.returncode == TESTS_FAILED, ended.stdout[-2000:] + ended.stderr[-2000:]
    failed = re.search(r"^FAILED (\S+)", ended.stdout, re.MULTILINE)
    return failed[1].rpartition("/")[2][:90] if failed else "an error"


if __name__ == "__main__":
    sys.exit(main())
