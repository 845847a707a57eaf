"""Real clients with the gateway's address only, before real engines; then kills of either."""

import threading
from typing import Any

import anthropic
import openai
import pytest
from tests.engines.vllm.real.engine import HANG_S
from tests.gateway.real.conftest import RealEngine, client_of
from tests.gateway_harness import GatewayProcess
from tests.pool_process import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
ASKED: Any = [{"role": "user", "content": "Name three rivers."}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"hot": {"type": "boolean"}},
            "required": ["hot"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(front: GatewayProcess) -> openai.OpenAI:
    return client_of(front.url)


def words(client: openai.OpenAI, headers: "dict[str, str] | None" = None) -> "str | None":
    answer = client.chat.completions.create(
        model="chat", messages=ASKED, max_tokens=8, temperature=0, extra_headers=headers
    )
    content: str | None = answer.choices[0].message.content
    return content


def streamed(client: openai.OpenAI, tokens: int = 8) -> str:
    pieces = client.chat.completions.create(
        model="chat", messages=ASKED, max_tokens=tokens, temperature=0, stream=True
    )
    return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


def test_the_openai_package(
    client: openai.OpenAI, front: GatewayProcess, engines: list[RealEngine]
) -> None:
    direct = client_of(engines[0].url)
    expected = words(direct)
    for session in ("one", "two", "one"):  # hints to the engine that has the pool change nothing
        assert words(client, {"X-Session-ID": session}) == expected
    assert streamed(client) == expected
    assert {model.id for model in client.models.list()} == {"chat", "embed"}
    text = client.completions.create(model="chat", prompt="One two", max_tokens=4, temperature=0)
    pieces = client.completions.create(
        model="chat", prompt="One two", max_tokens=4, temperature=0, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces) == text.choices[0].text
    answer = client.responses.create(model="chat", input="Hi", max_output_tokens=4, temperature=0)
    with client.responses.stream(
        model="chat", input="Hi", max_output_tokens=4, temperature=0
    ) as events:
        kinds = [event.type for event in events]
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    assert "response.output_text.delta" in kinds
    vectors = client.embeddings.create(model="embed", input=["a", "b"])
    assert len(vectors.data) == 2
    tool = client.chat.completions.create(
        model="chat",
        messages=ASKED,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=64,
        temperature=0,
    )
    (call,) = tool.choices[0].message.tool_calls or []
    assert call.function.name == "weather"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASKED)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="chat", messages=ASKED, max_tokens=-1)
    states = {each["name"]: each["condition"] for each in front.status()["engines"]}
    assert states == {"a": "up", "b": "up", "c": "up"}


def test_the_anthropic_package(front: GatewayProcess) -> None:
    client = anthropic.Anthropic(base_url=front.url, api_key="none", timeout=HANG_S, max_retries=0)
    greedy: Any = {"extra_body": {"temperature": 0}}
    answer = client.messages.create(
        model="chat", messages=ASKED, max_tokens=8, system="Be brief.", **greedy
    )
    with client.messages.stream(
        model="chat", messages=ASKED, max_tokens=8, system="Be brief.", **greedy
    ) as stream:
        text = "".join(stream.text_stream)
    assert answer.content[0].type == "text"
    assert text == answer.content[0].text
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", messages=ASKED, max_tokens=8)


def test_t64_the_gateway_may_be_killed(
    client: openai.OpenAI, front: GatewayProcess, engines: list[RealEngine]
) -> None:
    expected = words(client)
    port = front.port
    front.kill()
    direct = client_of(engines[1].url)
    assert words(direct) == expected
    front.file.write_text(front.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    front.start()
    for name in "abc":
        wait_until(lambda name=name: front.is_up(name), "an engine", HANG_S)  # type: ignore[misc]
    assert words(client) == expected


def test_t64_an_engine_may_be_killed(
    client: openai.OpenAI, front: GatewayProcess, engines: list[RealEngine]
) -> None:
    """Streams under way at both engines: those of the killed one end with an error, no others."""
    expected = streamed(client, 200)
    begun: list[str] = []  # engines whose streams have begun
    outcomes: list[str] = []

    def ask(number: int) -> None:
        asked: Any = [{"role": "user", "content": f"Count to {number}."}]
        try:
            pieces = client.chat.completions.with_raw_response.create(
                model="chat", messages=asked, max_tokens=400, temperature=0, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            engine = pieces.headers["x-forebay-engine"]
            begun.append(engine)
            try:
                for _ in pieces.parse():
                    pass
                outcomes.append(f"{engine} whole")
            except openai.APIError:
                outcomes.append(f"{engine} broken")
        except openai.APIStatusError as error:
            outcomes.append(f"refused {error.status_code}")

    threads = [threading.Thread(target=ask, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: {"a", "b"} <= set(begun), "streams of both", HANG_S)
    engines[1].kill()
    for thread in threads:
        thread.join(HANG_S)
    assert len(outcomes) == 6
    assert {"a whole", "b broken"} <= set(outcomes)
    assert set(outcomes) <= {"a whole", "b broken", "refused 502"}, outcomes
    wait_until(lambda: front.condition("b") == "down", "the breaker", HANG_S)
    assert [streamed(client, 200) for _ in range(3)] == [expected] * 3
