"""Bodies that mark their documents: blocks are exchanged and nothing else; slips are refused."""

import json
import random
from typing import Any

import pytest

from forebay.documents import bodies
from forebay.documents.bodies import BODY_BYTES_MAX, DOCUMENTS_MAX, MEMBER, ReorderedBody, marked
from forebay.documents.order import DocumentOrder, note_of

A, B, C = "<doc>alpha: one</doc>", "<doc>beta</doc>", "<doc>gamma</doc>"


def popular(*documents: str) -> DocumentOrder:
    """An order in which these come first, in this order."""
    order = DocumentOrder()
    for count, each in enumerate(reversed(documents)):
        for _ in range(count + 1):
            order.arrange([each])
    return order


def reordered(body: bytes, member: str, order: DocumentOrder) -> ReorderedBody | str:
    members = marked(body)
    assert members is not None
    return members if isinstance(members, str) else bodies.reordered(members, member, order)


def made(body: Any, member: str, order: DocumentOrder) -> Any:
    found = reordered(body if isinstance(body, bytes) else json.dumps(body).encode(), member, order)
    assert not isinstance(found, str), found
    return json.loads(found.body)


def test_a_prompt_s_blocks_are_exchanged_and_the_question_stays_last() -> None:
    body = {"prompt": f"Head {A}.\n\n{A}\n{B}\n--\n{C}\n\nQ: {B}?", MEMBER: [A, B, C], "n": 1e3}
    note = "Ranks of the documents above by relevance, in their order: 3, 1, 2."
    found = made(body, "prompt", popular(C, A, B))
    assert found == {"prompt": f"Head {A}.\n\n{C}\n{A}\n--\n{B}\n{note}\n\nQ: {B}?", "n": 1000.0}


def test_the_last_message_with_them_is_changed_and_no_other_byte() -> None:
    first = b'{"role": "user", "content":"<doc>beta</doc> <doc>gamma</doc>\\u00e4" }'
    body = b'{"messages":[%b, {"content": %b, "x": 1e3}, {"role" : 3}, 7],"%b":%b, "y":[ 1 ]}'
    content, listed = json.dumps(f"{B} {C}end").encode(), json.dumps([B, C]).encode()
    found = reordered(body % (first, content, MEMBER.encode(), listed), "messages", popular(C))
    assert not isinstance(found, str)
    assert found.ranks == (2, 1)
    note = "Ranks of the documents above by relevance, in their order: 2, 1."
    assert found.body == (
        b'{"messages":[%b,{"content":%b,"x":1e3},{"role" : 3},7],"y":[ 1 ]}'
        % (first, json.dumps(f"{C} {B}\n{note}\nend").encode())
    )


def test_blocks_may_be_parts_of_a_message() -> None:
    parts: list[Any] = [{"type": "text", "text": each, "x": each} for each in ("head", A, B, "Q")]
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    content = [image, *parts]
    body = {"messages": [{"role": "user", "content": content}], MEMBER: [A, B]}
    found = made(body, "messages", popular(B))["messages"][0]["content"]
    assert [each.get("text") for each in found[:4]] == [None, "head", B, A]
    assert found[2:4] == [parts[2], parts[1]]
    assert found[4]["text"].endswith("in their order: 2, 1.")
    assert (found[0], found[5:]) == (image, [parts[3]])


def test_an_order_that_is_right_adds_nothing() -> None:
    for documents in ([], [A], [A, B]):
        prompt = "head" + " ".join(documents)
        body = {"prompt": prompt, MEMBER: documents, "cache_salt": "s"}
        order = DocumentOrder()
        for each in documents[:1] * 3:
            order.arrange([each], b'"s"')
        found = reordered(json.dumps(body).encode(), "prompt", order)
        assert not isinstance(found, str)
        assert json.loads(found.body) == {"prompt": prompt, "cache_salt": "s"}
        assert found.ranks == ()


def test_counts_of_one_salt_change_nothing_for_another() -> None:
    order = DocumentOrder()
    first, second = DocumentOrder().arrange([A, B]).documents
    for _ in range(9):
        order.arrange([second], b'"s"')
    for salt, wanted in (("s", [second, first]), ("t", [first, second])):
        body = {"prompt": f"{A}\n{B}", MEMBER: [A, B], "cache_salt": salt}
        assert made(body, "prompt", order)["prompt"].split("\n")[:2] == wanted, salt


SLIPS: tuple[tuple[Any, str], ...] = (
    ({"prompt": "a b", MEMBER: "a"}, "is a list of texts"),
    ({"prompt": "a b", MEMBER: None}, "is a list of texts"),
    ({"prompt": "a b", MEMBER: ["a", 1]}, "is a list of texts"),
    ({MEMBER: ["a"]}, "beside 'prompt'"),
    ({"prompt": "a b", MEMBER: ["a", ""]}, "has an empty text"),
    ({"prompt": "a " * 999, MEMBER: ["a"] * (DOCUMENTS_MAX + 1)}, "at most 256 texts"),
    ({"prompt": "a b", MEMBER: ["b", "a"]}, "one after the other"),
    ({"prompt": "a, Source: b", MEMBER: ["a", "b"]}, "nothing between them"),
    ({"prompt": "a [2] b", MEMBER: ["a", "b"]}, "nothing between them"),
    ({"prompt": f"a{' ' * 65}b", MEMBER: ["a", "b"]}, "one after the other"),
    ({"prompt": ["a b"], MEMBER: ["a", "b"]}, "one message or prompt"),
    ({"prompt": [1, 2], MEMBER: ["a", "b"]}, "one message or prompt"),
)


