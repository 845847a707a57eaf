"""Engines of vLLM and of SGLang on one real pool: neither finds what the other stored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.sglang.host_memory import MEMORY, SHAPE, HostMemory, content, facts, keys_of
from tests.engines.vllm.test_config import caches, config, full
from tests.pool_process import (
    PatientClient,
    PoolProcess,
    is_written,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.engines.sglang.rank import EngineRank
from forebay.identity.keys import page_keys
from forebay.pool.client import Chain, Loaded
from forebay.settings import Settings

__all__ = ["config"]  # a fixture
pytestmark = pytest.mark.vllm
LABELS = [f"page {number}" for number in range(8)]
NAMES = keys_of(LABELS)
OURS = range(4)  # stored by both, under one name
WEIGHTS = "the same weights"


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def pool(place: Path) -> Iterator[PoolProcess]:
    with running_pool(place) as running:
        yield running


def sglang_rank(pool: PoolProcess, model: Path) -> EngineRank:
    rank = EngineRank(
        Settings(
            socket=pool.socket,
            no_pool="serve",
            weights_id=WEIGHTS,
            lookup_deadline_ms=60_000,
            load_deadline_ms=60_000,
        )
    )
    rank.begin(facts(model), SHAPE, MEMORY)
    return rank


def vllm_chain(config: Any, first: int, end: int) -> Chain:
    """What no engine of vLLM would do: SGLang's names of pages in vLLM's namespace."""
    from forebay.engines.vllm import identity

    cache = caches(full())
    space = identity.Namespace(config, cache, identity.geometry(config, cache, 0))
    space.name_weights(WEIGHTS)
    assert space.name is not None
    keys = page_keys(space.name, Settings().realm, [bytes.fromhex(name) for name in NAMES])
    return Chain(space.name, keys[first:end])


def loaded_by(client: PatientClient, chain: Chain) -> list[bytes]:
    with client.load(chain) as loaded:
        return [bytes(view) for view in loaded.chunks] if isinstance(loaded, Loaded) else []


def test_t10_t11_records_of_vllm_and_of_sglang_never_meet(
    pool: PoolProcess, place: Path, config: Any
) -> None:
    """Even under equal names of equal length, with weights that an operator calls the same."""
    memory, rank = HostMemory(), sglang_rank(pool, place)
    chain, others = vllm_chain(config, 0, 4), vllm_chain(config, 0, 8)
    payloads = [content(f"vLLM's {number}") for number in OURS]
    with PatientClient(pool.socket) as client:
        assert client.store(chain, payloads).stored == len(payloads)
        assert rank.exists(NAMES, None) == 0
        assert not any(rank.load(NAMES, *memory.meta(range(8))))
        memory.fill(range(8), LABELS)
        assert all(rank.save(NAMES, [], *memory.meta(range(8))))
        for is_restarted in (False, True):
            if is_restarted:
                wait_until(lambda: is_written(pool), "the drive")
                pool.stop()
                pool.start()
                wait_until(client.join, "the next pool")
                wait_until(lambda: rank.exists(NAMES, None) == 8, "the next pool")
            found = client.lookup(others)
            assert getattr(found, "chunks", 0) == len(payloads), "none of SGLang's behind ours"
            assert loaded_by(client, chain) == payloads
            memory.fill(range(20, 28), ["nothing"] * 8)
            assert all(rank.load(NAMES, *memory.meta(range(20, 28))))
            assert [memory.read(20 + number) for number in range(8)] == [*map(content, LABELS)]
    rank.close()
