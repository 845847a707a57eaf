"""Processes: watching, starting and ending them, waking a sleeping loop; their descriptors."""

import contextlib
import ctypes
import hashlib
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_SET_PDEATHSIG: Final = 1  # of prctl
_STARTED: Final = 19  # the field of /proc/PID/stat, counted after the name
_SPAWN_S: Final = 30.0  # time for an interpreter that imports from a cold disk


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process has exited; OSError if that fails."""
    return os.pidfd_open(pid)


def has_exited(pidfd: int) -> bool:
    """Whether the process behind a pidfd is gone."""
    return is_readable(pidfd)


def close(descriptor: int) -> None:
    """Close a descriptor."""
    os.close(descriptor)


def is_locked(path: str) -> bool:
    """Whether a process that we can see has an exclusive lock on a file; takes no lock itself."""
    try:
        status = Path(path).stat()
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False
    device = status.st_dev
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    return any(wanted in line.split() for line in locks.splitlines())


def allow_descriptors() -> None:
    """Raise this process's limit of descriptors as far as allowed; each region needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def limit_memory(size_bytes: int) -> None:
    """Limit this process's own memory; memory that others share with it does not count."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))


class SpareDescriptor:
    """A descriptor kept in reserve for when no other is left."""

    def __init__(self) -> None:
        self._descriptor = -1
        self.keep()

    def keep(self) -> None:
        """Open the spare descriptor again, if possible."""
        if self._descriptor < 0:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def give(self) -> None:
        """Close the spare descriptor, so that the next one opened takes its place."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Wake:
    """Lets any thread wake another one from a select; calls before it looks count as one."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __call__(self) -> None:
        """Wake the loop; safe on any thread, in a signal handler, and after close."""
        with contextlib.suppress(OSError, ValueError):  # the descriptor may be closed
            os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """To be called by the loop before it looks for work."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Close the descriptor; nobody may sleep on it any more."""
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)


def spawn(module: str, arguments: Sequence[str], fds: Sequence[int], log: int) -> int:
    """Run `python -m module` in a session of its own; it has to call `outlive` early.

    Inherits only `fds`: a driver's descriptor that it kept open would keep a dead engine's memory.
    Returns the exit status of the started process: 0 once its child goes on without it.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    with subprocess.Popen(  # its child goes on, and is not waited for
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=list(fds),
        start_new_session=True,
        cwd="/",
        env={name: value for name, value in os.environ.items() if not _is_ours(name)},
    ) as process:
        try:
            return process.wait(_SPAWN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(_SPAWN_S)


def host_name(salt: str) -> str:
    """A name of this machine among others, of letters, digits, dots and dashes.

    Stays the same as long as the machine's name, its machine id and the salt do.
    """
    name = socket.gethostname()
    try:
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        machine = ""
    named = os.fsencode(f"{name}\0{machine}\0{salt}")  # a path may be any bytes
    digest = hashlib.blake2b(named, digest_size=4).hexdigest()
    plain = re.sub("[^0-9A-Za-z-]", "-", name)[:40].strip("-") or "host"
    return f"{plain}-{digest}"


class ChildProcess:
    """A child `python -m module` that inherits `fds` and our stderr; OSError if it cannot start."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        fds: Sequence[int],
        *,
        is_apart: bool = False,
    ) -> None:
        """`is_apart`: signals that a terminal sends to a command's processes do not reach it."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=list(fds),
            start_new_session=is_apart,
            env={name: value for name, value in os.environ.items() if not _is_ours(name)},
        )
        self.pid = self._process.pid
        try:
            self.descriptor = open_pidfd(self.pid)  # becomes readable when it has exited
        except OSError:
            self.kill()
            self._process.wait()
            raise

    def kill(self) -> None:
        """Kill the process; it exits as soon as the kernel can end it."""
        self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait until the process has exited, or until the time is over."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def has_exited(self) -> bool:
        """Whether the process has exited, so that all it had open and mapped is released."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Close the descriptor."""
        close(self.descriptor)


class SessionProcess:
    """A command in a session of its own, with all that it starts; it outlives us."""

    def __init__(self, pid: int, started: int, descriptor: int) -> None:
        self.pid, self.started = pid, started  # the second tells it from others with the same pid
        self._descriptor = descriptor  # readable when it has exited
        self._exited = False

    @classmethod
    def start(
        cls, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> "SessionProcess":
        """Start a command that writes to `log`; OSError if that fails."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            made = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                env=dict(environment),
            )
        finally:
            os.close(descriptor)
        made.returncode = 0  # it is not waited for by Popen, and may outlive us
        found = cls.find(made.pid, _started_at(made.pid))
        if found is None:
            raise OSError("it ended at once")
        return found

    @classmethod
    def find(cls, pid: int, started: int) -> "SessionProcess | None":
        """A process that was started before, by us or by others; None if it is gone."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        if _started_at(pid) != started:
            os.close(descriptor)
            return None
        return cls(pid, started, descriptor)

    def has_exited(self) -> bool:
        """Whether the command itself has exited; what it started may live."""
        if not self._exited and is_readable(self._descriptor):
            self._exited = True
            with contextlib.suppress(ChildProcessError):  # it is not our child
                os.waitpid(self.pid, os.WNOHANG)
        return self._exited

    def terminate(self) -> None:
        """Ask the command to end."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the command and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether the command and all that it started are gone."""
        if not self.has_exited():
            return False
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        """Close the descriptor; the process goes on."""
        os.close(self._descriptor)


def is_readable(descriptor: int) -> bool:
    """Whether there is something to read now; works for descriptors of any number."""
    poll = select.poll()  # select takes no descriptor from 1024 on
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def wait_readable(descriptors: Sequence[int], timeout_s: float) -> None:
    """Wait until one of these descriptors can be read, or the time is over."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(timeout_s * 1000)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _is_ours(name: str) -> bool:
    """Whether a variable is one of our settings, which are passed as flags instead."""
    return name.startswith("FOREBAY_")


def outlive() -> None:
    """Detach from the process that started us: it sees exit status 0, and we go on.

    Only for a process without threads.
    """
    if os.fork():
        os._exit(0)


def _started_at(pid: int) -> int:
    """When a process started, in ticks since the machine did; 0 if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[_STARTED])
