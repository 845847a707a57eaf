"""Three engines that share a GPU as far as they know: real vLLM sleeps and wakes under load.

A build of vLLM for CPUs does everything of sleeping but to give memory back. FOREBAY_SWAPS says how
many swaps the test makes.
"""

import json
import math
import os
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import openai
import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import HANG_S, NO_DEADLINES
from tests.engines.vllm.real.engine_process import transfer_config
from tests.engines.vllm.real.kinds import has_run
from tests.gateway.real.conftest import START_S, client_of, free_port
from tests.gateway_harness import GatewayProcess
from tests.pool_process import PoolProcess, running_pool, short_directory, wait_until

from forebay.engines.start import demo_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(7200)]
SWAPS = int(os.environ.get("FOREBAY_SWAPS", "6"))
SEED = 20251118
PROMPTS = [f"Write down {word} and why they matter to you." for word in ("rivers", "stars", "cups")]
TOKENS = 40
GPU = 'name = "g"\nidle_s = 0\nawake_s = 0\n'
ENGINES = ("one", "two", "three")
IN_TURN, UNDER_WAY = 30, 12  # requests, and how many of them at a time


def engine(name: str, model: str, pool: PoolProcess) -> str:
    settings = {**NO_DEADLINES, "socket": pool.socket, "weights_id": "demo", "chunk_tokens": 64}
    transfer = transfer_config(settings, is_recorded=False)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", name, "--dtype", "float32", "--max-model-len", "1024"]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(128 << 20)]
    command += ["--max-num-seqs", "4", "--enable-prompt-tokens-details"]
    command += ["--kv-transfer-config", json.dumps(transfer)]
    return (
        f'[[engine]]\nname = "{name}"\nmodel = "{name}"\nurl = "http://127.0.0.1:{free_port()}"\n'
        f'gpu = "g"\npool = true\nmax_num_seqs = 4\nweights = "1GiB"\n'
        f"command = {json.dumps(command)}\n"
    )


