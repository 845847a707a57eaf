"""Engines, pools and models for the tests that run real vLLM (`make test-vllm`)."""

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.pool_process import PoolProcess, environment, short_directory

KV_BYTES = 6 << 20  # for three dialogs or so
ANSWER = 24
# Two cores that vLLM occupies may answer late; what is tested here is not how soon. And a model as
# small as these computes sooner than many a disk reads, which the connector would notice.
PATIENT = {
    "min_tokens": 128,
    "lookup_deadline_ms": 2000,
    "load_deadline_ms": 10_000,
    "always_load": True,
}

Tokens = list[int]


@dataclass
class Answer:
    tokens: Tokens
    cached: int
    first_step: int = 0


class Engine:
    """One vLLM engine, with or without a pool."""

    def __init__(
        self,
        model: Path,
        pool: PoolProcess | None = None,
        *,
        inside: bool = False,
        witness: Path | None = None,
        settings: dict[str, Any] | None = None,
        variables: dict[str, str] | None = None,
        **engine: Any,
    ) -> None:
        joined = None if pool is None else {"socket": pool.socket, **PATIENT, **(settings or {})}
        engine = {"kv_cache_memory_bytes": KV_BYTES, **engine}
        wanted = {"model": str(model), "pool": joined, "inside": inside, "engine": engine}
        watched = {"WITNESS_FILE": str(witness)} if witness is not None else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.vllm.engine", json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Before 0.29 vLLM's own hashes, by which a witness names blocks, depend on this seed.
            env={**environment(), "PYTHONHASHSEED": "0", **watched, **(variables or {})},
        )
        assert self._read() == "ready"

    def generate(self, prompts: list[Tokens], answer: int = ANSWER, **each: Any) -> list[Answer]:
        """Answer all at once; `each` goes with every prompt."""
        return self.ask([{"tokens": tokens, **each} for tokens in prompts], answer)

    def ask(self, prompts: list[dict[str, Any]], answer: int = ANSWER) -> list[Answer]:
        return [Answer(**told) for told in self.do("generate", prompts=prompts, answer=answer)]

    def do(self, command: str, **more: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **more}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def share(self, pool: PoolProcess) -> None:
        """Wait until the engine knows who it is: until then it shares nothing."""
        before = stored(pool)
        for attempt in range(60):
            self.generate(dialogs(1, 300, seed=1000 + attempt), answer=2)
            if stored(pool) > before:
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


def stored(pool: PoolProcess) -> int:
    """Chunks that engines have stored since the pool began."""
    return int(pool.stats()["counters"].get("stored.chunks", 0))


@dataclass
class Pages:
    """What a witness has written: every page loaded must be one that was stored."""

    file: Path
    loaded: int = 0
    wrong: int = 0
    stored: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def check(self) -> None:
        """All of it, so far."""
        self.loaded = self.wrong = 0
        for line in self.file.read_text().splitlines():
            what, name, digest = line.split()
            if what == "stored":
                self.stored[name].add(digest)
            else:
                self.loaded += 1
                self.wrong += digest not in self.stored[name]


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


def tokens_of(answers: list[Answer]) -> list[Tokens]:
    return [answer.tokens for answer in answers]


def cached_of(answers: list[Answer]) -> int:
    return sum(answer.cached for answer in answers)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("model"), 1, heads=4, kv_heads=2, layers=3)


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with other weights."""
    return made_model(tmp_path_factory.mktemp("twin"), 2, heads=4, kv_heads=2, layers=3)


@pytest.fixture(scope="session")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another shape: one KV head for all."""
    return made_model(tmp_path_factory.mktemp("slim"), 3, heads=6, kv_heads=1, layers=2)


@pytest.fixture(scope="session")
def smol() -> Path:
    """SmolLM2-135M-Instruct, as the demo serves it."""
    from forebay.engines.start import demo_model

    return Path(demo_model.prepare())


@pytest.fixture(scope="session")
def bare(model: Path) -> Iterator[Engine]:
    """The first model on vLLM alone, which recomputes everything: what all others must answer."""
    engine = Engine(model, inside=True, enable_prefix_caching=False, max_num_batched_tokens=256)
    yield engine
    engine.kill()


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def pools(place: Path) -> Iterator[Callable[..., PoolProcess]]:
    """Starts pools that are gone at the end of the test."""
    begun: list[PoolProcess] = []

    def begin(*flags: str, **more: Any) -> PoolProcess:
        directory = place / str(len(begun))
        directory.mkdir(mode=0o700)
        begun.append(PoolProcess(directory, *flags, **more).start())
        return begun[-1]

    yield begin
    for pool in begun:
        if pool.process is not None and pool.process.poll() is None:
            pool.kill()


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    """Starts engines that are gone at the end of the test."""
    engines: list[Engine] = []

    def begin(*arguments: Any, **more: Any) -> Engine:
        engines.append(Engine(*arguments, **more))
        return engines[-1]

    yield begin
    for engine in engines:
        if engine.process.poll() is None:
            engine.kill()
