"""What is in the namespace of an engine: everything that shapes bytes, and nothing else."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.models import made_drafter
from tests.engines.vllm.test_config import TRANSFER, caches, config, full, place

__all__ = ["config", "place"]  # fixtures
pytestmark = pytest.mark.vllm


def test_the_namespace_of_one_worker_has_the_fields_that_it_always_had(config: Any) -> None:
    """What earlier releases stored is found: a field more would be another namespace."""
    from forebay.engines.vllm import identity

    cache = caches(full())
    made = identity.Namespace(config, cache, identity.geometry(config, cache, 0))
    always = (
        "engine version device model dtype quantization max_model_len kv_dtype kv_cache_dtype"
        " kv_heads head_size layout sliding_window layers page_bytes block_tokens chunk_blocks tp"
    )
    assert list(made._fields) == always.split()


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two drafters of one shape with other weights."""
    places = [tmp_path_factory.mktemp("drafter") for _ in range(2)]
    return [forked.call(made_drafter, place, seed) for seed, place in enumerate(places, 7)]


def speculating(model: Path, speculation: dict[str, Any]) -> Any:
    """A configuration, as vLLM makes it."""
    from vllm.engine.arg_utils import EngineArgs

    wanted = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 20,
        speculative_config=speculation,
        kv_transfer_config=TRANSFER,
    )
    return wanted.create_engine_config()


def test_t10_how_an_engine_speculates_and_with_which_drafter_is_in_the_name(
    config: Any, model: Path, drafters: list[Path], place: Path
) -> None:
    from forebay.engines.vllm import identity
    from forebay.engines.weights import hash_weights

    cache, memory = caches(full()), place / "weights.json"

    def name(config: Any) -> bytes:
        assert identity.declined(config, cache) is None
        made = identity.Namespace(config, cache, identity.geometry(config, cache, 0))
        found = identity.weights_directories(config)
        assert isinstance(found, list)
        made.know_weights(*(hash_weights(each, memory) for each in found))
        assert made.name is not None
        return made.name

    def ngram(tokens: int) -> dict[str, Any]:
        return {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 3}

    def eagle(drafter: Path) -> dict[str, Any]:
        return {"method": "eagle", "model": str(drafter), "num_speculative_tokens": 2}

    moved = place / "moved"
    shutil.copytree(drafters[0], moved)
    names = [
        name(config),
        name(speculating(model, ngram(2))),
        name(speculating(model, ngram(3))),
        name(speculating(model, eagle(drafters[0]))),
        name(speculating(model, eagle(drafters[1]))),
    ]
    assert len(set(names)) == len(names)
    assert name(speculating(model, eagle(moved))) == names[3], "wherever the drafter lies"
    (moved / "model.safetensors").unlink()
    unknown = identity.weights_directories(speculating(model, eagle(moved)))
    assert not isinstance(unknown, list)
    assert f"no weight files in {moved}" in unknown.sentence


