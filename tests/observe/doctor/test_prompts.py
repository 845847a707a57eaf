"""Every check of recorded prompts finds its planted case and nothing else; no text is shown."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.observe.doctor.harness import Machine, finds, is_fine, is_skipped, look

from forebay.cli.main import main
from forebay.errors import SettingsError
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import Severity
from forebay.observe.doctor.prompts import layout
from forebay.observe.doctor.prompts.layout import read_prompts, recorded

CHECKS = ("head", "question", "documents", "tools")
RULES = (
    "You are a patient assistant of a shop that sells gardens and what grows in them.\nBe brief."
)
DOCUMENTS = tuple(
    f"Document {name}: what is said of it here is said in a line that is long enough.\nMore of it."
    for name in ("alpha", "beta", "gamma")
)
UUID = "8c7e6a5e-91b3-4f8e-a1c2-0123456789{:02d}"
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("search", "order", "cancel")
)


def body(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ["system"] + ["user"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"model": "m", "messages": messages, **more}


def facts(tmp_path: Path, *bodies: dict[str, Any]) -> Facts:
    prompts = tuple(recorded(number, each) for number, each in enumerate(bodies, 1))
    return Machine(tmp_path / "machine").facts(prompts=prompts)


def said(name: str, found: Facts) -> str:
    return " ".join(f"{each.sentence} {each.advice}" for each in look(f"prompts.{name}", found))


def test_prompts_as_they_should_be_are_fine(tmp_path: Path) -> None:
    asked = [
        body(RULES, "\n".join([*DOCUMENTS, f"Where is ticket {10_000_000 + number}?"]))
        for number in range(5)
    ]
    for name in CHECKS:
        is_fine(f"prompts.{name}", facts(tmp_path, *asked))
    dialog = [body(*[RULES, *(f"Turn {turn} of a dialog" for turn in range(n))]) for n in (1, 2, 3)]
    for name in CHECKS:
        is_fine(f"prompts.{name}", facts(tmp_path, *dialog))


def test_what_cannot_be_compared_is_not_judged(tmp_path: Path) -> None:
    for name in CHECKS:
        is_skipped(f"prompts.{name}", Machine(tmp_path / "machine").facts())
        is_skipped(f"prompts.{name}", facts(tmp_path, body(RULES)))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Now: 2026-03-01T10:{:02d}:00Z", "a date or time at letter 6 of"),
        ("It is 10:{:02d}.", "a date or time"),
        ("Today is March {}, 2026.", "a date or time"),
        ("On {} Mar 2026, or 3. Apr. 2026, as 20260301-{}", "a date or time"),
        (f"Session {UUID}", "an id at letter 9 of"),
        ("request req_12ab45ef{:04d}", "an id"),
    ],
)
def test_a_date_or_an_id_at_the_beginning(line: str, kind: str, tmp_path: Path) -> None:
    asked = [body(f"{line.format(n, n)}\n{RULES}", f"Question {n}?") for n in range(10, 14)]
    found = facts(tmp_path, *asked)
    finds("prompts.head", found, Severity.WARNING, "In 4 of 4 requests", kind, "last message")
    assert "message 1 (system)" in said("head", found)
    rule = RULES.splitlines()[0]  # in one line with it
    text = [{"prompt": f"{rule} {line.format(n, n)}\nQ?"} for n in range(10, 14)]
    finds("prompts.head", facts(tmp_path, *text), Severity.WARNING, "of prompt")


def test_ids_that_are_the_same_or_last_are_fine(tmp_path: Path) -> None:
    same = [body(f"Session {UUID}\n{RULES}", f"Question {n}?") for n in range(4)]
    is_fine("prompts.head", facts(tmp_path, *same))
    last = [body(RULES, f"It is 2026-03-0{n}. Where is {UUID.format(n)}?") for n in range(4)]
    is_fine("prompts.head", facts(tmp_path, *last))
    behind = "word " * (layout.HEAD_LETTERS // 5)
    late = [body(f"{behind}\nIt is 2026-03-0{n}.\n{RULES}", "Q?") for n in range(4)]
    is_fine("prompts.head", facts(tmp_path, *late))


def test_a_question_before_documents(tmp_path: Path) -> None:
    asked = [body(RULES, "\n".join([f"What is {name}?", *DOCUMENTS])) for name in ("a", "b")]
    found = facts(tmp_path, *asked)
    size = sum(len(text.replace("\n", "")) for text in DOCUMENTS)
    finds("prompts.question", found, Severity.WARNING, "2 of 2", f"last {size} letters", "last.")


def test_documents_in_changing_order(tmp_path: Path) -> None:
    asked = [
        body(RULES, "\n".join([*random.Random(n).sample(DOCUMENTS, 3), f"Question {n}?"]))
        for n in range(9)
    ]
    finds("prompts.documents", facts(tmp_path, *asked), Severity.WARNING, "docs/documents.md")
    is_fine("prompts.question", facts(tmp_path, *asked))
    two = [body(RULES, f"{one}\n{other}\nQ{n}?") for n, (one, other) in enumerate(
        [(DOCUMENTS[0], DOCUMENTS[1]), (DOCUMENTS[2], DOCUMENTS[1]), (DOCUMENTS[1], DOCUMENTS[0])]
    )]  # fmt: skip
    found = facts(tmp_path, *two)
    finds("prompts.documents", found, Severity.WARNING, "1 of 3", "line 3 of the file", "line 1)")
    is_fine("prompts.documents", facts(tmp_path, *two[:2]))


def test_tools_in_changing_order(tmp_path: Path) -> None:
    orders = [list(TOOLS), list(TOOLS[::-1]), list(TOOLS)]
    found = facts(tmp_path, *(body(RULES, "Q?", tools=each) for each in orders))
    finds("prompts.tools", found, Severity.WARNING, "(3) come in 2 orders", "lines 1, 2 of")
    spelt = [dict(reversed(list(each.items()))) for each in TOOLS]
    found = facts(tmp_path, *(body(RULES, "Q?", tools=each) for each in (list(TOOLS), spelt)))
    finds("prompts.tools", found, Severity.WARNING, "members", "Sort tools by name")
    others = facts(tmp_path, *(body(RULES, "Q?", tools=TOOLS[:n]) for n in range(4)))
    is_fine("prompts.tools", others)


def test_a_file_is_read_and_nothing_of_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "requests.jsonl"
    parts = [{"type": "text", "text": DOCUMENTS[0]}, {"type": "image_url"}]
    lines = [
        body(
            f"User patient-{n}2345678\n{RULES}",
            "\n".join([f"secret {n}", *DOCUMENTS[:: 1 - 2 * n]]),
            tools=list(TOOLS[:: 1 - 2 * n]),
            instructions="x",
            input=parts,
        )
        for n in (0, 1)
    ]
    wrapped = {"custom_id": "1", "body": lines[1]}
    place.write_text(f"{json.dumps(lines[0])}\n\n{json.dumps(wrapped)}\n")
    words = ["doctor", "--socket", str(tmp_path / "pool.sock"), "--no-measure"]
    assert main([*words, "--prompts", str(place), "--json"]) == 1
    out = capsys.readouterr().out
    found = {each["check"]: each for each in json.loads(out)["findings"]}
    for name in CHECKS:
        assert found[f"prompts.{name}"]["severity"] == "warning", found[f"prompts.{name}"]
    assert "line 3" in found["prompts.documents"]["sentence"]
    assert main([*words, "--prompts", str(place)]) == 1
    out += capsys.readouterr().out
    for word in ("patient", "secret", "alpha", "search", "shop", "2345678"):
        assert word not in out
    assert "patient" not in repr(read_prompts(place))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}\n[]\n", "no JSON object in line 2"),
        ("not JSON", "in line 1"),
        ("[" * 10_000, "in line 1"),
        ("{}\n" * (layout.REQUESTS_MAX + 1), "more than 10,000 requests"),
    ],
)
def test_what_is_no_record_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    place = tmp_path / "requests.jsonl"
    place.write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_prompts(place)


def test_bodies_of_any_shape_are_read(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"messages": [1, {"role": [], "content": [{"text": 3}, "x"]}, {"content": {}}]},
        {"messages": "text", "tools": {"a": 1}, "prompt": [1, 2]},
        {"messages": [{"role": "x" * 99, "content": "It is \ud800 10:10.\r\n\n \t"}], "tools": [1]},
        {"input": "z", "system": [{"text": "y"}], "body": 3},
        {"prompt": "a\n" * 100_000},
    ]
    for name in CHECKS:
        is_fine(f"prompts.{name}", facts(tmp_path, *odd, *odd))
