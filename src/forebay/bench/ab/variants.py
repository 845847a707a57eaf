"""What is compared: a server that we start, without or with a pool, or one that runs."""

import asyncio
import contextlib
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from forebay.bench import processes
from forebay.bench.ab.counters import Counters
from forebay.bench.load import client, server
from forebay.bench.load.client import Failed, Target
from forebay.bench.load.sessions import SyntheticText
from forebay.bench.load.steps import NO_POOL, Counted
from forebay.bench.processes import PoolProcess, ServerProcess
from forebay.bench.result import machine
from forebay.engines.start import vllm
from forebay.errors import StartupError
from forebay.pool.client import Client
from forebay.settings import DiskSetting, Settings
from forebay.sys.scratch import scratch

Say = Callable[[str], None]  # what is being done, for whoever watches
_SHARES_S: Final = 900.0  # until an engine shares: it hashes its model's weights first
_SHARES_LOOK_S: Final = 0.5
_SHARES_TOKENS: Final = 1600  # more than a chunk


class OpenServer(NamedTuple):
    """A server that answers."""

    target: Target
    counted: Counted
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class StartingServer(NamedTuple):
    """A server that was started and may not answer yet."""

    process: ServerProcess
    target: Target
    counted: Counted
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VllmServer:
    """How vLLM is started, the same in every variant."""

    model: str  # a directory or a hub's name
    served_name: str
    arguments: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)
    variables: Mapping[str, str] = field(default_factory=dict)
    is_offline: bool = False
    timeout_s: float = client.REQUEST_S


@dataclass(frozen=True, slots=True)
class StartedServer:
    """vLLM, started for the measurement and ended with it."""

    name: str
    engine: VllmServer
    arguments: tuple[str, ...] = ()  # of this variant alone
    has_pool: bool = False
    disks: tuple[DiskSetting, ...] = ()  # parents: each run has fresh directories inside

    @contextlib.contextmanager
    def opened(self, say: Say) -> Iterator[OpenServer]:
        """The server with empty caches, and its pool; StartupError if it cannot start."""
        notes = machine.other_load()
        with contextlib.ExitStack() as stack:
            pool = None
            if self.has_pool:
                say("starting a pool")
                disks = [
                    DiskSetting(str(stack.enter_context(scratch(disk.path))), disk.cap_bytes)
                    for disk in self.disks
                ]
                pool = stack.enter_context(processes.running_pool(self.engine.settings.dram, disks))
            say(f"starting {self.name}")
            begun = stack.enter_context(self.starting(pool))
            begun.process.wait()
            if pool is not None:
                wait_until_sharing(begun.target, begun.counted, say)
            yield OpenServer(begun.target, begun.counted, begun.commands, notes)

    @contextlib.contextmanager
    def starting(self, pool: PoolProcess | None) -> Iterator[StartingServer]:
        """The server before it answers, so that several can load their models at once."""
        port = processes.free_port()
        wanted = self.engine
        transfer = None if pool is None else vllm.transfer_config(wanted.settings, pool.socket)
        command = vllm.command(self._words(port), transfer)
        base = {**os.environ, **wanted.variables}
        variables = vllm.environment(wanted.settings, base, offline=wanted.is_offline)
        with contextlib.ExitStack() as stack:
            # A pool without clients would end by itself while the model is loaded.
            watch = None if pool is None else stack.enter_context(pool.client())
            home = stack.enter_context(scratch(tempfile.gettempdir()))
            process = ServerProcess.start(command, variables, port, home / "engine.log")
            stack.callback(process.end)
            target = Target(process.endpoint, wanted.served_name, wanted.timeout_s)
            counted: Counted = NO_POOL if watch is None else Counters(watch)
            yield StartingServer(process, target, counted, (shlex.join(command),))

    def _words(self, port: int) -> list[str]:
        return [
            *("--model", self.engine.model, "--served-model-name", self.engine.served_name),
            *("--host", processes.HOST, "--port", str(port)),
            *self.engine.arguments,
            *self.arguments,
        ]


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that somebody else runs, with its pool's socket, if known."""

    name: str
    target: Target
    socket: str | None = None

    @contextlib.contextmanager
    def opened(self, say: Say) -> Iterator[OpenServer]:
        """The server; its caches are not emptied, so no text is used twice."""
        say(f"asking {self.name}")
        if self.socket is None:
            yield OpenServer(self.target, NO_POOL)
            return
        with Client(self.socket) as watch:
            if not watch.join():
                raise StartupError(f"the pool at {self.socket} cannot be joined: {watch.why}")
            yield OpenServer(self.target, Counters(watch))


Variant = StartedServer | RunningServer


def wait_until_sharing(
    target: Target, counted: Counted, say: Say, tokens: int = _SHARES_TOKENS
) -> None:
    """Send prompts until the pool has stored one: an engine hashes its weights first."""
    say("waiting until the engine has stored its first chunk")
    counted()
    until = time.monotonic() + _SHARES_S
    attempt = 0
    while time.monotonic() < until:
        text = SyntheticText().text(f"sharing/{attempt}", tokens)
        answer = asyncio.run(client.ask(target, [{"role": "user", "content": text}], 2))
        if isinstance(answer, Failed):
            raise server.cannot_begin(answer, "a first test request failed")
        moved = counted()
        if moved is None:
            raise StartupError("the pool went away.")
        if moved.stored_chunks:
            return
        attempt += 1
        time.sleep(_SHARES_LOOK_S)
    raise StartupError(
        f"the engine stored nothing in the pool within {_SHARES_S:.0f} s; its log may say why."
    )
