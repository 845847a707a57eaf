"""Ranks that divide a block's tokens, and layers of unequal size, under vLLM's own scheduler."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.engines.vllm.hashed_model import answer_to
from tests.engines.vllm.ranked_model import BLOCK, RankedModel, heads_specs, mla_specs, of_ranks
from tests.engines.vllm.test_config import caches
from tests.engines.vllm.test_hashed_model import SETTINGS, config, patient, prompt_of
from tests.pool_process import PoolProcess, running_pool, short_directory

from forebay.engines.copies.pages import Pages

__all__ = ["config", "patient"]  # fixtures
pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("patient")]
Specs = Callable[[], dict[str, Any]]
BLOCKS = 96
CHUNK = 128  # tokens: a whole number of blocks of four ranks


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place, running_pool(place) as pool:
        yield pool


def started(
    config: Any, pool: PoolProcess, specs: Specs, ranks: tuple[int, ...], layout: str = "LBHNC"
) -> RankedModel:
    told: dict[str, Any] = {**SETTINGS, "lookup_deadline_ms": 30_000, "load_deadline_ms": 30_000}
    told |= {"socket": pool.socket, "always_load": True, "chunk_tokens": CHUNK}
    return RankedModel(of_ranks(config, *ranks), specs(), BLOCKS, layout, **told)


CASES: dict[str, tuple[Specs, tuple[int, ...], str]] = {
    "two ranks, token by token": (heads_specs, (2, 2, 1), "LBHNC"),
    "two ranks, eight tokens each": (heads_specs, (2, 2, 8), "BLHNC"),
    "two pairs of ranks": (heads_specs, (4, 2, 16), "LBHNC"),
    "latents on two ranks": (lambda: mla_specs(indexers=False), (2, 2, 1), "LBHNC"),
    "latents on two pairs": (lambda: mla_specs(indexers=False), (4, 2, 4), "LBHNC"),
    "indexers on one rank": (mla_specs, (1, 1, 1), "LBHNC"),
    "indexers beside latents in a block": (mla_specs, (1, 1, 1), "BLHNC"),
    "indexers on two ranks": (mla_specs, (2, 1, 1), "BLHNC"),
    "indexers, tokens divided": (mla_specs, (4, 4, 2), "LBHNC"),
}


@pytest.mark.parametrize("case", CASES)
def test_t50_every_rank_sees_what_it_must_see(config: Any, pool: PoolProcess, case: str) -> None:
    specs, ranks, layout = CASES[case]
    draw = random.Random(case)
    model = started(config, pool, specs, ranks, layout)
    prompt = prompt_of(draw, CHUNK + 40)
    assert model.generate([prompt]) == [answer_to(prompt, 4)]
    model.empty_cache()
    model.forget()
    assert model.generate([prompt]) == [answer_to(prompt, 4)]
    assert model.side.counts["loads"] == 1, model.side.counts
    for worker in model.workers:
        assert not worker.boundary.failures
    model.close()


def test_what_one_rank_does_not_load_is_noticed(
    config: Any, pool: PoolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control, also of a single layer that is smaller than others."""
    specs, ranks, layout = CASES["indexers, tokens divided"]
    prompt = prompt_of(random.Random(1), CHUNK + 20)
    model = started(config, pool, specs, ranks, layout)
    model.generate([prompt])
    model.empty_cache()
    model.forget()
    copy_in = Pages.copy_in

    def without_indexers(self: Pages, piece: Any, slab: Any) -> bool:
        is_sound = copy_in(self, piece, slab)
        if slab.shard == 3:
            for pages in self._tables[0]:
                if pages.shape[1] == 16 * 132:
                    pages[piece.blocks] = 0
        return is_sound

    monkeypatch.setattr(Pages, "copy_in", without_indexers)
    with pytest.raises(AssertionError, match=r"indexer.k_cache of rank 3 at 6 of 128"):
        model.generate([prompt])
    model.close()


