"""The log: one line a thing, as text or JSON, not too many of one reason, nothing of users."""

import json
import logging
import signal
import subprocess
import sys

import pytest
from tests import pool_process
from tests.pool_process import HANG_S, PatientClient, made

from forebay.cli.logs import INTERVAL_S, LINES_MAX, JsonFormatter, LineFormatter, RateLimit
from forebay.cli.main import main


def record(text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("forebay.x", logging.WARNING, "", 0, text, values, None)


def test_a_reason_has_so_many_lines_an_interval_and_the_rest_are_counted() -> None:
    now = [0.0]
    limit = RateLimit(lambda: now[0])
    passed = [limit.filter(record("disk %d failed", number)) for number in range(LINES_MAX + 7)]
    assert passed == [True] * LINES_MAX + [False] * 7
    assert limit.filter(record("another reason"))
    now[0] = INTERVAL_S
    later = record("disk %d failed", 99)
    assert limit.filter(later)
    assert LineFormatter("%(message)s").format(later) == (
        "disk 99 failed (7 more like this were left out)"
    )
    assert json.loads(JsonFormatter().format(later))["left_out"] == 7
    now[0] = 2 * INTERVAL_S
    last = record("disk %d failed", 99)
    assert limit.filter(last)
    assert LineFormatter("%(message)s").format(last) == "disk 99 failed"


@pytest.mark.parametrize("formatter", [LineFormatter("%(message)s"), JsonFormatter()])
def test_a_thing_is_one_line_whatever_is_in_it(formatter: logging.Formatter) -> None:
    try:
        int("a\nb")
    except ValueError:
        odd = logging.LogRecord("x", 40, "", 0, "\x1b[31m%s\r\n", ("\u2028\udcff",), sys.exc_info())
    line = formatter.format(odd)
    assert len(line.splitlines()) == 1
    assert line.isprintable()


LOGS_WHILE_SIGNALLED = """
import logging, os, signal, sys
from forebay.cli import logs
from forebay.cli.pool.log import LogWriter

writer = LogWriter()
logs.start("%(message)s", writer, form=sys.argv[1], level="debug")
handled = 0

def handle(number, frame):
    global handled
    handled += 1
    logging.warning("signal %d", number)

signal.signal(signal.SIGUSR1, handle)
depth = 0

def trace(frame, event, argument):
    global depth
    watched = ("logging/__init__.py", "logs.py", "log.py")
    if not depth and frame.f_code.co_filename.endswith(watched):
        depth = 1
        os.kill(os.getpid(), signal.SIGUSR1)
        depth = 0
    return trace

sys.settrace(trace)
for number in range(20):
    logging.info("line %d", number)
sys.settrace(None)
writer.drain(60.0)
print(handled)
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_signal_whose_handler_logs_while_a_line_is_logged_holds_nobody_up(form: str) -> None:
    """At every line of code that a line of the log runs through, a signal arrives."""
    command = [sys.executable, "-c", LOGS_WHILE_SIGNALLED, form]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert int(ended.stdout) > 500
    wanted = "line 19" if form == "text" else '"message": "line 19"'
    assert wanted in ended.stderr


def test_a_pool_logs_its_life_and_nothing_of_its_users() -> None:
    chunks, chain = made("a")
    flags = ("--log-format", "json", "--log-level", "debug")
    with pool_process.short_directory() as place, pool_process.running_pool(place, *flags) as pool:
        with PatientClient(pool.socket) as client:
            client.store(chain, [chunk.payload for chunk in chunks])
            with client.load(chain):
                pass
        assert main(["set", "dram=8MiB", "--socket", pool.socket]) == 0
        assert main(["clear", "--all", "--yes", "--socket", pool.socket]) == 0
        pool.signal(signal.SIGHUP)  # does not end it
        assert main(["stats", "--socket", pool.socket]) == 0
        assert pool.stop() == 0
        log = pool.log.read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    messages = [line["message"] for line in lines]
    for begun in (
        f"serving at {pool.socket}: DRAM 16 MiB",
        "resizing to DRAM 8 MiB, as process ",
        "caps changed.",
        "clearing everything, as process ",
        "removed ",  # from DRAM what the smaller cap has left there, and from the drive
        "SIGTERM: the pool ends",
        f"the pool at {pool.socket} has ended",
    ):
        assert [text for text in messages if text.startswith(begun)], (begun, log)
    assert {line["level"] for line in lines} >= {"debug", "info"}
    for key in chain.keys:
        assert key.hex()[:16] not in log
        assert str(key)[2:20] not in log


def test_a_level_leaves_out_what_is_below_it() -> None:
    with (
        pool_process.short_directory() as place,
        pool_process.running_pool(place, "--log-level", "error", disk=False) as pool,
    ):
        assert pool.stats()
        assert pool.stop() == 0
        assert pool.log.read_text() == ""
