"""Data parallelism: every replica is an engine of its own, and finds what another has stored."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import (
    ANSWER,
    HANG_S,
    KV_BYTES,
    NO_DEADLINES,
    Answer,
    Engine,
    stored_chunks,
    tokens_of,
)
from tests.engines.vllm.real.engine_process import transfer_config
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import PoolProcess, environment

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(1800)]
KNOWN = 512  # tokens of a prompt of 600, in whole chunks


class Server:
    """A server of two replicas; a header says which of them is to answer."""

    def __init__(self, model: Path, pool: PoolProcess, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        transfer = transfer_config({**NO_DEADLINES, "socket": pool.socket}, is_recorded=False)
        del transfer["kv_connector_module_path"]  # vLLM knows the name by our plugin
        flags = {
            "--host": "127.0.0.1",
            "--port": self.url.rpartition(":")[2],
            "--served-model-name": "model",
            "--data-parallel-size": "2",
            "--dtype": "float32",
            "--max-model-len": "2048",
            "--max-num-seqs": "4",
            "--kv-cache-memory-bytes": str(KV_BYTES),
            "--kv-transfer-config": json.dumps(transfer),
        }
        words = [word for flag in flags.items() for word in flag]
        switches = ["--enforce-eager", "--skip-tokenizer-init", "--enable-prompt-tokens-details"]
        command = [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
        ]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *words, *switches],
                env={**environment(), **forked.VARIABLES},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + HANG_S
        while not self._is_healthy():
            assert self.process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.5)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=HANG_S):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def answer(self, replica: int, tokens: Tokens) -> Answer:
        wanted = {
            "model": "model",
            "prompt": tokens,
            "max_tokens": ANSWER,
            "temperature": 0,
            "ignore_eos": True,
            "detokenize": False,
            "return_token_ids": True,
        }
        headers = {"Content-Type": "application/json", "X-data-parallel-rank": str(replica)}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(wanted).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=HANG_S) as reply:
            told = json.load(reply)
        details = told["usage"]["prompt_tokens_details"] or {}
        return Answer(told["choices"][0]["token_ids"], details.get("cached_tokens") or 0)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(
    model: Path, start_pool: Callable[..., PoolProcess], tmp_path: Path
) -> Iterator[tuple[Server, PoolProcess]]:
    pool = start_pool("--dram", "64MiB")
    begun = Server(model, pool, tmp_path / "server.log")
    yield begun, pool
    begun.kill()


def test_t50_two_replicas_find_what_each_other_stored(
    server: tuple[Server, PoolProcess], without_pool: Engine
) -> None:
    replicas, pool = server
    until, seed = time.monotonic() + HANG_S, 20_000
    found: list[int] = []
    while found != [KNOWN, KNOWN]:
        # Weights may not be hashed yet, and a chunk that finds no slot in time is not stored.
        assert time.monotonic() < until, (found, stored_chunks(pool))
        seed += 1
        found = []
        for storing in (0, 1):
            (prompt,) = dialogs(1, 600, seed + 1000 * storing)
            ours = [replicas.answer(replica, prompt) for replica in (storing, 1 - storing)]
            expected = tokens_of(without_pool.generate([prompt])) * 2
            assert tokens_of(ours) == expected, "whoever answers"
            assert ours[0].cached == 0, "new to both"
            found.append(ours[1].cached)
    has_run("data parallelism")
