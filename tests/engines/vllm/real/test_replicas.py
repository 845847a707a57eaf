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
    RecordedPages,
    stored_chunks,
    tokens_of,
)
from tests.engines.vllm.real.engine_process import transfer_config
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.engines.vllm.real.test_parallel import disturbed_by
from tests.pool_process import PoolProcess, environment

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(1800)]
KNOWN = 512  # tokens of a prompt of 600, in whole chunks
CHUNK = 256  # tokens


class Server:
    """A server of two replicas; a header says which of them is to answer."""

    def __init__(
        self, model: Path, pool: PoolProcess, log: Path, recorded: Path | None = None
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings, variables = {**NO_DEADLINES, "socket": pool.socket}, forked.VARIABLES
        transfer = transfer_config(settings, is_recorded=recorded is not None)
        if recorded is None:
            del transfer["kv_connector_module_path"]  # vLLM knows the name by our plugin
        else:
            variables = {**variables, "RECORDED_PAGES": str(recorded)}
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
        # Of its own such a replica has nothing: what it did not compute comes from the pool.
        switches += ["--no-enable-prefix-caching"] * (recorded is not None)
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
                env={**environment(), **variables},
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


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(model: Path, tmp_path: Path) -> Iterator[StartServer]:
    begun: list[Server] = []

    def start(pool: PoolProcess, recorded: Path | None = None) -> Server:
        begun.append(Server(model, pool, tmp_path / f"server-{len(begun)}.log", recorded))
        return begun[-1]

    yield start
    for server in begun:
        if server.process.poll() is None:
            server.kill()


def test_t50_two_replicas_find_what_each_other_stored(
    start_pool: Callable[..., PoolProcess],
    start_server: StartServer,
    without_pool: Engine,
    pages: RecordedPages,
) -> None:
    pool = start_pool("--dram", "64MiB")
    replicas = start_server(pool)
    until, seed = time.monotonic() + HANG_S, 20_000
    found: list[int] = []
    while found != [KNOWN, KNOWN]:
        # Weights may not be hashed yet, and a chunk that finds no slot in time is not stored.
        assert time.monotonic() < until, (found, stored_chunks(pool))
        seed += 1
        found, prompts, expected = [], [], []
        for storing in (0, 1):
            (prompt,) = dialogs(1, 600, seed + 1000 * storing)
            ours = [replicas.answer(replica, prompt) for replica in (storing, 1 - storing)]
            (told,) = tokens_of(without_pool.generate([prompt]))
            assert tokens_of(ours) == [told, told], "whoever answers"
            assert ours[0].cached == 0, "new to both"
            found.append(ours[1].cached)
            prompts.append(prompt)
            expected.append(told)
    replicas.kill()
    pool.stop()
    pool.start()
    replicas = start_server(pool, pages.file)
    for storing, loading in ((0, 1), (1, 0)):
        until, cached = time.monotonic() + HANG_S, 0
        while cached != KNOWN:
            assert time.monotonic() < until, "what both had stored is not found"
            ours = [replicas.answer(loading, prompts[storing])]
            assert tokens_of(ours) == [expected[storing]], "NVMe"
            cached = ours[0].cached
    read = pool.number("operations", tier="disk", direction="load", outcome="ok")
    assert read >= 2 * KNOWN // CHUNK
    for replica in (0, 1):
        disturbed_by(pages).write_text("0,before load,spoil")  # each is a rank 0 of its own
        wrong = replicas.answer(replica, prompts[replica])
        assert wrong.cached == KNOWN
        assert wrong.tokens != expected[replica], "the control: wrong bytes would be noticed"
    has_run("data parallelism")
