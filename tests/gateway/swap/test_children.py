"""Processes of engines and what is noted of them."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from tests.pool_process import HANG_S, wait_until

from forebay.errors import StartupError
from forebay.gateway.config import EngineSetting
from forebay.gateway.swap.children import EngineNote, OwnedEngine, StateDirectory
from forebay.sys.processes import SessionProcess

LASTING = "import time; print('up', flush=True); time.sleep(1000)"


def setting(*command: str) -> EngineSetting:
    return EngineSetting("a", "m", "http://127.0.0.1:1", command=command)


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    return StateDirectory(str(tmp_path / "state"))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_of_others_is_refused(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "state"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(StartupError, match="writable for you alone"):
        StateDirectory(str(place))


def test_one_gateway_a_directory(directory: StateDirectory) -> None:
    with pytest.raises(StartupError, match="another gateway uses"):
        StateDirectory(str(directory.path))
    directory.close()
    StateDirectory(str(directory.path)).close()


def test_a_process_is_found_again_by_its_note_and_by_its_command(
    directory: StateDirectory,
) -> None:
    made = OwnedEngine(setting(sys.executable, "-c", LASTING), directory)
    assert not made.find()
    assert not made.start()
    assert made.note is not None
    pid = made.note.pid
    try:
        wait_until(lambda: "up" in made.log.read_text(), "its log", HANG_S)
        assert os.getsid(pid) == pid, "it outlives us"
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert {b"VLLM_SERVER_DEV_MODE=1", b"FOREBAY_KEEP_ON_RESET=true"} <= set(environment)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert words[-5:-1] == [b"--host", b"127.0.0.1", b"--port", b"1"]
        again = OwnedEngine(setting(sys.executable, "-c", LASTING), directory)
        assert again.find()
        assert again.is_running
        other = OwnedEngine(setting(sys.executable, "-c", "pass"), directory)
        assert not other.find(), "its command is another"
        assert other.is_running, "so it can be stopped"
    finally:
        os.killpg(pid, signal.SIGKILL)
    wait_until(lambda: not made.is_running, "its end", HANG_S)


def test_a_note_of_another_process_is_none(directory: StateDirectory) -> None:
    """Of ours, by its number, with another start."""
    made = OwnedEngine(setting("x"), directory)
    for content in (
        msgspec.json.encode(EngineNote(os.getpid(), 1, "")),
        msgspec.json.encode(EngineNote(2**22 + 1, 1, "")),
        b"{",
        b'{"pid": "x"}',
        b"\xff",
    ):
        (directory.path / "a.json").write_bytes(content)
        assert not made.find()
        assert not made.is_running


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.run(['sleep', '1000'])"
    process = SessionProcess.start([sys.executable, "-c", script], tmp_path / "log", os.environ)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(children.read_text, "its child", HANG_S)
    process.terminate()
    wait_until(process.has_exited, "the end", HANG_S)
    assert not process.is_gone(), "its child is left"
    process.kill()
    wait_until(process.is_gone, "the end of all", HANG_S)
    process.close()


def test_a_note_that_cannot_be_removed_is_no_news_of_a_process(
    directory: StateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    made = OwnedEngine(setting(sys.executable, "-c", LASTING), directory)
    assert not made.start()
    note = directory.path / "a.json"
    note.unlink()
    note.mkdir()
    asyncio.run(made.stop())
    assert not made.is_running
    assert "cannot be removed" in caplog.text
