"""One vLLM engine in a process of its own, as a test has it in hand."""

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.vllm.real import engine_process, forked
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import PoolProcess

HANG_S = 300.0  # a wait that takes longer is one that does not end, however busy the machine is
ANSWER = 24  # tokens
KV_BYTES = 6 << 20  # of an engine's own KV cache: 4096 tokens of the first model
SHIPPED_STEP_WAIT_S = 0.001  # for which a step waits for the pool, where users run it
# What is tested here is not how soon a busy machine answers, nor which is sooner, a disk or a model
# as small as these.
NO_DEADLINES = {
    "min_tokens": 128,
    "lookup_deadline_ms": HANG_S * 1000,
    "load_deadline_ms": HANG_S * 1000,
    "always_load": True,
}


@dataclass
class Answer:
    tokens: Tokens
    cached: int  # tokens of the prompt that were not computed, wherever they came from
    first_step: int = 0  # that told of a token of it
    last_step: int = 0


class Engine:
    """An engine, with or without a pool; `options` are those of vLLM's LLM class."""

    def __init__(
        self,
        model: Path,
        pool: PoolProcess | None = None,
        *,
        has_core_process: bool = False,  # as where it serves; else steps can be counted
        recorded: Path | None = None,
        settings: dict[str, Any] | None = None,  # of the connector; they may name a pool as well
        log: Path | None = None,  # of what it prints; else that belongs to the test
        step_wait_s: float = HANG_S,  # a chunk whose blocks are free waits so long for its slot
        variables: dict[str, str] | None = None,  # of its environment, beside those of all
        network: int | None = None,  # the process whose network it has; else the test's
        **options: Any,
    ) -> None:
        if pool is not None:
            settings = {"socket": pool.socket, **(settings or {})}
        wanted = {
            "settings": None if settings is None else {**NO_DEADLINES, **settings},
            "has_core_process": has_core_process,
            "recorded": None if recorded is None else str(recorded),
            "log": None if log is None else str(log),
            "step_wait_s": step_wait_s,
            "variables": variables or {},
            "network": network,
            "options": {"model": str(model), "kv_cache_memory_bytes": KV_BYTES, **options},
        }
        self.process, self._pipe = forked.start(engine_process.run, wanted)
        assert self._receive() == "ready"

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def generate(
        self, prompts: list[Tokens], answer: int = ANSWER, *, pause: str = "", **each: Any
    ) -> list[Answer]:
        """Answer all at once; `each` goes with every prompt."""
        return self.ask([{"tokens": tokens, **each} for tokens in prompts], answer, pause)

    def ask(
        self, prompts: list[dict[str, Any]], answer: int = ANSWER, pause: str = ""
    ) -> list[Answer]:
        told = self.do("generate", prompts=prompts, answer=answer, pause=pause)
        return [Answer(**each) for each in told]

    def do(self, command: str, **more: Any) -> Any:
        """One of the commands of engine_process.py."""
        self._pipe.send((command, more))
        return self._receive()

    def empty_cache(self) -> None:
        """Forget all KV of its own, so that what comes back comes from the pool."""
        assert self.do("settle")
        assert self.do("empty_cache")

    def share(self, pool: PoolProcess, tokens: int = 300) -> None:
        """Wait until the engine knows its namespace: until then it shares nothing.

        `tokens`: of each prompt, more than a chunk.
        """
        before, seed, until = stored_chunks(pool), 10_000, time.monotonic() + HANG_S
        while stored_chunks(pool) == before:
            assert time.monotonic() < until, "the engine shares nothing"
            seed += 1
            self.generate(dialogs(1, tokens, seed), answer=2)

    def rejoin(self) -> None:
        """Wait until the engine has found the pool that was started after another."""
        until = time.monotonic() + HANG_S
        self.generate(dialogs(1, 20), answer=2)  # it notices the end of the old one
        while not self.do("state")["is_joined"]:
            assert time.monotonic() < until, "the new pool is not joined"
            time.sleep(0.02)
            self.generate(dialogs(1, 20), answer=2)

    def kill(self) -> None:
        """As an engine dies: with all of its processes, at once."""
        os.killpg(self.pid, 9)
        self.process.join()
        self._pipe.close()

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self.process.join()
            raise AssertionError(f"the engine ended with {self.process.exitcode}") from None


@dataclass
class RecordedPages:
    """What recording_connector.py has written: every page loaded must be one that was stored."""

    file: Path
    loaded: int = 0
    wrong: int = 0

    def check(self) -> None:
        """Count all of it, so far."""
        self.loaded = self.wrong = 0
        stored = defaultdict(set)
        for line in self.file.read_text().splitlines():
            what, name, digest = line.split()
            if what == "stored":
                stored[name].add(digest)
            else:
                self.loaded += 1
                self.wrong += digest not in stored[name]


def stored_chunks(pool: PoolProcess) -> int:
    """How many chunks engines have stored since the pool began."""
    return pool.number("operations", tier="dram", direction="store")


def tokens_of(answers: list[Answer]) -> list[Tokens]:
    return [answer.tokens for answer in answers]


def cached_of(answers: list[Answer]) -> int:
    return sum(answer.cached for answer in answers)