def test_t11_t13_names_differ_by_everything_that_shapes_bytes(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from forebay.engines.vllm import identity

    def name(cache: Any, config: Any = config, chunk_tokens: int = 0) -> bytes:
        shape = identity.geometry(config, cache, chunk_tokens)
        space = identity.Namespace(config, cache, shape)
        space.know_weights("0" * 64)
        assert space.name is not None
        return space.name

    usual = name(caches(full()))
    assert name(caches(full())) == usual, "the control"
    others = {
        "block size": name(caches(replace(full(), block_size=32))),
        "heads": name(caches(replace(full(), num_kv_heads=4))),
        "head size": name(caches(replace(full(), head_size=64))),
        "kv dtype": name(caches(replace(full(), dtype=torch.bfloat16))),
        "window": name(caches(replace(full(), sliding_window=64))),
        "chunk": name(caches(full()), chunk_tokens=32),
    }
    named = identity.Namespace(config, caches(full()), identity.geometry(config, caches(full()), 0))
    named.name_weights("0" * 64)
    assert named.name is not None
    others["a name that looks like the hash"] = named.name
    layout = caches(full())
    if hasattr(layout, "kv_cache_layout"):
        layout.kv_cache_layout = "another"
        others["layout"] = name(layout)
    for part, field, value in (
        ("cache_config", "cache_dtype", "fp8"),
        ("model_config", "quantization", "awq"),
        ("model_config", "dtype", torch.float16),
        ("model_config", "max_model_len", 77),
        ("parallel_config", "tensor_parallel_size", 2),
    ):
        changed = copy.copy(config)
        inner = copy.copy(getattr(config, part))
        object.__setattr__(inner, field, value)
        object.__setattr__(changed, part, inner)
        others[field] = name(caches(full()), changed)
    monkeypatch.setattr(identity, "vllm_version", "0.33.0")
    others["vLLM itself"] = name(caches(full()))
    assert len({usual, *others.values()}) == len(others) + 1, others


def told_by(rank: int, local: tuple[str, ...], unlike: tuple[tuple[str, ...], ...] = ()) -> Any:
    """What a stage tells that has layer 0 of full attention, and these with a window."""
    from forebay.engines.geometry import Shard
    from forebay.engines.vllm.metadata import ShardMetadata

    page = full().page_size_bytes
    return ShardMetadata(
        Shard(rank, rank), ("layer.0",), page, (page * len(local),), page, (local,), unlike
    )


def test_t11_local_layers_of_other_stages_are_in_the_name(config: Any) -> None:
    """Two ways to cut a model whose layers of full attention are on the same stages."""
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    from forebay.engines.vllm import identity

    window = SlidingWindowSpec(
        block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32, sliding_window=64
    )
    cache, config = caches(full(), window), copy.copy(config)
    config.parallel_config = copy.copy(config.parallel_config)

    def fields(stages: int, *workers: Any) -> dict[str, Any]:
        for name in ("world_size", "pipeline_parallel_size"):
            object.__setattr__(config.parallel_config, name, stages)
        shape = identity.geometry(config, cache, 0, workers)
        return dict(identity.Namespace(config, cache, shape, workers)._fields)

    first = told_by(0, ("layer.1",))
    one = fields(3, first, told_by(1, ("layer.2", "layer.3")), told_by(2, ("layer.4",)))
    other = fields(3, first, told_by(1, ("layer.2",)), told_by(2, ("layer.3", "layer.4")))
    assert one != other
    assert {name for name in one if one[name] != other[name]} == {"local_layers"}
    assert "local_layers" not in fields(1, first, told_by(1, ("layer.2",))), "as it always was"


def test_t11_what_shapes_each_of_unequal_layers_is_in_the_name(config: Any) -> None:
    """Two layers that swap their heads have as many bytes in all."""
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, UniformTypeKVCacheSpecs

    from forebay.engines.vllm import identity

    def told(*heads: int) -> Any:
        specs = {f"layer.{n}": replace(full(), num_kv_heads=each) for n, each in enumerate(heads)}
        group = KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(16, specs))
        cache = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[group])
        assert identity.declined(config, cache) is None
        return identity.told_by(config, cache, identity.geometry(config, cache, 0))

    def fields(worker: Any) -> dict[str, Any]:
        shape = identity.geometry(config, caches(full()), 0, [worker])
        assert shape.shard_block_bytes == sum(worker.block_bytes)
        return dict(identity.Namespace(config, caches(full()), shape, [worker])._fields)

    one, other = told(1, 4), told(4, 1)
    assert one.block_bytes == other.block_bytes == (5 * full().page_size_bytes // 2,)
    assert fields(one)["unlike"] != fields(other)["unlike"]
    assert not told(2, 2).unlike, "a group of equal ones is an ordinary one"
    assert told(1, 2, 1).layers == ("layer.0", "layer.2", "layer.1"), "those of one size together"


def test_t11_groups_that_vllm_does_not_transfer_are_declined(config: Any) -> None:
    from forebay.engines.vllm import identity

    cache = caches(full())
    for name, value in (("host_resident", True), ("enable_kv_transfer", False)):
        if hasattr(cache.kv_cache_groups[0], name):
            kept = getattr(cache.kv_cache_groups[0], name)
            setattr(cache.kv_cache_groups[0], name, value)
            obstacle = identity.declined(config, cache)
            assert obstacle is not None, name
            assert obstacle.reason == "other attention"
            setattr(cache.kv_cache_groups[0], name, kept)
    assert identity.declined(config, cache) is None, "the control"