def test_t11_ranks_that_divide_tokens_otherwise_never_find_each_others_shards(
    config: Any, pool: PoolProcess
) -> None:
    """Neither other numbers of ranks, nor another interleaving; the same ones do, later."""
    prompt, names = prompt_of(random.Random(2), CHUNK + 20), []
    others = [(4, 4, 4), (4, 2, 2), (4, 1, 1), (2, 2, 4), (1, 1, 1)]
    for ranks in [(4, 2, 4), *others]:
        model = started(config, pool, mla_specs, ranks)
        assert model.generate([prompt]) == [answer_to(prompt, 4)]
        assert model.side.counts["loads"] == 0, ranks
        names.append(model.side.root.namespace)
        model.empty_cache()
        model.close()
    assert len(set(names)) == len(names)
    again = started(config, pool, mla_specs, (4, 2, 4))
    assert again.generate([prompt]) == [answer_to(prompt, 4)]
    assert (again.side.counts["loads"], again.side.root.namespace) == (1, names[0])
    again.close()


def test_t11_interleaving_is_what_workers_have_made_of_it(config: Any, pool: PoolProcess) -> None:
    """By its former name only workers take it: the scheduler's configuration says 1 of both."""
    prompt, names = prompt_of(random.Random(4), CHUNK + 20), []
    for old in (1, 8):
        model = started(config, pool, heads_specs, (2, 2, 1, old))
        assert model.interleave == old
        assert model.scheduler.vllm_config.parallel_config.cp_kv_cache_interleave_size == 1
        assert model.generate([prompt]) == [answer_to(prompt, 4)]
        assert model.side.counts["loads"] == 0, "the other one's shards"
        names.append(model.side.root.namespace)
        model.empty_cache()
        model.close()
    assert names[0] != names[1]


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_t51_without_one_ranks_shard_a_chunk_is_not_there(
    config: Any, pool: PoolProcess, rank: int
) -> None:
    """Of ranks 0 and 2 the first stores what both have, of 1 and 3 the second one does not."""
    specs, ranks, layout = CASES["latents on two pairs"]
    model = started(config, pool, specs, ranks, layout)
    model.workers[rank]._worker._socket_path += " of nobody"
    prompt = prompt_of(random.Random(3), CHUNK + 20)
    assert model.generate([prompt]) == [answer_to(prompt, 4)]
    model.empty_cache()
    is_stored = rank >= ranks[1]
    assert pool.number("chunks", tier="dram") == is_stored
    model.forget()
    assert model.generate([prompt]) == [answer_to(prompt, 4)], "a rank that cannot load computes"
    model.close()


def test_shards_are_those_that_vllms_own_tier_has(config: Any) -> None:
    """By its mapping ranks have the same bytes, or other ones, as here they have the same shard."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import canonical_mapping
    from vllm.v1.core.kv_cache_utils import kv_cache_groups_tp_replicas

    from forebay.engines.vllm import identity

    for specs in (mla_specs(indexers=False), heads_specs()):
        spec = next(iter(specs.values()))
        pages = torch.zeros(2, 1, BLOCK, 2 * spec.head_size, dtype=spec.dtype)
        for ranks, dcp in [(2, 2), (4, 1), (4, 2), (4, 4), (8, 2), (8, 4)]:
            heads = ranks // dcp  # of the model: as few as allow so many ranks to divide tokens
            cache, shards, mapped = caches(spec), [], []
            groups = cache.kv_cache_groups
            cache.kv_tp_replicas = kv_cache_groups_tp_replicas(groups, ranks, dcp)
            for rank in range(ranks):
                mine = of_ranks(config, ranks, dcp, 4)
                object.__setattr__(mine.parallel_config, "rank", rank)
                shards.append(identity.shard_of(mine, cache))
                at = canonical_mapping._RankContext(ranks, dcp, 1, 4, heads, rank)
                mapped.append(canonical_mapping._layer_mapping(spec, pages, 2, at))
            assert None not in mapped
            for one, other in itertools.product(range(ranks), repeat=2):
                is_same = mapped[one].runs == mapped[other].runs
                assert (shards[one].number == shards[other].number) == is_same
            stored = [each.number for each in shards if each.is_stored]
            assert sorted(stored) == list(range(len({each.number for each in shards})))
