"""Documents that the gateway orders: the answers are those of the same prompts without a pool."""

import json
import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.engines.vllm.real.engine import HANG_S, stored_chunks
from tests.gateway.real.conftest import CHUNK, Pair, RealEngine, client_of
from tests.gateway_harness import GatewayProcess
from tests.pool_process import wait_until

from forebay.documents.bodies import MEMBER, MEMBERS, marked, reordered
from forebay.documents.order import DocumentOrder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
DOCUMENTS, EACH, REQUESTS, ANSWER = 10, 4, 12, 16
KNOWN_MAX = 4  # chunks at the ends of what is computed that are not new, or not whole


def document(number: int) -> str:
    """A block of some 100 tokens."""
    luck = random.Random(number)
    facts = " ".join(f"Item {luck.randrange(1000)} costs {luck.randrange(100)}." for _ in range(9))
    return f"<document>\n{facts}\n</document>"


def requests(kind: str) -> Iterator[dict[str, Any]]:
    """Bodies of requests, by a few popular documents and others, in any order."""
    luck = random.Random(f"documents {kind}")
    for number in range(REQUESTS):
        found = luck.sample(range(3), 2) + luck.sample(range(3, DOCUMENTS), EACH - 2)
        luck.shuffle(found)
        documents = [document(each) for each in found]
        text = "\n".join(["Read this.", *documents, f"What does item {number} cost?"])
        prompt = {"messages": [{"role": "user", "content": text}]} if kind == "messages" else {}
        yield {
            **(prompt or {"prompt": text}),
            "model": "chat",
            "max_tokens": ANSWER,
            "temperature": 0,
            "logprobs": True if prompt else 1,
            MEMBER: documents,
        }


def post(client: openai.OpenAI, path: str, body: dict[str, Any]) -> Any:
    return client.post(f"/{path}", body=body, cast_to=object)


@pytest.fixture(scope="module")
def order() -> DocumentOrder:
    """Counts what the gateway counts."""
    return DocumentOrder()


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_answers_equal_those_of_the_same_prompt_without_a_pool(
    path: str,
    order: DocumentOrder,
    pooled: GatewayProcess,
    pair: Pair,
    engines: list[RealEngine],
) -> None:
    kind = MEMBERS[f"/v1/{path}"]
    through, alone = client_of(pooled.url), client_of(engines[0].url)
    changed = cached = 0
    loads = pair.pool.number("operations", tier="dram", direction="load")
    for body in requests(kind):
        stored = stored_chunks(pair.pool)
        found = post(through, path, body)
        members = marked(json.dumps(body).encode())
        assert members is not None
        assert not isinstance(members, str), members
        made = reordered(members, kind, order)
        assert not isinstance(made, str), made
        wanted = post(alone, path, json.loads(made.body))
        assert json.dumps(found["choices"][0]) == json.dumps(wanted["choices"][0])
        details = found["usage"]["prompt_tokens_details"]
        uncached = found["usage"]["prompt_tokens"] - (details or {}).get("cached_tokens", 0)
        assert found["usage"]["prompt_tokens"] == wanted["usage"]["prompt_tokens"]
        changed += bool(made.ranks)
        cached += found["usage"]["prompt_tokens"] - uncached
        # Up to `min_tokens` that the pool has are computed again, and then are not stored anew.
        new = max(0, uncached // CHUNK - KNOWN_MAX)
        wait_until(lambda: stored_chunks(pair.pool) - stored >= new, "it to be stored", HANG_S)  # noqa: B023
    loads = pair.pool.number("operations", tier="dram", direction="load") - loads
    print(f"{path}: {changed} reordered, {cached} tokens cached, {loads} chunks loaded")
    assert changed
    assert cached
    assert loads
