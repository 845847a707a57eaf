"""Lines that verify something, marked `# verify: …`, and the source without what one verifies."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

MARK: Final = re.compile(r"# verify: (.+?)\s*$")


class Verification(NamedTuple):
    """One marked line."""

    path: Path  # relative to the root
    line: int
    what: str

    @property
    def name(self) -> str:
        """Names it wherever in its file it stands."""
        return f"{self.path} {self.what}"


class BadMark(Exception):  # noqa: N818 - not an error of the program
    """A mark that says nothing to this tool."""


def verifications(root: Path) -> Iterator[Verification]:
    """Every marked line of the package."""
    for path in sorted((root / "src").rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if match := MARK.search(line):
                yield Verification(path.relative_to(root), number, match[1])


def bad_marks(root: Path, marked: list[Verification]) -> list[str]:
    """A sentence for each mark that cannot be taken away, or whose name another one has."""
    bad = []
    for found in marked:
        try:
            ast.parse(neutralised((root / found.path).read_text(), found))
        except BadMark as error:
            bad.append(str(error))
        except SyntaxError as error:
            bad.append(f"{found.path}:{found.line}: no program is left without it: {error}")
    counts = Counter(found.name for found in marked)
    return bad + [f"{name}: {count} marks say this" for name, count in counts.items() if count > 1]


def neutralised(source: str, found: Verification) -> str:
    """The source without what one line verifies."""
    node, replacement = _replaced(source, found)
    start = _offset(source, node.lineno, node.col_offset)
    end = _offset(source, node.end_lineno or 0, node.end_col_offset or 0)
    return source[:start] + replacement + source[end:]


def lines_of(source: str, found: Verification) -> range:
    """The lines that run where the marked one does."""
    node, _ = _replaced(source, found)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _replaced(source: str, found: Verification) -> tuple[ast.expr | ast.stmt, str]:
    for node in ast.walk(_parsed(source)):
        match node:
            case ast.If(test=test) if test.lineno <= found.line < node.body[0].lineno:
                return test, "False"
            case ast.Assign(value=value) | ast.Expr(value=value) if _covers(value, found.line):
                is_assigned = isinstance(node, ast.Assign)
                return _filter(value, found.line) or (
                    (value, "True") if is_assigned else (node, "pass")
                )
    raise BadMark(f"{found.path}:{found.line}: only if, assignment and call can be taken away")


@lru_cache(maxsize=1)
def _parsed(source: str) -> ast.Module:
    """Most files have several marks."""
    return ast.parse(source)


def _filter(value: ast.expr, line: int) -> tuple[ast.expr, str] | None:
    """The condition of a comprehension that has a line of its own."""
    for node in ast.walk(value):
        if isinstance(node, ast.comprehension) and node.target.lineno != line:
            for each in node.ifs:
                if _covers(each, line):
                    return each, "True"
    return None


def _covers(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _offset(source: str, line: int, column_bytes: int) -> int:
    lines = source.splitlines(keepends=True)
    column = len(lines[line - 1].encode()[:column_bytes].decode())
    return sum(map(len, lines[: line - 1])) + column
