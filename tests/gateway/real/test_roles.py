"""Prefill and decode apart: prompts computed by one engine and answered by another."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from tests.gateway.real.conftest import CHUNK, Pair, client_of, gateway_before
from tests.gateway_harness import GatewayProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
PROMPTS = 6
FILE = "prefill_tokens = 64\n"


def prompt(number: int) -> str:
    """Some 300 tokens, with nothing in common with another's first chunk.

    Four of them fit into an engine's KV cache at once.
    """
    return " ".join(f"{number} {word} is {word * number % 9973}." for word in range(1, 25))


def ask(client: openai.OpenAI, text: str, tokens: int = 16, **more: Any) -> Any:
    return client.chat.completions.with_raw_response.create(
        model="chat",
        messages=[{"role": "user", "content": text}],
        max_tokens=tokens,
        temperature=0,
        **more,
    )


@pytest.fixture(scope="module")
def front(pair: Pair) -> Iterator[GatewayProcess]:
    roles = {"p": "prefill", "d": "decode"}
    more: Any = {name: {"pool": True, "role": role} for name, role in roles.items()}
    with gateway_before(pair.by_name, FILE, **more) as begun:
        yield begun


def recomputed(answer: Any) -> int:
    """Prompt tokens that the engine which answered has computed, as it says."""
    return uncached(answer.parse().usage)


def uncached(usage: Any) -> int:
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


def test_the_same_for_six_at_once_streamed_or_not(pair: Pair, front: GatewayProcess) -> None:
    through, first = client_of(front.url), client_of(pair.engines[0].url)

    def play(number: int) -> "tuple[Any, int, str]":
        """The answer's headers, what was computed for it, and its words."""
        if number % 2:
            answer = ask(through, prompt(number))
            return answer.headers, recomputed(answer), words(answer)
        answer = ask(through, prompt(number), stream=True, stream_options={"include_usage": True})
        pieces = list(answer.parse())
        text = "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
        return answer.headers, uncached(pieces[-1].usage), text

    numbers = range(100, 100 + PROMPTS)
    with ThreadPoolExecutor(PROMPTS) as threads:
        found = list(threads.map(play, numbers))
    print([computed for _, computed, _ in found], "tokens computed by the engine that answered")
    for number, (headers, _, text) in zip(numbers, found, strict=True):
        assert headers["x-forebay-engine"] == "d"
        assert headers["x-forebay-prefill"] == "p", number
        assert text == words(ask(first, prompt(number))), number
    # Of six at once, four fit: on a busy machine a chunk may leave its engine before it is stored.
    assert sum(computed <= CHUNK for _, computed, _ in found) >= PROMPTS // 2


def test_without_the_first_engine_answers_are_the_same(pair: Pair, front: GatewayProcess) -> None:
    through, second = client_of(front.url), client_of(pair.engines[1].url)
    pair.engines[0].kill()
    answer = ask(through, prompt(200))
    assert answer.headers["x-forebay-engine"] == "d"
    assert "x-forebay-prefill" not in answer.headers
    assert words(answer) == words(ask(second, prompt(200)))
