"""`forebay plan remote`: when a hit in a store pays, and a day's dollars, against plain sums."""

import json
from typing import Any

import pytest

from forebay.cli.main import main

MODEL = ["plan", "remote", "--layers", "36", "--heads", "8", "--head-dim", "128"]  # 147,456 bytes
TOKEN = 147_456


def answered(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main([*MODEL, "--prefill-tps", "30000", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("first_ms", "tokens"), [("150", 7417), ("10", 495), ("1", 50)])
def test_a_hit_pays_from_a_length_on(
    first_ms: str, tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "--first-ms", first_ms, "--bandwidth", "11.25GB")
    assert found["pays"]["wins_from_tokens"] == tokens
    load_s = int(first_ms) / 1000 + 8192 * TOKEN / 11.25e9
    assert found["pays"]["load_ms"] == pytest.approx(1000 * load_s)


def test_a_store_that_is_too_slow_pays_never(capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(capsys, "--bandwidth", "1.25GB")["pays"]["wins_from_tokens"] is None
    assert main([*MODEL, "--prefill-tps", "30000", "--bandwidth", "1.25GB"]) == 0
    assert "never on an idle GPU" in capsys.readouterr().out


def test_a_day_in_requests_and_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(
        capsys,
        *("--prompts", "1000", "--prompt-tokens", "10000", "--hit-share", "0.5"),
        *("--sent-share", "0.1", "--days-kept", "2", "--hosts", "2", "--chunk-tokens", "100"),
        *("--prices", "5:0.4:30:2", "--gpu-dollars-h", "3600"),
    )
    sent_bytes, read_bytes = 1e6 * TOKEN, 5e6 * TOKEN
    packs = -(-int(sent_bytes) // (32 << 20))
    looks = 2 * 8640
    assert found["puts_a_day"] == 2 * packs
    assert found["gets_a_day"] == 50_000 + looks
    assert found["lists_a_day"] == looks
    assert found["stored_bytes"] == pytest.approx(2 * sent_bytes)
    dollars = (2 * packs + looks) * 0.005 + (50_000 + looks) * 0.0004
    dollars += read_bytes / 1e9 * 2 + 2 * sent_bytes / 1e9
    assert found["dollars_a_day"] == pytest.approx(dollars)
    assert found["saved_dollars_a_day"] == pytest.approx(5e6 / 30_000)
    assert found["even_share"] is None, "its reads alone cost more than the GPU"


def test_from_a_share_of_tokens_on_it_pays_in_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--prices", "0.005:0.0004:0.023", "--gpu-dollars-h", "30", "--sent-share", "0.01")
    share = answered(capsys, *flags)["even_share"]
    assert 0 < share < 1
    even = answered(capsys, *flags, "--hit-share", str(share))
    assert even["dollars_a_day"] == pytest.approx(even["saved_dollars_a_day"])


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--prices", "cheap"), "are no prices"),
        (("--hit-share", "2"), "hit_share"),
        (("--bandwidth", "fast"), "not a size"),
        (("--hosts", "0"), "hosts"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    flags: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*MODEL, "--prefill-tps", "30000", *flags]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
