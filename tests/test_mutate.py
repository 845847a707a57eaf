"""`make mutate`: every mark can be taken away, and a mutant is noticed by a test that says so."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.mutations import BadMark, Verification, bad_marks, neutralised, verifications

ROOT = Path(__file__).parent.parent
TOOLS = ("mutate.py", "mutations.py", "mutant_tests.py", "tests_that_ran.py")
SOURCE = """
def total(numbers, limit):
    if len(numbers) > limit:  # verify: noticed
        return None
    is_small = len(numbers) < 10_000  # verify: survives
    return sum(numbers) if is_small else None
"""
TESTS = """
from forebay.other.sample import total

def test_broken(): assert total([], 1) == 1
def test_limit(): assert total([1, 2], 1) is None
"""


def test_every_mark_can_be_taken_away() -> None:
    assert bad_marks(ROOT, list(verifications(ROOT))) == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("if a > b:  # verify: x\n    pass", "if False:  # verify: x\n    pass"),
        ("if f(\n    a\n):  # verify: x\n    pass", "if False:  # verify: x\n    pass"),
        ("a = b > c  # verify: x", "a = True  # verify: x"),
        ("f(a)  # verify: x", "pass  # verify: x"),
        (
            "f(\n    a for a in b\n    if c  # verify: x\n)",
            "f(\n    a for a in b\n    if True  # verify: x\n)",
        ),
        (
            "a = [\n    b for b in c\n    if b  # verify: x\n]",
            "a = [\n    b for b in c\n    if True  # verify: x\n]",
        ),
    ],
)
def test_what_is_left_without_a_verification(text: str, left: str) -> None:
    assert neutralised(text, mark_in(text)) == left


@pytest.mark.parametrize("text", ["while a:  # verify: x\n    a()", "if a:\n    pass  # verify: x"])
def test_what_cannot_be_taken_away_is_said(text: str) -> None:
    with pytest.raises(BadMark, match=r"a\.py:\d: only if"):
        neutralised(text, mark_in(text))


def mark_in(text: str) -> Verification:
    line = next(n for n, line in enumerate(text.splitlines(), start=1) if "verify" in line)
    return Verification(Path("a.py"), line, "x")


@pytest.mark.long
def test_verdicts_and_what_a_second_run_costs(tmp_path: Path) -> None:
    for place in ("tools", "src/forebay/other", "tests/other"):
        (tmp_path / place).mkdir(parents=True)
    for name in TOOLS:
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
    (tmp_path / "src/forebay/__init__.py").touch()
    (tmp_path / "src/forebay/other/sample.py").write_text(SOURCE)
    (tmp_path / "tests/other/test_sample.py").write_text(TESTS)
    said = mutate(tmp_path)
    assert "noticed by test_sample.py::test_limit" in said["noticed"]
    assert "SURVIVED" in said["survives"]
    assert "2 verifications, 0 as before, 1 that no test holds; 0 skipped" in said.values()
    again = mutate(tmp_path)
    assert "noticed" not in again, "nothing has changed"
    assert "SURVIVED" in again["survives"], "what no test holds is tried again"
    kept = json.loads((tmp_path / "build/mutate.json").read_text())
    assert "src/forebay/other/sample.py noticed" in kept["noticed"]


def mutate(place: Path) -> dict[str, str]:
    """A line for each verification."""
    ended = subprocess.run(
        [sys.executable, "tools/mutate.py"], cwd=place, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    return {line.partition("  ")[0]: line for line in ended.stdout.splitlines()}
