"""Run pytest; in CI, tests that failed run once more, alone: `run_tests.py NAME PYTEST-ARGUMENT …`.

Outside CI (`CI=true`) this is pytest and nothing else. In CI a machine may be so busy that a guard
against hanging ends an honest test. So exactly the tests that failed run a second time, one after
the other in a fresh process, and each must pass. What passed only then is named.

Only failed tests are given a second try. A run that was aborted, or in which nothing ran, a worker
died or a test was skipped (tests/conftest.py gives these two a status of their own), fails as it
is. NAME keeps the runs of several targets apart, under `build/`.
"""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

BUILD: Final = Path("build/pytest")
FAILED: Final = 1  # pytest's exit status if tests ran and some failed
NOT_RUN: Final = 5  # likewise if none ran


def main(name: str, arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", *arguments]
    if os.environ.get("CI") != "true":
        os.execv(sys.executable, pytest)
    place = BUILD / name
    shutil.rmtree(place, ignore_errors=True)  # what an earlier run has left must not be believed
    pytest += ["-o", f"cache_dir={place}"]
    status = subprocess.run(pytest, check=False).returncode
    failed = failed_tests(place)
    if status != FAILED or not failed:
        return status
    print(f"forebay: {len(failed)} failed; once more, alone:", *failed, sep="\n  ", flush=True)
    report = place / "second.xml"
    again = ["--last-failed", "--last-failed-no-failures=none", f"--junit-xml={report}"]
    alone = ["-n0"] if "-n" in arguments else []
    status = subprocess.run([*pytest, *again, *alone], check=False).returncode
    if status == 0 and not all_ran(report, len(failed)):
        status = NOT_RUN
    if status not in (0, FAILED):
        print("forebay: not all of what failed ran at the second try.")
        return status
    again_failed = failed_tests(place)
    say("failed twice", again_failed)
    say("passed only at the second try", [test for test in failed if test not in again_failed])
    return status


def failed_tests(place: Path) -> list[str]:
    """The tests that failed and have not passed since."""
    try:
        return sorted(json.loads((place / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


def all_ran(report: Path, count: int) -> bool:
    """Whether a report tells of so many tests, none of them skipped."""
    suite = ET.parse(report).getroot().find("testsuite")
    return suite is not None and (suite.get("tests"), suite.get("skipped")) == (str(count), "0")


def say(what: str, tests: list[str]) -> None:
    if tests:
        print(f"forebay: {what}:", *tests, sep="\n  ", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
