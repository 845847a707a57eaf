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
from tools.mutations import lines_of, verifications

DIRECTORY: Final = "TESTS_THAT_RAN"  # the variable that names where to write


class TestsThatRan(NamedTuple):
    """What the files of all workers say together."""

    by_name: dict[str, set[str]]  # of a verification: the tests that ran it
    seconds: dict[str, float]  # by test

    @classmethod
    def read(cls, place: Path) -> "TestsThatRan":
        """What a run has left."""
        found = cls({}, {})
        for path in place.glob("*.json"):
            told = json.loads(path.read_text())
            found.seconds.update(told["seconds"])
            for name, tests in told["by_name"].items():
                found.by_name.setdefault(name, set()).update(tests)
        return found


class Recorder:
    """Traces the marked files, test by test."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._marked = list(verifications(root))
        files = sorted({str(root / found.path) for found in self._marked})
        self._coverage = coverage.Coverage(data_file=None, include=files, config_file=False)
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
        measured = data.measured_files()
        by_name: dict[str, list[str]] = {}
        for found in self._marked:
            path = self._root / found.path
            if str(path) in measured:
                contexts = data.contexts_by_lineno(str(path))
                lines = lines_of(path.read_text(), found)
                tests = set().union(*(contexts.get(line, ()) for line in lines))
                by_name[found.name] = sorted(tests & self._seconds.keys())
        path = Path(os.environ[DIRECTORY], f"{os.getpid()}.json")
        path.write_text(json.dumps({"by_name": by_name, "seconds": self._seconds}))


def pytest_configure(config: pytest.Config) -> None:
    """Begin before anything of the package is imported by a test."""
    config.pluginmanager.register(Recorder(config.rootpath), "tests-that-ran")
