"""A pytest plugin: which test ran which of the lines that `mutate.py` takes away, and how long.

Loaded with `-p tools.tests_that_ran`; each worker writes one JSON file into $TESTS_THAT_RAN. Lines
that only other processes run, or only an import, are not known here.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

import coverage
import pytest

DIRECTORY: Final = "TESTS_THAT_RAN"  # the variable that names where to write
MARK: Final = "# verify:"


class TestsThatRan(NamedTuple):
    """What the files of all workers say together."""

    by_line: dict[str, dict[int, set[str]]]  # file, relative to the root → line → tests
    seconds: dict[str, float]  # by test

    @classmethod
    def read(cls, place: Path) -> "TestsThatRan":
        """What a run has left."""
        found = cls({}, {})
        for path in place.glob("*.json"):
            told = json.loads(path.read_text())
            found.seconds.update(told["seconds"])
            for file, lines in told["by_line"].items():
                of_file = found.by_line.setdefault(file, {})
                for line, tests in lines.items():
                    of_file.setdefault(int(line), set()).update(tests)
        return found

    def of(self, file: str, first: int, last: int) -> list[str]:
        """The tests that ran one of these lines, the quickest first."""
        lines = self.by_line.get(file, {})
        tests = set().union(*(lines.get(line, ()) for line in range(first, last + 1)))
        return sorted(tests, key=lambda test: (self.seconds[test], test))


class Recorder:
    """Traces the marked files, test by test."""

    def __init__(self, root: Path) -> None:
        self._root = root
        marked = [str(path) for path in (root / "src").rglob("*.py") if MARK in path.read_text()]
        self._coverage = coverage.Coverage(data_file=None, include=marked, config_file=False)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._seconds: dict[str, float] = {}
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """What runs from here on is this test's, its fixtures included."""
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - began

    def pytest_sessionfinish(self) -> None:
        """Write down what this worker has seen."""
        self._coverage.stop()
        data = self._coverage.get_data()
        by_line = {
            str(Path(file).relative_to(self._root)): {
                line: [test for test in tests if test in self._seconds]
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        path = Path(os.environ[DIRECTORY], f"{os.getpid()}.json")
        path.write_text(json.dumps({"by_line": by_line, "seconds": self._seconds}))


def pytest_configure(config: pytest.Config) -> None:
    """Begin before anything of the package is imported by a test."""
    config.pluginmanager.register(Recorder(config.rootpath), "tests-that-ran")
