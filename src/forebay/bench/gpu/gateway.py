"""A gateway that a row starts before its engines, and a client of it."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final

from forebay.bench.gpu import requests
from forebay.bench.gpu.run import RowRun
from forebay.bench.load import client
from forebay.bench.load.client import Completion, Failed, Target
from forebay.bench.load.vocabulary import Vocabulary
from forebay.bench.processes import HOST, ServerProcess
from forebay.engines.start import vllm
from forebay.errors import StartupError
from forebay.settings import Settings

_ANSWER_S: Final = 400.0  # includes the time to start an engine
_END_S: Final = 120.0


class GatewayClient:
    """Asks models through a gateway, for prompts that nobody has asked before."""

    def __init__(self, run: RowRun, port: int, seed: int) -> None:
        self._run, self._vocabulary = run, Vocabulary(run.scale.config["vocab_size"])
        self._endpoint = client.endpoint_of(f"http://{HOST}:{port}")
        self._seed = seed

    def prompt(self, tokens: int) -> list[int]:
        """A prompt that was never used before."""
        self._seed += 1
        return requests.prompt(self._run.scale, tokens, self._seed)

    async def ask(self, name: str, prompt: Sequence[int], answer_tokens: int = 1) -> Completion:
        target = Target(self._endpoint, name, _ANSWER_S, vocabulary=self._vocabulary)
        answer = await client.ask_tokens(target, prompt, answer_tokens)
        if isinstance(answer, Failed):
            raise StartupError(f"a request failed: {answer.why}.")
        return answer


def variables(run: RowRun) -> dict[str, str]:
    """The environment of processes that a row starts."""
    return vllm.environment(Settings(), {**os.environ, **run.scale.variables}, offline=True)


@contextlib.asynccontextmanager
async def running_gateway(run: RowRun, name: str, text: str, port: int) -> AsyncIterator[None]:
    """A gateway by this file, that answers at this port; the engines that it starts end with it."""
    place = run.directory(name)
    file = place / "gateway.toml"
    file.write_text(text, encoding="utf-8")
    words = [sys.executable, "-P", "-m", "forebay.cli.main", "gateway"]
    log = place / "gateway.log"
    server = ServerProcess.start([*words, str(file)], variables(run), port, log)
    try:
        await asyncio.to_thread(server.wait)
        yield
    finally:
        await asyncio.to_thread(server.end)
        if "state_dir" in text:
            await asyncio.to_thread(_run_quietly, [*words, "stop", str(file)])


def _run_quietly(command: Sequence[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=_END_S)
