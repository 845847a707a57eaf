"""What a pool's process meets besides its socket and its files: signals, and a log nobody reads."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.pool_process import (
    HANG_S,
    PatientClient,
    PoolProcess,
    environment,
    made,
    running_pool,
    wait_until,
)

from forebay.cli.pool.log import LINES_MAX
from forebay.pool.client import Known, Receipt

CHUNKS, CHAIN = made("alone")


def test_signals_that_mean_nothing_do_not_end_a_pool(place: Path) -> None:
    """A9: SIGHUP, SIGUSR1 and SIGUSR2 ended it, each for every engine of the host."""
    with running_pool(place, disk=False) as pool, PatientClient(pool.socket) as client:
        client.store(CHAIN, [chunk.payload for chunk in CHUNKS])
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            pool.signal(number)
        with PatientClient(pool.socket) as other:
            assert other.lookup(CHAIN) == Known(4, 4)
        assert pool.stop() == 0, "SIGTERM still does"


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes not one byte more: its two ends."""
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(write_end, False)
        with suppress(BlockingIOError):
            while True:
                os.write(write_end, bytes(fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ)))
        with suppress(BlockingIOError):
            while True:
                os.write(write_end, b"\n")
        os.set_blocking(write_end, True)
        yield read_end, write_end
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_log_that_nobody_reads_stops_no_pool(place: Path) -> None:
    """A8: the pool waited in `write` for a reader of its stderr, and all engines with it."""
    pool = PoolProcess(place, disk=False)
    with full_pipe() as (read_end, write_end):
        process = pool.process = subprocess.Popen(
            pool.command, stdin=subprocess.DEVNULL, stderr=write_end, env=environment()
        )
        try:
            with PatientClient(pool.socket) as client:
                wait_until(client.join, "the pool to answer")
                receipt = client.store(CHAIN, [chunk.payload for chunk in CHUNKS])
                assert receipt == Receipt(stored=4)
            process.terminate()
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()
            process.wait(HANG_S)
        os.set_blocking(read_end, False)
        assert not os.read(read_end, 1 << 24).strip(b"\0\n"), "it was full all the time"


TALKER = """
import logging
from forebay.cli import logs
from forebay.cli.pool.log import LINES_MAX, LogWriter

writer = LogWriter()
logs.start("%(message)s", writer)
for number in range(2 * LINES_MAX):
    logging.warning(f"line {number}")  # each a reason of its own, so that none is too many
print("said", flush=True)
input()
while not writer._lines.empty():
    pass
logging.warning("the last one")
writer.drain(60.0)
"""


def test_lines_that_find_no_room_in_the_log_are_counted() -> None:
    with full_pipe() as (read_end, write_end):
        process = subprocess.Popen(
            [sys.executable, "-c", TALKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=write_end,
            env=environment(),
        )
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"said\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        text = ""
        while "the last one" not in text:
            text += os.read(read_end, 1 << 16).decode().strip("\0")
        assert process.wait(HANG_S) == 0
        process.communicate()
    left_out = re.search(r"^(\d+) lines were left out", text, re.MULTILINE)
    assert left_out is not None
    assert len(re.findall(r"^line \d+$", text, re.MULTILINE)) + int(left_out[1]) == 2 * LINES_MAX
