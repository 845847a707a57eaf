"""Tests as `mutate.py` runs them: in a copy of the tree, until one fails, for a limited time."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

HANG_S: Final = 240  # of one test; that all together take long says nothing about a mutant
RUN_S: Final = 7200  # of all tests together
# Of servers and engines that other targets install; what takes seconds each is not tried 150 times.
ELSEWHERE: Final = ("slow", "long", "gpu", "models", "stores", "hosts", "versions", "sglang")
REAL: Final = (
    "engines/vllm/real",
    "engines/vllm/gpu",
    "engines/sglang/real",
    "tiers/remote/stores",
)
NUMPY: Final = ("engines/vllm", "engines/copies", "engines/codec")  # cannot be read without it
TAIL: Final = 300  # characters of what pytest says


class Python(NamedTuple):
    """What runs tests."""

    program: str
    has_vllm: bool = False


class Failed(NamedTuple):
    """A test that failed."""

    test: str
    is_late: bool = False  # it was ended because it took too long


class Unclear(NamedTuple):
    """The run says nothing about any test."""

    why: str


class Tests:
    """Runs tests; several threads may."""

    def __init__(self, workers: int) -> None:
        self._workers = workers  # of a traced run
        self._lock = threading.Lock()  # guards what follows
        self._running: set[int] = set()  # process groups
        self._is_over = False

    def run(
        self, tree: Path, where: Sequence[str], python: Python, left_out: Sequence[str] = ()
    ) -> Failed | Unclear | None:
        """The first fast test that fails of these, or in these directories; None if all pass."""
        without = [word for test in left_out for word in ("--deselect", test)]
        status, said = self._pytest(tree, ["-x", "--tb=line", *without, *where], python)
        failed = re.search(r"^FAILED (.+?)(?: - .*)?$", said, re.MULTILINE)
        error = re.search(r"^ERROR (\S+::.+?)(?: - .*)?$", said, re.MULTILINE)
        if status in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            return None
        if status == pytest.ExitCode.TESTS_FAILED and (noticed := failed or error):
            return Failed(noticed[1], is_late="Timeout (>" in said)
        return Unclear(f"pytest ended with {status}: {' '.join(said[-TAIL:].split())}")

    def trace(
        self, tree: Path, files: Sequence[str], python: Python, environment: Mapping[str, str]
    ) -> str:
        """Run all of these with the plugin; pytest's last line."""
        words = ["-n", str(self._workers), "--tb=no", "-p", "tools.tests_that_ran", *files]
        _, said = self._pytest(tree, words, python, environment)
        return said.strip().rpartition("\n")[2]

    def end(self) -> None:
        """End what still runs, and let nothing begin."""
        with self._lock:
            self._is_over = True
            for group in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)

    def _pytest(
        self,
        tree: Path,
        words: Sequence[str],
        python: Python,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int | str, str]:
        given = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (str(tree / "src"), str(tree), given)))
        elsewhere = ELSEWHERE if python.has_vllm else (*ELSEWHERE, "vllm")
        ignored = REAL if python.has_vllm else (*REAL, *NUMPY)
        command = [python.program, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-o", f"timeout={HANG_S}", "-o", "timeout_method=signal"]
        command += ["-m", f"not ({' or '.join(elsewhere)})"]
        command += [f"--ignore=tests/{directory}" for directory in ignored]
        command += ["-W", "default"] if python.has_vllm else []
        with tempfile.TemporaryFile("w+") as said:
            running = self._begin(
                [*command, *words], tree, {"PYTHONPATH": path, **(environment or {})}, said.fileno()
            )
            status: int | str
            try:
                status = running.wait(RUN_S)
            except subprocess.TimeoutExpired:
                status = f"no answer for {RUN_S} s"
            finally:
                self._end(running)
            said.seek(0)
            return status, said.read()

    def _begin(
        self, command: Sequence[str], tree: Path, environment: Mapping[str, str], output: int
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_over:
                raise KeyboardInterrupt
            running = subprocess.Popen(
                command,
                cwd=tree,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
            self._running.add(running.pid)
            return running

    def _end(self, running: subprocess.Popen[bytes]) -> None:
        """End what a mutant may have left behind, too."""
        with self._lock:
            self._running.discard(running.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        running.wait()
