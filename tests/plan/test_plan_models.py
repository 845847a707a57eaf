"""Models by the names that a hub has for them, and what the table of compatibility has for each."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import main
from forebay.engines.vllm.kinds import KINDS
from forebay.plan.model.config import shape_of
from forebay.plan.model.known import HUB, MODELS, known_model
from forebay.plan.model.support import Outlook

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def readable(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_every_model_can_be_asked_for_by_either_name() -> None:
    for name, model in {**MODELS, **HUB}.items():
        assert known_model(name.upper()) == (name, model)
        assert shape_of(name, name, model.config).token_bytes > 0
    assert {hub.partition("/")[0] for hub in HUB} >= {"meta-llama", "Qwen", "google", "openai"}
    assert known_model("Qwen/Qwen3") is None


def test_a_name_of_a_hub_is_answered_as_the_short_one(capsys: pytest.CaptureFixture[str]) -> None:
    for short, hub in (
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Llama-3.1-70B", "meta-llama/Llama-3.3-70B-Instruct"),
        ("DeepSeek-V3", "deepseek-ai/DeepSeek-R1"),
        ("Gemma-3-27B", "google/gemma-3-27b-it"),
    ):
        fits = ("--tokens", "32k", "--gpu-memory", "141GB", "--gpus", "8")
        one, two = (answer(capsys, "kv", name, *fits) for name in (short, hub))
        assert one.pop("model") == short
        assert two.pop("model") == hub
        assert one == two
        assert one["tokens"] == 32_000


def test_a_longer_context_is_the_name_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    fits = ("--gpu-memory", "1TB", "--weights", "1GB")
    old = answer(capsys, "kv", "Qwen/Qwen3-4B", *fits)["capacity"]
    new = answer(capsys, "kv", "Qwen/Qwen3-4B-Instruct-2507", *fits)["capacity"]
    assert (old["longest_context_tokens"], new["longest_context_tokens"]) == (40_960, 262_144)


def test_a_directory_of_that_name_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "Qwen" / "Qwen3-8B"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODELS["Llama-3.2-1B"].config))
    assert answer(capsys, "kv", "Qwen/Qwen3-8B")["token_bytes"] == 32_768


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("Llama-3.1-8B", "FullAttentionSpec"),
        ("DeepSeek-V2-Lite", "MLAAttentionSpec"),
        ("gpt-oss-20b", "SlidingWindowSpec"),
        ("Qwen3-Next-80B-A3B", "states"),
        ("Mistral-7B-v0.1", "local attention alone"),
    ],
)
@pytest.mark.parametrize(
    "question",
    [
        ("kv",),
        ("pool", "--users", "5", "--context", "1k"),
        ("breakeven", "--prefill-tps", "9k"),
        ("remote", "--prefill-tps", "9k"),
    ],
    ids=lambda words: words[0],
)
def test_an_answer_says_what_the_table_says(
    model: str, kind: str, question: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    row = KINDS[kind]
    words = (question[0], model, *question[1:])
    found, text = answer(capsys, *words), readable(capsys, *words)
    assert found["declined"] == row.why
    assert found["compatibility"]["kind"] == row.what
    assert f"| {row.what} |" in PAGE.read_text()
    if row.why:
        assert f"declines this model on vLLM, which then serves without it: {row.why}." in text
    else:
        assert f"Forebay shares it on vLLM: {row.what}" in text
    assert found["compatibility"]["run_on"] == [
        f"vLLM {release}, {device}" for release, device in row.ran
    ]
    for reason in found["compatibility"]["declined_if"]:
        assert reason in text
        assert reason in PAGE.read_text()
    beside = {"SlidingWindowSpec": 1, "states": 4}
    assert len(found["compatibility"]["declined_if"]) == beside.get(kind, 0)


def test_numbers_are_no_model_to_judge(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ("kv", "--layers", "2", "--model-dim", "64")
    assert answer(capsys, *numbers)["compatibility"] is None
    assert "vLLM" not in readable(capsys, *numbers)


def test_what_was_not_run_is_said() -> None:
    kind = KINDS["expert parallelism"]
    assert not kind.ran
    assert "read in vLLM's source, not run" in " ".join(Outlook(kind).lines())
