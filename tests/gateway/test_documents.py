"""The gateway orders documents that a request marks, by tenant, and leaves all others alone."""

import json
from pathlib import Path
from typing import Any

from tests.gateway.test_tenants import file_of
from tests.gateway_harness import MODEL, SmallEngine, answers, chat, gateway

from forebay.documents import bodies
from forebay.documents.bodies import MEMBER
from forebay.documents.order import DocumentOrder
from forebay.gateway.config import KeySetting
from forebay.gateway.documents import _ALL_MAX, DocumentStep
from forebay.gateway.front.reading import CUT_BYTES, read_body, read_reordered

PAIR = DocumentOrder().arrange(["first text", "second text"]).documents  # as nobody has asked

ESCAPED = MEMBER.replace("_", "\\u005f")


def marked(documents: "list[str]", question: str = "Why?", **more: Any) -> dict[str, Any]:
    return {**chat("\n\n".join([*documents, question]), **more), MEMBER: documents}


def test_documents_are_ordered_and_no_engine_sees_the_mark() -> None:
    note = "Ranks of the documents above by relevance, in their order: 2, 1."
    text = f"{PAIR[0]}\n\n{PAIR[1]}\n{note}\n\nWhy?"
    with SmallEngine(answers) as engine, gateway(engine, pool=True) as front:
        given = [PAIR[1], PAIR[0]]
        status, headers, _ = front.fetch("/v1/chat/completions", marked(given), X_Session_ID="s")
        assert (status, headers["x-forebay-documents"]) == (200, "2,1")
        sent = json.loads(engine.asked[-1].body)
        assert sent["messages"] == [{"role": "user", "content": text}]
        assert set(sent) == {"model", "messages", "kv_transfer_params"}
        prompt = "\n\n".join([*given, "Why?"])
        body = json.dumps({"model": MODEL, "prompt": prompt, MEMBER: given})
        headers = front.fetch("/v1/completions", body.encode())[1]
        assert headers["x-forebay-documents"] == "2,1"
        sent = json.loads(engine.asked[-1].body)
        assert sent == {"model": MODEL, "prompt": text}
        _, headers, _ = front.fetch("/v1/chat/completions", marked(list(PAIR)))
        assert "x-forebay-documents" not in headers
        assert MEMBER.encode() not in engine.asked[-1].body
        metrics = front.fetch("/metrics")[2].decode()
        assert 'forebay_gateway_documents_total{order="changed"} 2' in metrics
        assert 'forebay_gateway_documents_total{order="kept"} 1' in metrics
        assert "text" not in front.text()


def test_bodies_without_the_mark_pass_byte_for_byte() -> None:
    body = b'{ "model":"small", "prompt" : "forebay_documents", "x": ["forebay_documents"] }'
    with SmallEngine(answers) as engine, gateway(engine) as front:
        assert front.fetch("/v1/completions", body)[0] == 200
        assert engine.asked[-1].body == body


def test_a_slip_is_answered_400_and_goes_nowhere() -> None:
    with SmallEngine(answers) as engine, gateway(engine) as front:
        for path, body in (
            ("/v1/chat/completions", marked(["a"]) | {MEMBER: ["not there"]}),
            ("/v1/chat/completions", marked(["a"]) | {MEMBER: {"a": 1}}),
            ("/v1/embeddings", marked(["a", "b"])),
            ("/v1/completions", json.dumps(marked(["a"])).replace(MEMBER, ESCAPED).encode()),
            ("/v1/messages", marked(["a", "b"])),
            ("/tokenize", marked(["a", "b"])),
        ):
            status, _, said = front.fetch(path, body)
            assert status == 400, path
            assert MEMBER in json.loads(said)["error"]["message"]
        assert not engine.asked


def test_the_order_tells_one_tenant_nothing_of_another(tmp_path: Path) -> None:
    """The tenant `search` has two keys; `shop` is another, and `plain` is of no tenant."""
    with SmallEngine(answers) as engine, gateway(engine, config=file_of(tmp_path)) as front:

        def order(name: str) -> str:
            found = front.fetch("/v1/chat/completions", marked(list(PAIR)), X_Api_Key=name)
            assert found[0] == 200
            return found[1].get("x-forebay-documents", "kept")

        for _ in range(3):
            assert (
                front.fetch("/v1/chat/completions", marked([PAIR[1]]), X_Api_Key="team")[0] == 200
            )
        names = ("other-team", "team", "shop", "plain")
        assert [order(each) for each in names] == ["2,1", "2,1", "kept", "kept"]


def test_all_tables_together_have_a_limit() -> None:
    keys = tuple(KeySetting(f"k{number}") for number in range(256))
    step = DocumentStep(keys)
    assert sum(each._popularity._limit for each in step._orders.values()) <= _ALL_MAX
    same = DocumentStep((KeySetting("a", tenant="t"), KeySetting("b", tenant="t"), KeySetting("t")))
    assert len(same._orders) == 2


def test_placement_sees_what_two_long_messages_begin_with() -> None:
    document = "x" * 4 * CUT_BYTES
    common = []
    for member in ("other", MEMBER):
        chains = []
        for question in ("a", "b"):
            body = json.dumps({**chat(f"{document} {question}"), member: [document]}).encode()
            members = bodies.marked(body)
            if members is None:
                read = read_body(body, "")
            else:
                assert not isinstance(members, str)
                made = bodies.reordered(members, "messages", DocumentOrder())
                assert not isinstance(made, str)
                read = read_reordered(made)
            assert not isinstance(read, str)
            chains.append({*read.chain})
        common.append(len(chains[0] & chains[1]))
    assert common == [0, 4]