@pytest.mark.parametrize(("body", "said"), SLIPS)
def test_a_slip_is_one_sentence(body: Any, said: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = reordered(data, "prompt", DocumentOrder())
    assert isinstance(found, str)
    assert said in found


@pytest.mark.parametrize(
    "content", [None, 1, [], [A], [{"text": A}], [{"text": 1}], {}, f"{A}x{B}"]
)
def test_messages_without_the_documents_are_refused(content: Any) -> None:
    body = {"messages": [{"role": "user", "content": content}, [], "x"], MEMBER: [A, B]}
    found = reordered(json.dumps(body).encode(), "messages", DocumentOrder())
    assert isinstance(found, str)
    assert "one after the other" in found
    body["messages"] = content
    assert isinstance(reordered(json.dumps(body).encode(), "messages", DocumentOrder()), str)


def test_what_is_no_object_with_the_member_is_not_marked() -> None:
    name = MEMBER.encode()
    for body in (
        b"[" * 10_000,
        b'{"%b":%b' % (name, b"[" * 10_000),
        b'{"prompt": "\\ud800 a", "%b": ["a"]}' % name,
        b'["%b"]' % name,
        b'{"prompt": "%b"}' % name,
        b'{"prompt": ["%b"]}' % name,
        b'{"prompt": ["%b", "%b"]}' % (name, b"a" * BODY_BYTES_MAX),
        b'{"prompt": "%b"' % (b'"%b"' % name * (BODY_BYTES_MAX // len(name))),
    ):
        assert marked(body) is None


# Letters that JSON writes in two ways, or that are the end of another's escape.
ODD = ("n a", "nn", "\n a", "e4 b", "ä b", 'd"c', "\\e/", "/f", "🦆g", "\u3000h", "é\t")


def test_letters_may_be_written_in_any_way() -> None:
    luck = random.Random(1)
    for _ in range(500):
        documents = luck.sample(ODD, 3)
        gaps = [luck.choice(("", "\n", " ", "\\", "\u00b7")) for _ in documents]
        head, tail = "ä b. ", luck.choice(("", "\nQ", "\tQ", "\u3000Q", "Q", "ä"))
        between = "".join(gap + each for gap, each in zip(gaps, documents, strict=True))
        ways = [(luck.random() < 0.5, luck.choice(["/", "\\/"])) for _ in range(2)]
        prompt, *listed = (
            json.dumps(each, ensure_ascii=is_ascii).replace("/", slash)
            for each, (is_ascii, slash) in zip(
                (f"{head}{between}{tail}", *documents), (ways[0], *3 * ways[1:]), strict=True
            )
        )
        body = f'{{"prompt": {prompt}, "{MEMBER}": [{", ".join(listed)}]}}'
        ranks = DocumentOrder().ranks([each[1:-1].encode() for each in listed])
        wanted = head + "".join(
            gap + documents[rank - 1] for gap, rank in zip(gaps, ranks, strict=True)
        )
        if ranks != (1, 2, 3):
            wanted += f"\n{note_of(ranks)}" + ("\n" if tail in {"Q", "ä"} else "")
        assert made(body.encode(), "prompt", DocumentOrder())["prompt"] == wanted + tail, body


def test_work_has_a_limit_however_a_body_is_made() -> None:
    order = DocumentOrder()
    size = BODY_BYTES_MAX // 2 - 1000
    hostile: tuple[tuple[str, Any, list[str]], ...] = (
        ("prompt", "a" * size, ["a", "b"]),
        ("prompt", "a" * size, ["a" * (size // 2), "b"]),
        ("prompt", "ab" * (size // 2), ["ab" * (size // 4), "ba" * (size // 8) + "c"]),
        ("prompt", "\\" * (size // 4) + "n" * 99, ["n", "b"]),
        ("messages", [{"content": [{"text": "a"}] * (size // 16)}], ["a"] * 255 + ["b"]),
        ("messages", [{"content": "a b"}] * (size // 24), ["a", "c"]),
    )
    for member, prompt, documents in hostile:
        body = json.dumps({member: prompt, MEMBER: documents, "cache_salt": "s" * 1000}).encode()
        assert len(body) <= BODY_BYTES_MAX
        found = reordered(body, member, order)
        assert isinstance(found, str)
        assert "one after the other" in found
    body = json.dumps({"prompt": "a" * BODY_BYTES_MAX, MEMBER: ["a"]}).encode()
    assert marked(body) == f"a body with {MEMBER} has at most 8 MiB"
