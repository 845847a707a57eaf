"""Adapters are what their files hold, for as long as they hold it; nobody waits for the hash."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pool_process import HANG_S, wait_until

from forebay.engines import weights
from forebay.engines.adapters import AdapterHashes, hash_adapter, stamps_of
from forebay.engines.weights import WeightsHash


@pytest.fixture
def hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdapterHashes]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = AdapterHashes()
    yield made
    made.close()


def adapter(place: Path, weights: bytes = b"weights", rank: int = 8) -> str:
    place.mkdir(parents=True)
    (place / "adapter_model.safetensors").write_bytes(weights)
    (place / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return str(place)


def known(hashes: AdapterHashes, number: int, path: str) -> str:
    """Ask as requests do, until it is known or known to be unknown."""
    found: list[str] = []

    def is_known() -> bool:
        hashes.poll()
        digest = hashes.digest_of(number, path)
        if digest is not None:
            found.append(digest)
        return digest is not None

    wait_until(is_known, "the hash")
    return found[0]


def test_t53_adapters_are_told_apart_by_their_files(hashes: AdapterHashes, tmp_path: Path) -> None:
    first = adapter(tmp_path / "here" / "adapter")
    assert hashes.digest_of(1, first) is None, "it is not waited for"
    digest = known(hashes, 1, first)
    assert digest
    assert known(hashes, 2, adapter(tmp_path / "moved")) == digest
    assert known(hashes, 3, adapter(tmp_path / "there" / "adapter", b"others")) != digest
    assert known(hashes, 4, adapter(tmp_path / "elsewhere" / "adapter", rank=16)) != digest
    assert known(hashes, 1, first) == digest


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "more.bin"])
def test_t53_what_has_changed_is_not_known_any_more(
    hashes: AdapterHashes, tmp_path: Path, name: str
) -> None:
    path = adapter(tmp_path / "adapter")
    digest = known(hashes, 1, path)
    (tmp_path / "adapter" / name).write_bytes(b"other weights")
    wait_until(lambda: hashes.poll() == {digest}, "being told of it")
    assert hashes.digest_of(1, path) == ""
    assert known(hashes, 2, path) not in {"", digest}, "loaded again by another number"
    assert hashes.digest_of(1, path) == "", "what the engine has by the old one is not known"


def test_t53_a_number_for_two_adapters_means_neither(hashes: AdapterHashes, tmp_path: Path) -> None:
    """VLLM goes by the number, and keeps what it has loaded."""
    first, second = adapter(tmp_path / "a"), adapter(tmp_path / "b", b"others")
    digest = known(hashes, 1, first)
    assert hashes.digest_of(1, second) == ""
    assert hashes.digest_of(1, first) == ""
    assert hashes.poll() == {digest}


def test_what_is_no_adapter_is_not_known(hashes: AdapterHashes, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "adapter_config.json").write_text("{}")
    paths = ["nobody/has-this", str(tmp_path / "empty"), str(tmp_path / "half"), "x" * 5000]
    for number, path in enumerate(paths):
        assert known(hashes, number, path) == "", path


def test_nothing_is_known_when_nobody_looks_any_more(hashes: AdapterHashes, tmp_path: Path) -> None:
    path = adapter(tmp_path / "adapter")
    digest = known(hashes, 1, path)
    hashes._process.kill()
    wait_until(lambda: hashes.poll() == {digest}, "its end to be noticed")
    assert hashes.digest_of(1, path) == ""
    assert hashes.digest_of(2, path) == ""


def test_files_that_change_while_they_are_hashed_have_no_hash(tmp_path: Path) -> None:
    path = adapter(tmp_path / "adapter")
    before = stamps_of(path)
    assert hash_adapter(path, before, tmp_path / "memory")
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"others")
    assert hash_adapter(path, before, tmp_path / "memory") == ""


def test_a_hashing_process_that_takes_its_time_to_end_keeps_no_engine_from_closing(
    hashes: AdapterHashes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_END_S", 0.0)
    model = WeightsHash(str(tmp_path))
    process = model._process
    assert process is not None
    model.close()
    hashes.close()
    assert process.wait(HANG_S) == -signal.SIGKILL, "it ends all the same"
    assert hashes._process.wait(HANG_S) == -signal.SIGKILL
