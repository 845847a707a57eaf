"""Where requests go before real engines: what is computed again, and one prefix for everybody.

Requests come one after the other, each when the pool has what was computed for the one before, so
that what is counted depends on choices alone.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import openai
import pytest
from tests.engines.vllm.real.engine import HANG_S, stored_chunks
from tests.gateway.real.conftest import CHUNK, Pair, RealEngine, client_of
from tests.gateway_harness import GatewayProcess
from tests.pool_process import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]
# In the end dialogs have twice the tokens that the KV caches of both engines hold.
DIALOGS, TURNS, WORDS = 6, 5, 16
ANSWER = 2
Ask = Callable[[int, Any], Any]  # a dialog's number and its messages → the answer


def ask(client: openai.OpenAI, messages: Any) -> Any:
    return client.chat.completions.with_raw_response.create(
        model="chat", messages=messages, max_tokens=ANSWER, temperature=0
    )


def text(name: str, *numbers: int) -> str:
    """Words that nobody else says."""
    luck = random.Random(f"{name} {numbers}")
    return f"{name} {numbers}: " + " ".join(f"item {luck.random():.6f}" for _ in range(WORDS))


def recomputed(name: str, answer: Ask, pool: Any = None) -> int:
    """Prompt tokens that engines computed for all dialogs, turn by turn, in a random order."""
    dialogs: list[list[Any]] = [[] for _ in range(DIALOGS)]
    sizes = [0] * DIALOGS  # prompt tokens
    before = stored_chunks(pool) if pool else 0
    computed = 0

    def is_stored() -> bool:
        return stored_chunks(pool) - before >= sum(size // CHUNK for size in sizes)

    for turn in range(TURNS):
        order = random.Random(turn).sample(range(DIALOGS), DIALOGS)
        for number in order:
            messages = dialogs[number]
            messages.append({"role": "user", "content": text(name, number, turn)})
            found = answer(number, messages).parse()
            messages.append({"role": "assistant", "content": found.choices[0].message.content})
            details = found.usage.prompt_tokens_details
            computed += found.usage.prompt_tokens - (details.cached_tokens or 0 if details else 0)
            sizes[number] = found.usage.prompt_tokens
            if pool:
                wait_until(is_stored, "it to be stored", HANG_S)
    return computed


def test_little_is_computed_again(
    pooled: GatewayProcess, pair: Pair, engines: list[RealEngine]
) -> None:
    alone = [client_of(engine.url) for engine in engines[:2]]  # these have no pool
    sharing = [client_of(engine.url) for engine in pair.engines]
    through = client_of(pooled.url)
    turns = iter(range(DIALOGS * TURNS))
    found = {
        "gateway": recomputed("one", lambda _, said: ask(through, said), pair.pool),
        "sticky": recomputed("two", lambda dialog, said: ask(sharing[dialog % 2], said), pair.pool),
        "round robin": recomputed("three", lambda _, said: ask(alone[next(turns) % 2], said)),
    }
    print(f"prompt tokens computed: {found}")
    assert found["gateway"] <= 0.5 * found["round robin"], found
    assert found["gateway"] <= 1.05 * found["sticky"], found


def test_one_prefix_of_everybody_is_on_both_engines(front: GatewayProcess) -> None:
    through = client_of(front.url)
    system = {"role": "system", "content": text("everybody", 1) + text("everybody", 2)}
    engines: Counter[str] = Counter()
    for number in range(30):
        asked = {"role": "user", "content": f"Question {number}?"}
        engines[ask(through, [system, asked]).headers["x-forebay-engine"]] += 1
    print(f"requests with one prefix, by engine: {dict(engines)}")
    assert max(engines.values()) <= 1.3 * min(engines.values()), engines
    assert set(engines) == {"a", "b"}
