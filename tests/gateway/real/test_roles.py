"""Two engines and one pool: prompts computed by one and answered by the other, and stickiness."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.engines.vllm.real.engine import HANG_S, NO_DEADLINES, stored_chunks
from tests.engines.vllm.real.engine_process import transfer_config
from tests.gateway.real.conftest import RealEngine
from tests.gateway_harness import GatewayProcess, engine_table
from tests.pool_process import running_pool, short_directory, wait_until

from forebay.engines.start import demo_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
CHUNK = 64  # tokens
PROMPTS = 6
FILE = "prefill_tokens = 128\n"


class Pair:
    """Two engines with one pool."""

    def __init__(self, place: Path, pool: Any) -> None:
        model = demo_model.prepare()
        settings = {**NO_DEADLINES, "socket": pool.socket, "chunk_tokens": CHUNK}
        transfer = json.dumps(transfer_config(settings, is_recorded=False))
        flags = ["--kv-transfer-config", transfer, "--enable-prompt-tokens-details"]
        flags += ["--max-num-seqs", "4", "--block-size", "32"]
        flags += ["--kv-cache-memory-bytes", str(256 << 20)]
        self.pool = pool
        self.engines = [RealEngine("chat", model, place / f"{n}.log", *flags) for n in "pd"]

    def wait(self) -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(RealEngine.wait, self.engines))
        for engine in self.engines:  # until its weights are hashed, an engine shares nothing
            client = client_of(engine.url)
            wait_until(lambda client=client: self.shares(client), "an engine to share", HANG_S)  # type: ignore[misc]

    def shares(self, client: openai.OpenAI) -> bool:
        before = stored_chunks(self.pool)
        ask(client, prompt(10_000 + before), 1)
        return stored_chunks(self.pool) > before


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=HANG_S, max_retries=0)


def prompt(number: int) -> str:
    """Some 600 tokens, with nothing in common with another's first chunk."""
    return " ".join(f"{number} {word} is {word * number % 9973}." for word in range(1, 50))


def ask(client: openai.OpenAI, text: str, tokens: int = 16, **more: Any) -> Any:
    return client.chat.completions.with_raw_response.create(
        model="chat",
        messages=[{"role": "user", "content": text}],
        max_tokens=tokens,
        temperature=0,
        **more,
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("pair")
    with short_directory() as short, running_pool(short, "--dram", "512MiB", disk=False) as pool:
        begun = Pair(place, pool)
        try:
            begun.wait()
            yield begun
        finally:
            for engine in begun.engines:
                engine.kill()


@pytest.fixture(scope="module")
def front(pair: Pair) -> Iterator[GatewayProcess]:
    roles = zip("pd", ("prefill", "decode"), pair.engines, strict=True)
    tables = "".join(
        engine_table(name, engine.url, model=engine.name, max_num_seqs=4, pool=True, role=role)
        for name, role, engine in roles
    )
    with ExitStack() as stack:
        begun = GatewayProcess(stack.enter_context(short_directory()), FILE + tables)
        stack.callback(lambda: begun.process.poll() is None and begun.kill())
        for name in "pd":
            wait_until(lambda name=name: begun.is_up(name), "an engine", HANG_S)  # type: ignore[misc]
        yield begun
        assert "a bug was caught" not in begun.text(), begun.text()


def recomputed(answer: Any) -> int:
    """Prompt tokens that the engine which answered has computed, as it says."""
    usage = answer.parse().usage
    return int(usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens)


def words(answer: Any) -> str:
    return str(answer.parse().choices[0].message.content)


def test_answers_are_equal_and_little_is_computed_twice(pair: Pair, front: GatewayProcess) -> None:
    through, first = client_of(front.url), client_of(pair.engines[0].url)
    answers = [ask(through, prompt(number)) for number in range(PROMPTS)]
    for number, answer in enumerate(answers):
        assert answer.headers["x-forebay-engine"] == "d"
        assert answer.headers["x-forebay-prefill"] == "p"
        assert recomputed(answer) <= CHUNK, number
        # The first engine has never loaded anything: it computed all of this itself.
        assert words(answer) == words(ask(first, prompt(number))), number


def test_the_same_for_many_at_once_and_streamed(pair: Pair, front: GatewayProcess) -> None:
    through, first = client_of(front.url), client_of(pair.engines[0].url)
    found: dict[int, str] = {}
    engines: set[str] = set()  # whether the other was in time is not for a busy machine to say

    def play(number: int) -> None:
        answer = ask(through, prompt(number), stream=True)
        engines.add(answer.headers["x-forebay-engine"])
        pieces = answer.parse()
        text = ""
        for piece in pieces:
            text += piece.choices[0].delta.content or "" if piece.choices else ""
        found[number] = text

    numbers = range(100, 104)  # as many as the first engine computes at once
    threads = [threading.Thread(target=play, args=[number]) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert engines == {"d"}
    assert found == {number: words(ask(first, prompt(number))) for number in numbers}


def test_without_the_first_engine_answers_are_the_same(pair: Pair, front: GatewayProcess) -> None:
    through, second = client_of(front.url), client_of(pair.engines[1].url)
    pair.engines[0].kill()
    answer = ask(through, prompt(200))
    assert answer.headers["x-forebay-engine"] == "d"
    assert "x-forebay-prefill" not in answer.headers
    assert words(answer) == words(ask(second, prompt(200)))
