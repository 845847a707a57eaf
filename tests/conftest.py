"""What every test shares: skips are named in the last line, and in CI they are failures."""

import importlib
import logging
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import core_harness

from forebay import barrier

EXAMPLES = int(os.environ.get("FOREBAY_EXAMPLES", "50"))  # of each property; more in make soak
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],  # so is a busy machine
)
settings.load_profile("default")
_DEAD_WORKERS = pytest.StashKey[bool]()
# A background job of a shell ignores it, and so does all that it starts; some tests interrupt that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lower-tier",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="a tier beneath the disk in every test of the pool's core, opened by this function"
        " of a listener and a world",
    )


def pytest_configure(config: pytest.Config) -> None:
    for wanted in config.getoption("--lower-tier"):
        module, _, function = wanted.partition(":")
        core_harness.MORE_TIERS.append(getattr(importlib.import_module(module), function))


class _Fault(logging.Handler):
    """Raises what the pool's barrier caught, so that no test passes over it."""

    def emit(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        assert error is not None, record.getMessage()
        raise error


@pytest.fixture(autouse=True)
def _no_fault_is_hidden(request: pytest.FixtureRequest) -> Iterator[None]:
    """A bug that a pool's barrier catches fails the test, unless it is marked `expects_faults`."""
    if request.node.get_closest_marker("expects_faults"):
        yield
        return
    handler, logger = _Fault(), logging.getLogger(barrier.__name__)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.fixture
def seed() -> int:
    """The luck of a test: `make replay SEED=…` gives a failed test the same again."""
    seed = int(os.environ.get("FOREBAY_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"replay with: make replay SEED={seed}")
    return seed


@pytest.fixture
def swift_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: for what repeats itself hundreds of times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="forebay-test-") as path:
        yield Path(path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        names = ", ".join(sorted({report.nodeid for report in skipped}))
        terminalreporter.write_line(f"skipped for want of something on this machine: {names}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """A worker of xdist has ended; with an error if it died."""
    if error is not None:
        node.config.stash[_DEAD_WORKERS] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a run that lacks tests has no failed tests to try again: tools/run_tests.py."""
    if os.environ.get("CI") != "true":
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.stash.get(_DEAD_WORKERS, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    elif reporter and any(map(_lacks_something, reporter.stats.get("skipped", []))):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _lacks_something(skipped: pytest.TestReport) -> bool:
    """Whether CI could have installed what a test was skipped for; no processor can be."""
    return not str(skipped.longrepr).rstrip("')").endswith("on this processor")
