"""Where requests go before real engines: what is computed again, and one prefix for everybody.

Requests come one after the other, so that what is counted depends on choices alone.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import openai
import pytest
from tests.engines.vllm.real.engine import HANG_S
from tests.gateway.real.conftest import RealEngine
from tests.gateway_harness import GatewayProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]
# All dialogs just fit into the KV caches of both engines.
DIALOGS, TURNS, WORDS = 6, 4, 22
ANSWER = 2
Ask = Callable[[int, Any], Any]  # a dialog's number and its messages → the answer


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=HANG_S, max_retries=0)


def ask(client: openai.OpenAI, messages: Any) -> Any:
    return client.chat.completions.with_raw_response.create(
        model="chat", messages=messages, max_tokens=ANSWER, temperature=0
    )


def text(name: str, *numbers: int) -> str:
    """Words that nobody else says."""
    luck = random.Random(f"{name} {numbers}")
    return f"{name} {numbers}: " + " ".join(f"item {luck.random():.6f}" for _ in range(WORDS))


def recomputed(name: str, answer: Ask) -> int:
    """Prompt tokens that engines computed for all dialogs, turn by turn, in a random order."""
    dialogs: list[list[Any]] = [[] for _ in range(DIALOGS)]
    computed = 0
    for turn in range(TURNS):
        order = random.Random(turn).sample(range(DIALOGS), DIALOGS)
        for number in order:
            messages = dialogs[number]
            messages.append({"role": "user", "content": text(name, number, turn)})
            found = answer(number, messages).parse()
            messages.append({"role": "assistant", "content": found.choices[0].message.content})
            details = found.usage.prompt_tokens_details
            computed += found.usage.prompt_tokens - (details.cached_tokens or 0 if details else 0)
    return computed


def test_little_is_computed_again(front: GatewayProcess, engines: list[RealEngine]) -> None:
    direct = [client_of(engine.url) for engine in engines[:2]]
    through = client_of(front.url)
    turns = iter(range(DIALOGS * TURNS))
    found = {
        "gateway": recomputed("one", lambda _, messages: ask(through, messages)),
        "sticky": recomputed("two", lambda dialog, messages: ask(direct[dialog % 2], messages)),
        "round robin": recomputed(
            "three", lambda _, messages: ask(direct[next(turns) % 2], messages)
        ),
    }
    # With two engines and little that is evicted, a turn is computed twice in turn at most.
    assert found["gateway"] <= 0.6 * found["round robin"], found
    assert found["gateway"] <= 1.05 * found["sticky"], found


def test_one_prefix_of_everybody_is_on_both_engines(front: GatewayProcess) -> None:
    through = client_of(front.url)
    system = {"role": "system", "content": text("everybody", 1) + text("everybody", 2)}
    engines: Counter[str] = Counter()
    for number in range(30):
        asked = {"role": "user", "content": f"Question {number}?"}
        engines[ask(through, [system, asked]).headers["x-forebay-engine"]] += 1
    assert max(engines.values()) <= 1.3 * min(engines.values()), engines
    assert set(engines) == {"a", "b"}