class Front:
    """A gateway that starts its engines, before a pool."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway

    @property
    def client(self) -> openai.OpenAI:
        return client_of(self.gateway.url)

    def ask(self, model: str, prompt: str, *, stream: bool = False, tokens: int = TOKENS) -> str:
        more: Any = {"ignore_eos": True}
        asked: Any = [{"role": "user", "content": prompt}]
        found = self.client.chat.completions.create(
            model=model, messages=asked, max_tokens=tokens, temperature=0, stream=stream,
            extra_body=more,
        )  # fmt: skip
        if not stream:
            assert found.choices[0].finish_reason == "length"
            return str(found.choices[0].message.content)
        pieces = [piece.choices[0] for piece in found if piece.choices]
        assert pieces[-1].finish_reason == "length"
        return "".join(piece.delta.content or "" for piece in pieces)

    def total(self, metric: str) -> int:
        text = self.gateway.fetch("/metrics")[2].decode()
        found = re.findall(rf"^forebay_gateway_{metric}_total\{{.*\}} (\S+)$", text, re.MULTILINE)
        return round(sum(map(float, found)))

    def slowest_swap_s(self) -> float:
        """The least bound of the histogram that no wake exceeded."""
        text = self.gateway.fetch("/metrics")[2].decode()
        buckets = re.findall(
            r'^forebay_gateway_wake_seconds_bucket\{.*le="([^"]+)"\} (\S+)$', text, re.MULTILINE
        )
        counts: dict[float, float] = {}
        for bound, count in buckets:
            counts[float(bound)] = counts.get(float(bound), 0.0) + float(count)
        return min(bound for bound, count in counts.items() if count == counts[math.inf])

    def powers(self) -> dict[str, str]:
        return {each["name"]: each["power"] for each in self.gateway.status()["engines"]}

    def pids(self) -> list[int]:
        notes = sorted((self.gateway.file.parent / "state").glob("*.json"))
        return [json.loads(note.read_bytes())["pid"] for note in notes]

    def begin_again(self, gpu: str) -> None:
        """Another gateway, with another rule for the GPU; the engines stay as they are."""
        self.gateway.kill()
        text = self.gateway.file.read_text()
        self.gateway.file.write_text(re.sub(r"\[\[gpu\]\]\n(.+ = .+\n)+", f"[[gpu]]\n{gpu}", text))
        self.gateway.start()
        wait_until(lambda: "awake" in self.powers().values(), "an engine", HANG_S)


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    model = demo_model.prepare()
    with short_directory() as place, running_pool(place, "--dram", "512MiB", disk=False) as pool:
        tables = "".join(engine(name, model, pool) for name in ENGINES)
        config = f'state_dir = "{place / "state"}"\n[[gpu]]\n{GPU}patience_s = 1\ndrain_s = 0\n'
        with patch.dict(os.environ, forked.VARIABLES):
            begun = Front(GatewayProcess(place, config + tables))
        try:
            # All are started before anybody asks, one after the other.
            wait_until(
                lambda: sorted(begun.powers().values()) == ["asleep", "asleep", "awake"],
                "all of them",
                len(ENGINES) * START_S,
            )
            yield begun
        finally:
            if begun.gateway.process.poll() is None:
                begun.gateway.kill()
            for note in (place / "state").glob("*.json"):
                os.killpg(json.loads(note.read_bytes())["pid"], 9)
        assert "a bug was caught" not in begun.gateway.text(), begun.gateway.text()


def test_t54_t64_swaps_under_load_change_no_answer(front: Front) -> None:
    expected = {prompt: front.ask("one", prompt) for prompt in PROMPTS}
    before, kept = front.total("swaps"), front.total("kept")
    wrong: list[str] = []

    def ask(seed: int) -> None:
        luck = random.Random(seed)
        while front.total("swaps") < before + SWAPS and not wrong:
            model, prompt = luck.choice(ENGINES), luck.choice(PROMPTS)
            try:
                found = front.ask(model, prompt, stream=luck.random() < 0.5)
            except openai.APIError as error:
                found = f"{type(error).__name__}: {error}"
            if found != expected[prompt]:
                wrong.append(f"{model} {prompt}: {found!r}")

    threads = [threading.Thread(target=ask, args=[SEED + number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S + 60 * SWAPS)
    assert not wrong
    assert front.total("swaps") >= before + SWAPS
    assert front.total("kept") > kept, "no answer was under way when its engine went to sleep"
    assert front.total("swap_failures") == 0
    print(f"{front.total('swaps') - before} swaps, {front.total('kept') - kept} answers kept")


def test_what_the_pool_has_survives_a_swap(front: Front) -> None:
    words = " ".join(f"word{number}" for number in range(150))
    asked: Any = [{"role": "user", "content": words}]

    def cached() -> int:
        usage = front.client.chat.completions.create(
            model="one", messages=asked, max_tokens=1, temperature=0
        ).usage
        assert usage is not None
        details = usage.prompt_tokens_details
        return int(details.cached_tokens or 0) if details else 0

    assert cached() < 64
    wait_until(lambda: cached() >= 256, "it to be stored", HANG_S)
    front.ask("two", "Hello.", tokens=1)
    assert front.powers()["one"] == "asleep"
    assert cached() >= 256


def test_requests_in_turn_are_collated(front: Front) -> None:
    """ABCABC, as many at a time as clients wait for: at most 0.3 of a swap each.

    First come first served is a swap for each. The next request of the order comes when another is
    answered, so that how many wait does not depend on how busy this machine is.
    """
    patience_s = 60
    rule = f"{GPU.replace('idle_s = 0', 'idle_s = 2')}patience_s = {patience_s}\ndrain_s = 20\n"
    front.begin_again(rule)
    before = front.total("swaps")
    waits: list[float] = []

    def ask(number: int) -> None:
        begun = time.monotonic()
        pieces = front.client.chat.completions.create(
            model=ENGINES[number % len(ENGINES)],
            messages=[{"role": "user", "content": f"Say {number}."}],
            max_tokens=4,
            stream=True,
        )
        for at, _ in enumerate(pieces):
            if not at:
                waits.append(time.monotonic() - begun)

    with ThreadPoolExecutor(UNDER_WAY) as threads:
        list(threads.map(ask, range(IN_TURN)))
    swaps, swap_s = front.total("swaps") - before, front.slowest_swap_s()
    print(
        f"{swaps} swaps for {IN_TURN} requests of {len(ENGINES)} models in turn; the first token "
        f"of the slowest came after {max(waits):.1f} s, the slowest swap took <= {swap_s} s"
    )
    assert len(waits) == IN_TURN
    assert len(ENGINES) - 1 <= swaps <= 0.3 * IN_TURN
    assert max(waits) <= patience_s + swap_s


def test_t64_engines_serve_on_when_the_gateway_is_killed(front: Front) -> None:
    expected = front.ask("one", PROMPTS[0])
    pids = front.pids()
    url = next(each["url"] for each in front.gateway.status()["engines"] if each["name"] == "one")
    front.gateway.kill()
    asked: Any = [{"role": "user", "content": PROMPTS[0]}]
    answer = client_of(url).chat.completions.create(
        model="one", messages=asked, max_tokens=TOKENS, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.choices[0].message.content == expected
    front.gateway.start()
    assert [front.ask(name, PROMPTS[0]) for name in ("two", "one")] == [expected] * 2
    assert front.pids() == pids


def test_weights_that_were_given_up_are_loaded_again(front: Front) -> None:
    expected = front.ask("two", PROMPTS[1])
    pids = front.pids()
    front.begin_again(f'{GPU}patience_s = 1\ndrain_s = 0\nhost_memory = "1GiB"\n')
    states = {each["name"]: each["rest"] for each in front.gateway.status()["engines"]}
    assert states == {"one": "level 1", "two": "level 2", "three": "level 2"}
    for _ in range(2):
        assert front.ask("two", PROMPTS[1]) == expected
        assert front.ask("one", PROMPTS[1]) == expected
    assert front.pids() == pids, "none had to be started anew"
    assert front.total("swap_failures") == 0
    has_run("sleep")
