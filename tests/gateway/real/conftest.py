"""Engines of the gateway's tests on real vLLM, with the demo model.

Two that chat and one that embeds have no pool; a pair that chats has one. All have small KV caches,
as where many dialogs share a GPU.
"""

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.api_server import serve
from tests.engines.vllm.real.engine import HANG_S, NO_DEADLINES, stored_chunks
from tests.engines.vllm.real.engine_process import transfer_config
from tests.gateway_harness import GatewayProcess, engine_table
from tests.pool_process import running_pool, short_directory, wait_until

from forebay.engines.start import demo_model

START_S = 1500.0  # engines may begin at once, on a machine that does other things
KV_BYTES = 64 << 20  # of an engine: 1,424 tokens
CHUNK = 64  # tokens, of the pair's pool
CHAT = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-num-seqs", "4"),
    *("--block-size", "32", "--enable-prompt-tokens-details"),
)
EMBED = ("--runner", "pooling", "--convert", "embed", "--max-num-seqs", "4")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class RealEngine:
    """vLLM's API server at a port of this host."""

    def __init__(self, name: str, model: str, log: Path, *flags: str) -> None:
        self.port = free_port()
        self.name, self._log = name, log
        arguments = ["--model", model, "--served-model-name", name, "--host", "127.0.0.1"]
        arguments += ["--port", str(self.port), "--dtype", "float32", "--max-model-len", "1024"]
        arguments += ["--enforce-eager", "--kv-cache-memory-bytes", str(KV_BYTES), *flags]
        self.process, self._pipe = forked.start(serve, arguments, str(log))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        wait_until(self._is_up, "vLLM's API server", START_S)

    def kill(self) -> None:
        assert self.process.pid is not None
        if self.process.is_alive():
            os.killpg(self.process.pid, 9)
            self.process.join()

    def _is_up(self) -> bool:
        assert self.process.is_alive(), self._log.read_text(errors="replace")[-4000:]
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as link:
                link.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                link.settimeout(HANG_S)
                return b" 200 " in link.recv(64)
        except OSError:
            return False


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=HANG_S, max_retries=0)


@contextmanager
def gateway_before(
    engines: "dict[str, RealEngine]", config: str = "", **more: "dict[str, Any]"
) -> Iterator[GatewayProcess]:
    """A gateway before these engines, by name, all of them up; `more` is of each one's table."""
    tables = "".join(
        engine_table(name, engine.url, model=engine.name, max_num_seqs=4, **more.get(name, {}))
        for name, engine in engines.items()
    )
    with short_directory() as place:
        begun = GatewayProcess(place, config + tables)
        try:
            for name in engines:
                wait_until(lambda name=name: begun.is_up(name), "an engine", HANG_S)  # type: ignore[misc]
            yield begun
        finally:
            if begun.process.poll() is None:
                begun.kill()
        assert "a bug was caught" not in begun.text(), begun.text()


class Pair:
    """Two engines with one pool."""

    def __init__(self, place: Path, pool: Any) -> None:
        settings = {**NO_DEADLINES, "socket": pool.socket, "chunk_tokens": CHUNK}
        transfer = json.dumps(transfer_config(settings, is_recorded=False))
        flags = [*CHAT, "--kv-transfer-config", transfer]
        self.pool = pool
        model = demo_model.prepare()
        self.engines = [RealEngine("chat", model, place / f"{n}.log", *flags) for n in "pd"]

    @property
    def by_name(self) -> "dict[str, RealEngine]":
        return dict(zip("pd", self.engines, strict=True))

    def wait(self) -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(RealEngine.wait, self.engines))
        for engine in self.engines:  # until its weights are hashed, an engine shares nothing
            client = client_of(engine.url)
            wait_until(lambda client=client: self.shares(client), "an engine to share", START_S)  # type: ignore[misc]

    def shares(self, client: openai.OpenAI) -> bool:
        before = stored_chunks(self.pool)
        words = " ".join(f"{before} {number}." for number in range(100))
        asked: Any = [{"role": "user", "content": words}]
        client.chat.completions.create(model="chat", messages=asked, max_tokens=1)
        return stored_chunks(self.pool) > before


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("pair")
    with short_directory() as short, running_pool(short, "--dram", "1GiB", disk=False) as pool:
        begun = Pair(place, pool)
        try:
            begun.wait()
            yield begun
        finally:
            for engine in begun.engines:
                engine.kill()


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealEngine]]:
    model = demo_model.prepare()
    place = tmp_path_factory.mktemp("engines")
    begun = [
        RealEngine("chat", model, place / "a.log", *CHAT),
        RealEngine("chat", model, place / "b.log", *CHAT),
        RealEngine("embed", model, place / "c.log", *EMBED),
    ]
    try:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(RealEngine.wait, begun))
        yield begun
    finally:
        for engine in begun:
            engine.kill()


@pytest.fixture(scope="session")
def front(engines: list[RealEngine]) -> Iterator[GatewayProcess]:
    with gateway_before(dict(zip("abc", engines, strict=True)), a={"pool": True}) as begun:
        yield begun


@pytest.fixture(scope="module")
def pooled(pair: Pair) -> Iterator[GatewayProcess]:
    """A gateway before the pair."""
    with gateway_before(pair.by_name, p={"pool": True}, d={"pool": True}) as begun:
        yield begun
