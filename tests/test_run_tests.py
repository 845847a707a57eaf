"""`tools/run_tests.py`: in CI a failed test gets one more try; a run that was aborted gets none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tools" / "run_tests.py"
CONFTEST = "from tests.conftest import pytest_sessionfinish, pytest_testnodedown\n"
PASSES = "def test_passes(): pass\n"
# Fails at the first try only.
UNLUCKY = """
from pathlib import Path
def test_unlucky():
    before = Path("tried").exists()
    Path("tried").touch()
    assert before
"""
FAILS = "def test_fails(): assert False\n"
DIES = "import os\ndef test_dies(): os._exit(1)\n"
SKIPPED = "import pytest\ndef test_skipped(): pytest.skip('for want of something')\n"
SKIPPED_LATER = """
from pathlib import Path
import pytest
def test_skipped_later():
    if Path("tried").exists():
        pytest.skip("for want of something")
    Path("tried").touch()
    assert False
"""


def run(place: Path, text: str, *words: str, ci: str = "true") -> tuple[int, str]:
    (place / "test_planted.py").write_text(text)
    (place / "conftest.py").write_text(CONFTEST)
    (place / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    ended = subprocess.run(
        [sys.executable, SCRIPT, "planted", "-q", *words],
        cwd=place,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_what_failed_once_passes_at_the_second_try_and_is_named(tmp_path: Path) -> None:
    status, said = run(tmp_path, PASSES + UNLUCKY, "-n", "1")
    assert status == 0
    assert "passed only at the second try:\n  test_planted.py::test_unlucky\n" in said
    assert "1 failed, 1 passed" in said
    assert "\n1 passed" in said, "the second try is of what failed alone"


def test_what_fails_twice_fails_the_run(tmp_path: Path) -> None:
    status, said = run(tmp_path, FAILS + UNLUCKY, "-n", "1")
    assert status == 1
    assert "failed twice:\n  test_planted.py::test_fails\n" in said
    assert "passed only at the second try:\n  test_planted.py::test_unlucky\n" in said


def test_outside_ci_one_failure_is_a_failure(tmp_path: Path) -> None:
    status, said = run(tmp_path, PASSES + UNLUCKY, "-n", "1", ci="")
    assert status == 1
    assert "once more" not in said


@pytest.mark.parametrize(
    ("text", "words", "status"),
    [
        (UNLUCKY + DIES, ("-n", "1"), 3),  # a worker dies
        (UNLUCKY + DIES, (), 1),  # the only process dies
        (UNLUCKY + SKIPPED, (), 5),
        (PASSES, ("-k", "nothing"), 5),
        ("import nothing_of_this_name\n" + UNLUCKY, (), 2),
    ],
)
def test_an_aborted_run_fails_without_a_second_try(
    tmp_path: Path, text: str, words: tuple[str, ...], status: int
) -> None:
    ended, said = run(tmp_path, text, *words)
    assert ended == status
    assert "once more" not in said


def test_what_no_processor_of_this_kind_can_run_is_no_failure(tmp_path: Path) -> None:
    status, _ = run(
        tmp_path, PASSES + SKIPPED.replace("for want of something", "on this processor")
    )
    assert status == 0


def test_what_is_skipped_at_the_second_try_has_not_passed(tmp_path: Path) -> None:
    status, said = run(tmp_path, SKIPPED_LATER)
    assert status == 5
    assert "not all of what failed ran at the second try" in said
    assert "passed only" not in said
