"""A service of the compose file without a container runtime: as it is confined, on this machine.

It has namespaces of mounts, processes and network of its own, and a root file system that is made
of this machine's `/usr` and `/etc`, the Python that runs the tests and the image's two programs,
all of it read-only. It can write to what the compose file mounts, and to nothing else. It is
another user without capabilities. What a runtime does beside that is not played: limits, of memory
or of what may be locked, and the filter of system calls. Everything ends and vanishes with the
process that holds the namespaces, which dies with the tests. Needs root, `unshare`, `nsenter`,
`setpriv` and `ip`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.deploy.manifests import DEPLOY, USER, images

import forebay

HANG_S: Final = 1200.0  # a guard: on a busy machine an engine takes minutes to start
_BEGUN: Final = b"begun\n"
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_TREES: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt")
_PYTHON: Final = "/image/python"
_SOURCE: Final = "/image/src"
_PATH: Final = f"/image/bin:{_PYTHON}/bin:/usr/local/bin:/usr/bin:/bin"
_SHM: Final = "64m"  # where the compose file names no size
_FOREBAY: Final = '#!/bin/sh\nexec python3 -m forebay.cli "$@"\n'


class Container:
    """One service; `volumes` has a directory for each name."""

    def __init__(
        self, service: Mapping[str, Any], target: str, volumes: Mapping[str, Path], place: Path
    ) -> None:
        """Begin, without the service's own process; `target` is that of its image."""
        assert service["user"] == f"{USER}:{USER}"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        place.mkdir()
        self.log = place / "log"
        self._service, image = service, images()[target]
        self._entry: list[str] = json.loads(image["ENTRYPOINT"][0])
        self._variables = dict(each.split("=", 1) for each in image.get("ENV", []))
        script = "\n".join(["set -eu", *self._mounts(place, volumes)])
        self._holder = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "--"),
                *("unshare", "--mount", "--net", "--pid", "--propagation", "private"),
                *("--fork", "--kill-child=KILL", "--", "sh", "-c", script),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(_BEGUN)
        self._holder.stdin.flush()
        assert self._holder.stdout.readline() == _BEGUN, "its root file system could not be made"
        self._first = _child(self._holder.pid)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()  # and with it the first process of the namespace, and so all others
        self._holder.communicate()
        if self._process is not None:
            self._process.kill()
            self._process.wait(HANG_S)

    def start(self, words: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """The service's own process, with a command in place of that of the compose file."""
        command = self._command([*self._entry, *words], variables or {})
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, grace_s: float = HANG_S) -> int:
        """SIGTERM, as a runtime sends it; the status with which it ended within its grace."""
        assert self._process is not None
        os.kill(_child(self._process.pid), signal.SIGTERM)
        return self._process.wait(grace_s)

    def run(self, *words: str, is_root: bool = False) -> subprocess.CompletedProcess[str]:
        """Another process in there, until it ends."""
        command = self._command(words, {}, is_root=is_root)
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)

    def is_healthy(self) -> bool:
        """What the compose file's health check finds now."""
        kind, *words = self._service["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(*words).returncode == 0

    def wait(self) -> None:
        """Until it is healthy."""
        pause_s = _seconds(self._service["healthcheck"]["interval"]) / 5
        until = time.monotonic() + HANG_S
        while not self.is_healthy():
            self.check_alive()
            assert time.monotonic() < until, f"it was never healthy: {self._said()}"
            time.sleep(pause_s)

    def check_alive(self) -> None:
        """It has not ended by itself; if it has, its last words are the failure."""
        assert self._process is not None
        assert self._process.poll() is None, self._said()

    def written(self) -> set[str]:
        """Where its file systems can be written to, as the kernel says it."""
        ended = self.run("cat", "/proc/self/mountinfo")
        mounts = [line.split()[4:6] for line in ended.stdout.splitlines()]
        return {path for path, options in mounts if "rw" in options.split(",")}

    def fetch(self, url: str, body: str = "") -> str:
        """What a server of this service answers, asked in its own network namespace."""
        ended = self.run("python3", "-I", "-c", _FETCH, url, body)
        assert ended.returncode == 0, (url, ended.stderr[-2000:], self._said())
        return ended.stdout

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else "nothing"

    def _command(
        self, words: Sequence[str], variables: Mapping[str, str], *, is_root: bool = False
    ) -> list[str]:
        """What a process in there is started with: its namespaces, user and variables."""
        target = ["--target", str(self._first), "--mount", "--net", "--pid", "--root", "--wd"]
        ids = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
        bounds = ["--inh-caps=-all", "--bounding-set=-all"]
        user = [] if is_root else ["setpriv", *ids, *bounds, "--"]
        known = {"PATH": _PATH, "PYTHONPATH": _SOURCE, "HOME": "/", **self._variables}
        named = [f"{name}={value}" for name, value in {**known, **variables}.items()]
        return ["nsenter", *target, "--", *user, "env", "-i", *named, *words]

    def _mounts(self, place: Path, volumes: Mapping[str, Path]) -> list[str]:
        """Commands that make the root file system and go there."""
        root, programs = place / "root", place / "bin"
        for made in (root, programs):
            made.mkdir()
        (programs / "forebay").write_text(_FOREBAY)
        (programs / "forebay-ready").write_text((DEPLOY / "ready.py").read_text())
        for program in programs.iterdir():
            program.chmod(0o755)
        lines = [
            f"mount -t tmpfs -o mode=755 root {root}",
            f"cd {root}",
            "mkdir proc sys dev",
            "ip link set lo up",
            "mount -t proc proc proc",
            "mount -t sysfs -o ro sysfs sys",
            *_devices(),
        ]
        shm = self._service.get("shm_size", _SHM)
        written = {"/dev/shm": f"mount -t tmpfs -o mode=1777,size={shm} shm"}
        for path in self._service["tmpfs"]:
            written[path] = "mount -t tmpfs -o mode=1777 scratch"
        for volume in self._service["volumes"]:
            name, _, path = volume.partition(":")
            written[path] = f"mount --bind {volumes[name]}"
        lines += [f"mkdir -p .{path} && {mount} .{path}" for path, mount in written.items()]
        shown = {**_trees(), "/image/bin": programs, _PYTHON: Path(sys.prefix)}
        shown[_SOURCE] = Path(forebay.__file__).parent.parent
        for path, source in shown.items():
            lines += _shown(source, path)
        lines += ["mount -o remount,bind,ro dev", "mount -o remount,bind,ro ."]
        return [*lines, "exec chroot . cat"]


_FETCH: Final = """\
import sys
from urllib.request import Request, urlopen

url, body = sys.argv[1:]
asked = Request(url, body.encode() or None, {"Content-Type": "application/json"})
print(urlopen(asked).read().decode())
"""


def _devices() -> list[str]:
    """A /dev with what any program may use."""
    bound = [f"touch dev/{name} && mount --bind /dev/{name} dev/{name}" for name in _DEVICES]
    return ["mount -t tmpfs -o mode=755 dev dev", *bound, "ln -s /proc/self/fd dev/fd"]


def _trees() -> dict[str, Path]:
    """This machine's programs and libraries, and where its Python is if that is elsewhere."""
    found = {f"/{name}": Path(f"/{name}") for name in _TREES if Path(f"/{name}").exists()}
    base = Path(sys.base_prefix).resolve()
    if base.parts[1] not in _TREES:
        found[str(base)] = base
    return found


def _shown(source: Path, path: str) -> list[str]:
    """What is there to be read, or the link that this machine has in its place."""
    if source.is_symlink():
        return [f"ln -s {source.readlink()} .{path}"]
    return [
        f"mkdir -p .{path}",
        f"mount --bind {source} .{path}",
        f"mount -o remount,bind,ro .{path}",
    ]


def _child(pid: int) -> int:
    """The one process that another has started; it may be about to."""
    until = time.monotonic() + HANG_S
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        assert time.monotonic() < until, f"process {pid} has started none"
        time.sleep(0.01)
    (child,) = found
    return int(child)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)s", text)
    assert found, text
    return int(found[1])
