"""Engine processes that the gateway starts, and finds again after it was killed.

Each process runs in a session of its own and is noted in a file of `state_dir` before anything
depends on it: its number and start time, which together identify it, a hash of its command, the
level at which it sleeps, and a hash of its weights. When the gateway ends, in whatever way, the
process goes on. A file that cannot be read counts as missing. Not thread-safe; calls do not block.
"""

import asyncio
import fcntl
import hashlib
import logging
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forebay.errors import StartupError
from forebay.gateway.config import EngineSetting, GatewayConfig
from forebay.gateway.swap.plan import Rest
from forebay.sys.processes import SessionProcess

_STOP_S: Final = 30.0  # that a process has to end by itself
_LOOK_S: Final = 0.1
_log: Final = logging.getLogger(__name__)


class EngineNote(msgspec.Struct, frozen=True):
    """The content of an engine's file."""

    pid: int
    started: int
    command_sha256: str
    rest: str = Rest.LEVEL_1  # how it sleeps, if it does
    weights_sha256: str = ""


class StateDirectory:
    """The directory of one gateway's notes and its engines' logs, locked while the gateway runs."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.path.stat()
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(f"state_dir {path} cannot be used: {error.strerror}.") from None
        self._descriptor = descriptor
        # Whoever can write to it could have any process stopped.
        why = ""
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            why = f"state_dir {path} must be yours, and writable for you alone."
        elif not _try_lock(descriptor):
            why = f"another gateway uses state_dir {path}; stop it first."
        if why:
            self.close()
            raise StartupError(why)

    def close(self) -> None:
        """Release the lock, so that another gateway can use the directory."""
        os.close(self._descriptor)


class OwnedEngine:
    """The process of one engine, and its note."""

    def __init__(self, setting: EngineSetting, directory: StateDirectory) -> None:
        self._setting = setting
        self._file = directory.path / f"{setting.name}.json"
        self.log = directory.path / f"{setting.name}.log"
        self._command = command_of(setting)
        self._digest = hashlib.sha256(msgspec.json.encode(self._command)).hexdigest()
        self.note: EngineNote | None = None
        self._process: SessionProcess | None = None

    def find(self) -> bool:
        """Find the process that an earlier gateway started; True if its command is the same."""
        try:
            note = msgspec.json.decode(self._file.read_bytes(), type=EngineNote)
        except (OSError, msgspec.DecodeError):
            return False
        process = SessionProcess.find(note.pid, note.started)
        if process is None:
            return False
        self.note, self._process = note, process
        return note.command_sha256 == self._digest

    def start(self) -> str:
        """Start and note the process; returns why that failed, or an empty text."""
        assert self._process is None
        # Users of this gateway cannot reach the endpoints that this mode opens. Its weights stay
        # the same, so its KV in the pool stays valid.
        more = {"VLLM_SERVER_DEV_MODE": "1", "FOREBAY_KEEP_ON_RESET": "true"}
        try:
            process = SessionProcess.start(self._command, self.log, {**os.environ, **more})
        except OSError as error:
            return f"its command cannot be run: {error.strerror or error}"
        try:
            self.write(EngineNote(process.pid, process.started, self._digest))
        except OSError as error:
            process.kill()  # no later gateway would find it
            process.close()
            return f"its process cannot be noted: {error.strerror}"
        self._process = process
        return ""

    def write(self, note: EngineNote) -> None:
        """Replace the note; OSError."""
        self.note = note
        part = self._file.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(note))
        part.replace(self._file)

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and not self._process.has_exited()

    async def stop(self) -> None:
        """End the process and its children; then its GPU memory is free."""
        process = self._process
        if process is None:
            return
        process.terminate()
        if not await _until_gone(process):
            process.kill()
            await _until_gone(process)
        process.close()
        self._process = self.note = None
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:  # it names a process that is gone
            _log.warning("%s cannot be removed: %s", self._file, error.strerror)


async def stop_engines(config: GatewayConfig) -> list[str]:
    """Stop the engines that this file's gateway left; their names. StartupError if it runs."""
    owned = [engine for engine in config.engines if engine.command]
    if not owned:
        return []
    directory = StateDirectory(config.state_dir)
    stopped = []
    for setting in owned:
        engine = OwnedEngine(setting, directory)
        engine.find()
        if engine.is_running:
            stopped.append(setting.name)
        await engine.stop()
    directory.close()
    return stopped


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _until_gone(process: SessionProcess) -> bool:
    for _ in range(round(_STOP_S / _LOOK_S)):
        if process.has_exited():
            process.kill()  # the children that it left behind
        if process.is_gone():
            return True
        await asyncio.sleep(_LOOK_S)
    return False


def command_of(setting: EngineSetting) -> list[str]:
    """An engine's command, with host and port from its url, so that only this host reaches it."""
    parts = urlsplit(setting.url)
    where = ["--host", str(parts.hostname), "--port", str(parts.port)]
    return [*setting.command, *where]
