"""vLLM's own server as the rows and the tests on a GPU ask it: with token ids, and no tokenizer.

The server is in development mode, on the loopback address, so that its prefix cache can be emptied
and its worker be asked for counters. What fails is a StartupError with the end of the server's log.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from forebay.bench.load import client
from forebay.bench.load.client import Completion, Failed, Target
from forebay.bench.load.vocabulary import Vocabulary
from forebay.bench.processes import HOST, ServerProcess, free_port
from forebay.engines.start import vllm
from forebay.errors import StartupError
from forebay.settings import Settings

_ANSWER_S: Final = 240.0
_CLEAR_TRIES: Final = 100
_CLEAR_PAUSE_S: Final = 0.02
_EXTENSION: Final = "forebay.engines.vllm.bench.worker.CountsExtension"
_NAME: Final = "bench"
_VARIABLES: Final = {"VLLM_SERVER_DEV_MODE": "1"}
_COUNTER: Final = re.compile(
    r'^forebay:(\w+)_total\{(?:.*(?:unit|reason|kind|event)="([^"]*)")?.*\} ([0-9.eE+-]+)$',
    re.MULTILINE,
)
_HOOKS: Final = re.compile(r"^forebay:hook_seconds_sum\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)


class TokenEngine:
    """One server under way. Used in one event loop."""

    def __init__(self, server: ServerProcess, vocabulary: Vocabulary) -> None:
        self.target = Target(server.endpoint, _NAME, _ANSWER_S, vocabulary=vocabulary)
        self._server = server

    @classmethod
    async def start(
        cls,
        arguments: Mapping[str, Any],
        log: Path,
        variables: Mapping[str, str] | None = None,
        vocabulary: int = 1 << 10,
    ) -> Self:
        """A server that answers; `arguments` are vLLM's, with underscores."""
        port = free_port()
        fixed = {"host": HOST, "port": port, "served_model_name": _NAME}
        fixed |= {"worker_extension_cls": _EXTENSION, "enable_prompt_tokens_details": True}
        fixed |= {"disable_uvicorn_access_log": True}
        command = vllm.command(flags({**fixed, **arguments}), None)
        base = {**os.environ, **_VARIABLES, **(variables or {})}
        server = ServerProcess.start(
            command, vllm.environment(Settings(), base, offline=True), port, log
        )
        engine, is_up = cls(server, Vocabulary(vocabulary)), False
        try:
            await asyncio.to_thread(server.wait)
            is_up = True
        finally:
            if not is_up:
                await engine.stop()
        return engine

    async def ask(self, prompt: Sequence[int], answer_tokens: int) -> Completion:
        """Get an answer of exactly this many tokens, greedily. If cancelled, it is aborted."""
        answer = await client.ask_tokens(self.target, prompt, answer_tokens)
        if isinstance(answer, Failed):
            raise StartupError(f"a request failed: {answer.why}; {self._server.last_lines()}")
        return answer

    async def clear_cache(self) -> None:
        for _ in range(_CLEAR_TRIES):
            # Blocks of a request that has just been answered may still be in use.
            if (await self._post("/reset_prefix_cache"))["success"]:
                return
            await asyncio.sleep(_CLEAR_PAUSE_S)

    async def counts(self) -> dict[str, int]:
        """Forebay's counters in this engine's scheduler and worker; see docs/serve.md."""
        text = (await self._fetch("/metrics", "GET")).decode(errors="replace")
        found: dict[str, int] = {}
        for metric, label, value in _COUNTER.findall(text):
            word = metric.removesuffix("_skipped")
            found[f"{word}.{label}" if label else word] = round(float(value))
        if hooks := _HOOKS.findall(text):
            found["hooks_us"] = round(sum(map(float, hooks)) * 1e6)
        return {**found, **await self.call("forebay_counts")}

    async def call(self, method: str) -> Any:  # noqa: ANN401 - whatever it answers
        """The result of a method of the worker's extension, as JSON."""
        return (await self._post("/collective_rpc", {"method": method}))["results"][0]

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.end)

    def kill(self) -> None:
        self._server.kill()

    async def _post(self, path: str, body: object = None) -> dict[str, Any]:
        found = msgspec.json.decode(await self._fetch(path, "POST", body))
        assert isinstance(found, dict)
        return found

    async def _fetch(self, path: str, method: str, body: object = None) -> bytes:
        found = await client.fetch(self.target.endpoint, path, _ANSWER_S, method, body)
        if isinstance(found, Failed):
            raise StartupError(f"{path} failed: {found.why}; {self._server.last_lines()}")
        return found


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as on a command line: switches, JSON for dictionaries, everything else as text."""
    flags: list[str] = []
    for name, value in arguments.items():
        flags.append(f"--{name.replace('_', '-')}")
        if value is not True:
            flags.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return flags
