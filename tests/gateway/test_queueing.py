"""Through the front: hints to engines with the pool, turns of keys, what operators see."""

import hashlib
import json
import threading
from collections import Counter
from itertools import count

from tests.gateway_harness import (
    MODEL,
    Asked,
    SmallEngine,
    answers,
    chat,
    gateway,
    hangs_up,
    says,
    streams,
    waits,
)
from tests.pool_process import HANG_S, wait_until


def test_hints_reach_engines_with_the_pool_and_only_those() -> None:
    with SmallEngine(streams) as engine, gateway(engine, pool=True) as front:
        for _ in range(2):
            body = chat(stream=True, priority=5)
            front.fetch("/v1/chat/completions", body, X_Session_ID="dialog 1")
        own = chat(kv_transfer_params={"mine": 1})
        front.fetch("/v1/chat/completions", own, X_Session_ID="dialog 1")
        front.fetch("/v1/chat/completions", chat())
        front.fetch("/v1/embeddings", {"model": MODEL, "input": "x"}, X_Session_ID="dialog 1")
        sent = [json.loads(asked.body) for asked in engine.asked]
        hints = [each.pop("kv_transfer_params", None) for each in sent]
        assert hints == [
            {"forebay": {"session": "dialog 1", "priority": -5}},
            {"forebay": {"session": "dialog 1", "ended": "tool_call", "priority": -5}},
            {"mine": 1},
            None,
            None,
        ]
        assert sent[:2] == [chat(stream=True, priority=5)] * 2
        assert "dialog 1" not in front.text()
    with SmallEngine(answers) as engine, gateway(engine) as front:
        plain = json.dumps(chat()).encode()
        front.fetch("/v1/chat/completions", plain, X_Session_ID="dialog 1")
        assert engine.asked[0].body == plain


def test_two_keys_get_equal_shares_while_both_wait() -> None:
    """One key sends ten times as many requests; an engine with one slot takes them in turn."""
    keys = "".join(
        f'[[key]]\nname = "{name}"\noperator = true\n'
        f'token_sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n'
        for name in ("much", "little")
    )
    with SmallEngine(waits) as engine, gateway(engine, config=keys, max_num_seqs=1) as front:

        def ask(key: str, number: int) -> None:
            body = chat(f"{key} {number}", max_tokens=10)  # no prompt is cached
            said = front.fetch("/v1/chat/completions", body, Authorization=f"Bearer {key}")
            assert said[0] == 200

        def waiting() -> int:
            said = json.loads(front.fetch("/status", Authorization="Bearer much")[2])
            return sum(each["waiting"] for each in said["keys"])

        asked = ["much"] * 200 + ["little"] * 20
        threads = [threading.Thread(target=ask, args=each) for each in zip(asked, count())]
        for thread in threads:
            thread.start()
        wait_until(lambda: waiting() == len(asked) - 1, "the queue", HANG_S)
        engine.may_go.set()
        for thread in threads:
            thread.join(HANG_S)
        order = [key_of(each) for each in engine.asked]
        assert len(order) == len(asked)
        last = len(order) - order[::-1].index("little")  # until then both wait
        served = Counter(order[1:last])  # of equal tokens each
        assert 0.9 <= served["much"] / served["little"] <= 1.1, order
        text = front.fetch("/metrics", Authorization="Bearer much")[2].decode()
        assert 'forebay_gateway_tokens_total{key="little",kind="answer"} 40.0' in text
        assert 'forebay_gateway_waiting{key="much"} 0.0' in text


def key_of(asked: Asked) -> str:
    return str(json.loads(asked.body)["messages"][0]["content"]).split()[0]


def test_a_key_pays_nothing_for_what_is_refused() -> None:
    digest = hashlib.sha256(b"k").hexdigest()
    key = f'[[key]]\nname = "k"\ntoken_sha256 = "{digest}"\ntokens_a_minute = 1000\n'
    for behave, status in ((says(400), 400), (hangs_up, 502)):
        with SmallEngine(behave) as engine, gateway(engine, config=key) as front:
            for _ in range(2):
                body = chat("w" * 20_000)
                assert front.fetch("/v1/chat/completions", body, X_Api_Key="k")[0] == status
