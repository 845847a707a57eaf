"""Engines, pools and models for the tests that run real vLLM (`make test-vllm`)."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KV_BYTES = 6 << 20
ANSWER = 24

Tokens = list[int]


@dataclass
class Answer:
    tokens: Tokens
    cached: int


class Engine:
    """One vLLM engine, with or without a pool."""

    def __init__(self, model: Path, pool: dict[str, Any] | None, **more: Any) -> None:
        wanted = {"model": str(model), "pool": pool, "kv_bytes": KV_BYTES, "answer": ANSWER, **more}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "engine.py"), json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._read() == "ready"

    def generate(self, prompts: list[Tokens], salt: str = "") -> list[Answer]:
        assert self.process.stdin is not None
        asked = [{"tokens": tokens, "salt": salt} for tokens in prompts]
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return [Answer(**told) for told in self._read()]

    def share(self, pool: "PoolProcess") -> None:
        """Wait until the engine knows who it is: until then it shares nothing."""
        before = pool.stored()
        for attempt in range(60):
            self.generate(dialogs(1, 300, seed=1000 + attempt))
            if pool.stored() > before:
                return
            time.sleep(0.2)
        raise AssertionError("the engine shares nothing")

    def kill(self) -> None:
        """As an engine dies: with all of its processes, at once."""
        os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the engine ended with {self.process.wait()}"
        return json.loads(line)


def made_model(
    place: Path, seed: int, *, heads: int, kv_heads: int, layers: int, head_dim: int = 32
) -> Path:
    """A small model whose answers depend on its KV: seeded weights of ordinary spread."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=heads * head_dim,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=2048,
        initializer_range=0.08,
        eos_token_id=None,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(place)
    return place


def dialogs(count: int, length: int, seed: int = 0) -> list[Tokens]:
    draw = random.Random(seed)
    return [[draw.randrange(1, 2048) for _ in range(length)] for _ in range(count)]


def next_turn(prompts: list[Tokens], answers: list[Answer], seed: int) -> list[Tokens]:
    """Every dialog goes on with what was answered and something new."""
    draw = random.Random(seed)
    more = [[draw.randrange(1, 2048) for _ in range(70)] for _ in prompts]
    return [p + a.tokens + m for p, a, m in zip(prompts, answers, more, strict=True)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("model"), 1, heads=4, kv_heads=2, layers=3)


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with other weights."""
    return made_model(tmp_path_factory.mktemp("twin"), 2, heads=4, kv_heads=2, layers=3)


@dataclass
class PoolProcess:
    """A pool of the product, in a process of its own."""

    place: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"socket": str(self.place / "s"), "min_tokens": 128, "lookup_deadline_ms": 2000}

    def start(self, dram: str = "256MiB") -> "PoolProcess":
        disk = self.place / "disk"
        disk.mkdir(mode=0o700, exist_ok=True)
        flags = ["--socket", self.settings["socket"], "--dram", dram, "--disk", f"{disk}:512MiB"]
        self.process = subprocess.Popen([sys.executable, "-m", "forebay.cli", "pool", *flags])
        self.stats(timeout_s=20)
        return self

    def stats(self, timeout_s: float = 5.0) -> dict[str, Any]:
        from tests.poolside import wait_until

        from forebay.pool.client import Client

        with Client(self.settings["socket"]) as client:
            wait_until(client.join, "the pool", timeout_s)
            found = client.stats()
        assert isinstance(found, dict)
        return found

    def stored(self) -> int:
        """Chunks that engines have stored since it began."""
        return int(self.stats()["counters"].get("stored.chunks", 0))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolProcess]:
    tmp_path.chmod(0o700)
    pool = PoolProcess(tmp_path).start()
    yield pool
    pool.kill()


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def begin(model: Path, pool: dict[str, Any] | None, **more: Any) -> Engine:
        engines.append(Engine(model, pool, **more))
        return engines[-1]

    yield begin
    for engine in engines:
        if engine.process.poll() is None:
            engine.kill()
