"""Hosts as network namespaces of this machine: a store's, and those that share through it.

A host has a network and mounts of its own, and the machine's files and processes. Namespaces have
no names: they are held by a process that ends with the tests, however these end, and take their
links and mounts with them. So does every process that is started on a host. Needs root and `ip`.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

_DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--")
_SWITCH: Final = "switch"
WORD: Final = b"begun\n"


class Host:
    """A namespace of network and mounts, reached at one address."""

    def __init__(self, name: str, number: int) -> None:
        """Begin; `number` is the last of the address."""
        self.name, self.address = name, f"10.0.0.{number}"
        self.port = f"to-{name}"  # of the switch
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", *_DIES_WITH_US, "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(WORD)
        self._holder.stdin.flush()
        assert self._holder.stdout.readline() == WORD, f"host {name} needs root"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    @property
    def holder(self) -> int:
        """The process whose namespaces are the host's."""
        return self._holder.pid

    @property
    def enter(self) -> list[str]:
        """What stands before a command that is to run there."""
        target = ["--target", str(self.holder), "--net", "--mount"]
        return ["nsenter", *target, f"--wd={Path.cwd()}", "--", *_DIES_WITH_US]

    def run(self, *words: str | Path) -> None:
        """A command that must succeed."""
        command = [*self.enter, *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, (words, ended.stdout, ended.stderr)

    def ip(self, *words: str) -> None:
        """Change the host's network."""
        self.run("ip", *words)


class Network(NamedTuple):
    """All hosts; the switch is in that of the store."""

    store: Host
    a: Host
    b: Host

    def cut(self, *hosts: Host) -> None:
        """Take the cables of these hosts out: what they send is lost, and nobody tells them."""
        for host in hosts:
            self.store.ip("link", "set", host.port, "down")

    def heal(self) -> None:
        """Put all cables back."""
        for host in (self.a, self.b):
            self.store.ip("link", "set", host.port, "up")


@contextmanager
def connected() -> Iterator[Network]:
    """Three hosts, until the block is left."""
    with ExitStack() as close:
        hosts = [
            close.enter_context(Host(name, number))
            for number, name in enumerate(("store", "a", "b"), 1)
        ]
        network = Network(*hosts)
        store = network.store
        store.ip("link", "add", _SWITCH, "type", "bridge")
        for host in (network.a, network.b):
            peer = ("peer", "name", "eth0", "netns", str(host.holder))
            store.ip("link", "add", host.port, "type", "veth", *peer)
            store.ip("link", "set", host.port, "master", _SWITCH, "up")
        for host, link in ((store, _SWITCH), (network.a, "eth0"), (network.b, "eth0")):
            host.ip("link", "set", "lo", "up")
            host.ip("address", "add", f"{host.address}/24", "dev", link)
            host.ip("link", "set", link, "up")
        yield network


def is_possible() -> bool:
    """Whether this process may make hosts at all."""
    return os.geteuid() == 0


def started(host: Host, words: Sequence[str | Path], log: Path) -> "subprocess.Popen[bytes]":
    """A process on a host, in a group of its own with whatever it starts."""
    with log.open("ab") as output:
        command = [*host.enter, *map(str, words)]
        return subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, process_group=0
        )
