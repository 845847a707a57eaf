"""`forebay remote check`: a store is tried, and what it does wrong is said."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.remote_harness import opened_remote

from forebay.cli.host import remote
from forebay.cli.main import main
from forebay.testing.conformance import load, store
from forebay.testing.conformance.hooks import eventually
from forebay.testing.samples import single
from forebay.tiers.contract import Hit, Stored

LONG_S = 600.0  # longer than a call takes on a busy machine


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(
        remote._OPTIONS, call_s=LONG_S, put_s=LONG_S, maintenance_s=LONG_S, open_s=LONG_S
    )
    monkeypatch.setattr(remote, "_OPTIONS", options)
    monkeypatch.setattr(remote, "_WAIT_S", LONG_S)


def test_a_sound_store_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}?cap=1GiB"
    assert main(["remote", "check", url]) == 0
    said = capsys.readouterr().out
    assert said.startswith("stored     16 of 16 records of 4 MiB")
    assert said.endswith(f"file://{tmp_path} can be used\n")
    assert main(["remote", "check", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stored"], found["loaded"], found["deleted"], found["sound"]) == (
        16,
        16,
        16,
        True,
    )
    assert not list(tmp_path.glob("packs/*/*")), "it is deleted again"


def test_a_store_that_takes_too_little_must_not_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cap in ("1MiB", "64MiB"):
        assert main(["remote", "check", f"file://{tmp_path}?cap={cap}"]) == 1
        said = capsys.readouterr().out
        assert said.endswith(
            "must not be used as it is: this check needs a cap of 80 MiB or more\n"
        )


def test_a_check_is_not_the_host_whose_url_it_is_given(tmp_path: Path) -> None:
    """Else it would take over the packs of a pool that runs, and make room among them."""
    samples = [single(f"of the pool {number}") for number in range(3)]
    with opened_remote(tmp_path, "x", cap_bytes=70 << 20) as tier:
        for sample in samples:
            assert store(tier, sample) == Stored()
        eventually(lambda: tier.upkeep.is_idle)
        child = tier.parts.link.pid
        assert child is not None
        os.kill(child, signal.SIGSTOP)  # so that the pool itself publishes nothing meanwhile
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "hosts/x").iterdir()}
        assert main(["remote", "check", f"file://{tmp_path}?cap=70MiB&host=x"]) in (0, 1)
        after = {path: path.stat().st_mtime_ns for path in (tmp_path / "hosts/x").iterdir()}
        assert after == before
        os.kill(child, signal.SIGCONT)
        for sample in samples:
            assert load(tier, sample) == (Hit(sample.length), sample.payload)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("gs://bucket?cap=1GiB", "no store that is known"),
        ("file:///nowhere/at/all?cap=1GiB", "does not answer"),
    ],
)
def test_what_cannot_be_reached_is_one_sentence(
    url: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remote", "check", url]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("forebay: ")
    assert why in said


def test_a_check_says_when_a_hit_would_pay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["remote", "check", f"file://{tmp_path}?cap=1GiB"]
    assert main([*words, "--model", "Qwen3-8B"]) == 2
    assert "--prefill-tps" in capsys.readouterr().err
    assert main([*words, "--model", "Qwen3-8B", "--prefill-tps", "0.001", "--json"]) == 0
    pays = json.loads(capsys.readouterr().out)["pays"]
    assert pays["wins_from_tokens"] == 1, "any store is faster than so slow a GPU"
    assert main([*words, "--model", "Qwen3-8B", "--prefill-tps", "1000G"]) == 0
    assert "a hit pays never on an idle GPU" in capsys.readouterr().out
