"""docs/promises.md lists every promise with its tests, or says that it is open."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "promises.py"


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    found = importlib.util.spec_from_file_location("promises", TOOL)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_page_is_current(promises: ModuleType) -> None:
    assert promises.PAGE.read_text() == promises.page(), "run: make docs"


def test_every_promise_is_listed_with_a_test_or_as_open(promises: ModuleType) -> None:
    assert list(promises.PROMISES) == list(range(1, 66))
    tests = promises.tests_by_number()
    for number, (_, still_open) in promises.PROMISES.items():
        assert number in tests or still_open, f"T{number} has no test and is not open"


def test_no_test_is_named_after_a_promise_that_there_is_not(promises: ModuleType) -> None:
    assert promises.tests_by_number().keys() <= promises.PROMISES.keys()


def test_what_record_and_disk_promise_is_held(promises: ModuleType) -> None:
    """The promises that the first part of Forebay carries."""
    carried = {*range(1, 10), 12, *range(15, 21), 22, 23, 24, 31, 34, 40, 41, 43, 44, 47}
    assert carried <= promises.tests_by_number().keys()
