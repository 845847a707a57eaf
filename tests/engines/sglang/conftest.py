"""Ranks of an engine beside a real pool; SGLang itself is not needed here."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.sglang import host_memory
from tests.pool_process import PoolProcess, running_pool, short_directory, wait_until

from forebay.engines.sglang.rank import EngineRank
from forebay.settings import Settings

PATIENT = Settings(lookup_deadline_ms=60_000, load_deadline_ms=60_000, no_pool="serve")
StartRank = Callable[..., EngineRank]


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[PoolProcess]:
    """For tests that leave it as it is; weights are their own, and so is what they find."""
    with short_directory() as path, running_pool(path, "--dram", "64MiB") as running:
        yield running


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def model(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with weights; what is remembered of their hash is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    directory = place / "model"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(os.urandom(16))
    return directory


@pytest.fixture
def pool(place: Path) -> Iterator[PoolProcess]:
    with running_pool(place) as running:
        yield running


@pytest.fixture
def start_rank(request: pytest.FixtureRequest, place: Path, model: Path) -> Iterator[StartRank]:
    """Begins ranks that share, unless `waits` is false; with the pool of the test, if any."""
    begun: list[EngineRank] = []

    def start(*, waits: bool = True, settings: dict[str, Any] | None = None, **more: Any) -> Any:
        names = [name for name in ("pool", "shared_pool") if name in request.fixturenames]
        socket = request.getfixturevalue(names[0]).socket if names else str(place / "none.sock")
        wanted = replace(PATIENT, socket=socket, **(settings or {}))
        rank = EngineRank(wanted, more.pop("clock", None))
        begun.append(rank)
        shape = more.pop("shape", host_memory.SHAPE)
        memory = more.pop("memory", host_memory.MEMORY)
        told = [more.pop("have_changed")] if "have_changed" in more else []
        found = host_memory.facts(more.pop("model", model), **more)
        rank.begin(found, shape, memory, *told)
        if waits:
            wait_until(lambda: rank.obstacle or rank._namespace(), "the hash of the weights")
        return rank

    yield start
    for rank in begun:
        rank.close()
