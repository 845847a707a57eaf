"""vLLM's own scheduler and Forebay's connector around a model on several ranks, as `hashed_model`.

The layers' specs, their groups, where their pages lie and what vLLM tells its scheduler are made by
vLLM's own functions. With decode context parallelism every rank keeps some of the tokens of a
block, by vLLM's rule; what it keeps of a token is a hash of all tokens up to it, the layer and,
where ranks have other heads, the rank. Before each step every rank's pages are compared with that.
"""

import copy
import hashlib
from types import SimpleNamespace
from typing import Any

import torch
from tests.engines.vllm.hashed_model import HashedModel, hashes_of, next_token

BLOCK = 16  # tokens of one rank


def mla_specs(*, indexers: bool = True) -> dict[str, Any]:
    """Two layers as DeepSeek-V3.2 has them: a latent, and an indexer's keys, which are smaller."""
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    def spec(width: int, dtype: torch.dtype) -> Any:
        return MLAAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, max_tp_shards=1, head_size=width, dtype=dtype
        )

    found = {}
    for number in range(2):
        if indexers:
            found[f"layers.{number}.indexer.k_cache"] = spec(132, torch.uint8)
        found[f"layers.{number}.attn"] = spec(576, torch.bfloat16)
    return found


def heads_specs() -> dict[str, Any]:
    """Two layers of full attention, of which every rank has a head of its own."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return {f"layers.{number}.attn": spec for number in range(2)}


def of_ranks(config: Any, ranks: int, dcp: int, interleave: int, old: int = 1) -> Any:
    """The configuration of an engine of so many ranks; `old`: interleaving by its former name."""
    config = copy.deepcopy(config)
    for name, value in {
        "tensor_parallel_size": ranks,
        "world_size": ranks,
        "decode_context_parallel_size": dcp,
        "cp_kv_cache_interleave_size": interleave,
        "dcp_kv_cache_interleave_size": old,
    }.items():
        object.__setattr__(config.parallel_config, name, value)
    return config


class RankedModel(HashedModel):
    """One engine: its scheduler, and every rank's worker and memory."""

    def __init__(
        self,
        config: Any,
        specs: dict[str, Any],
        blocks: int,
        layout: str = "LBHNC",
        **settings: Any,
    ) -> None:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        config = copy.deepcopy(config)
        config.kv_transfer_config.kv_connector_extra_config = settings
        told = config.cache_config
        told.block_size, told.num_gpu_blocks, told.kv_cache_layout = BLOCK, blocks, layout
        told.enable_prefix_caching, told.num_gpu_blocks_override = True, blocks
        groups = kv_cache_utils.get_kv_cache_groups(config, specs)
        cache = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, 1 << 30)
        cache.kv_cache_layout = layout
        parallel = config.parallel_config
        self.dcp = parallel.decode_context_parallel_size
        cache.kv_tp_replicas = kv_cache_utils.kv_cache_groups_tp_replicas(
            groups, parallel.tensor_parallel_size, self.dcp
        )
        self.specs, self.is_latent = specs, "MLA" in type(next(iter(specs.values()))).__name__
        size, hashed = kv_cache_utils.resolve_kv_cache_block_sizes(cache, config)
        self.scheduler = Scheduler(
            config,
            kv_cache_utils.generate_scheduler_kv_cache_config([cache]),
            StructuredOutputManager(config),
            block_size=size,
            hash_block_size=hashed,
            log_stats=False,
        )
        self.workers, self.pages = [], []
        for rank in range(parallel.world_size):
            mine = copy.deepcopy(config)
            object.__setattr__(mine.parallel_config, "rank", rank)
            mine.adjust_dcp_kv_cache_interleave_size(cache)  # as workers do, and they alone
            self.interleave = mine.parallel_config.cp_kv_cache_interleave_size
            worker = KVConnectorFactory.create_connector(mine, KVConnectorRole.WORKER, cache)
            self.pages.append(allocated(cache, specs))
            worker.register_kv_caches(self.pages[-1])
            self.workers.append(worker)
        self.worker = self.workers[0]
        told_by = {(0, n): each.get_handshake_metadata() for n, each in enumerate(self.workers)}
        told_by = {rank: each for rank, each in told_by.items() if each is not None}
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(told_by)
        self._aggregator = KVOutputAggregator(len(self.workers))
        self.hashes, self._numbers = {}, 0

    def step(self) -> None:
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        output = self.scheduler.schedule()
        for worker in self.workers:
            metadata = copy.deepcopy(output.kv_connector_metadata)  # each is a process of its own
            worker.handle_preemptions(metadata)
            worker.bind_connector_metadata(metadata)
            worker.start_load_kv(SimpleNamespace())
        sampled = [self._compute(name, output) for name in output.num_scheduled_tokens]
        names = list(output.num_scheduled_tokens)
        order = {name: number for number, name in enumerate(names)}
        outputs = []
        for worker in self.workers:
            results = worker.get_transfer_results(output.finished_req_ids)
            told = KVConnectorOutput(
                finished_recving=results.finished_recving or None,
                failed_recving=results.failed_recving or set(),
                kv_connector_worker_meta=worker.build_connector_worker_meta(),
            )
            outputs.append(ModelRunnerOutput(names, order, sampled, kv_connector_output=told))
        self.scheduler.update_from_output(output, self._aggregator.aggregate(outputs))

    def close(self) -> None:
        self.scheduler.shutdown()
        for worker in self.workers:
            worker.shutdown()

    def forget(self) -> None:
        """Nothing is left in any page: what is found there later was loaded."""
        for pages in self.pages:
            for each in pages.values():
                each.view(torch.uint8).zero_()

    def place_of(self, at: int) -> tuple[int, int, int]:
        """The block of a request, the rank that has this token of it, and where in its page."""
        block, inside = divmod(at, BLOCK * self.dcp)
        turn, beside = divmod(inside, self.interleave)
        return block, turn % self.dcp, turn // self.dcp * self.interleave + beside

    def kept(self, rank: int, layer: str, token: bytes) -> bytes:
        """What a rank keeps of a token in a layer."""
        spec = self.specs[layer]
        whose = "" if self.is_latent else str(rank)
        made = hashlib.shake_128(token + f"{layer} {whose}".encode())
        return made.digest(spec.real_page_size_bytes // BLOCK)

    def _compute(self, name: str, output: Any) -> list[int]:
        request = self.scheduler.requests[name]
        stop = request.num_computed_tokens  # this step's are counted already
        start = stop - output.num_scheduled_tokens[name]
        hashes = self.hashes[name] = hashes_of(
            list(request.all_token_ids), self.hashes.get(name, [])
        )
        (ids,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        for at in range(stop):
            block, owner, inside = self.place_of(at)
            for rank in range(owner, len(self.workers), self.dcp):
                for layer, pages in self.pages[rank].items():
                    wanted = self.kept(rank, layer, hashes[at])
                    row = pages[ids[block]].reshape(-1).view(torch.uint8)
                    place = slice(inside * len(wanted), (inside + 1) * len(wanted))
                    if at >= start:
                        row[place] = torch.frombuffer(bytearray(wanted), dtype=torch.uint8)
                    else:
                        found = row[place].numpy().tobytes()
                        assert found == wanted, f"{layer} of rank {rank} at {at} of {start}"
        return [] if stop < request.num_tokens else [next_token(hashes[-1])]


def allocated(cache: Any, specs: dict[str, Any]) -> dict[str, Any]:
    """A rank's KV cache, in vLLM's own views of one allocation."""
    from vllm.v1.kv_cache_interface import KVCacheLayout, create_kv_cache_views

    layout = KVCacheLayout[cache.kv_cache_layout]
    found: dict[str, Any] = {}
    raw = torch.zeros(max(each.size for each in cache.kv_cache_tensors), dtype=torch.int8)
    for each in cache.kv_cache_tensors:
        spec = specs[each.layers[0]]
        views = create_kv_cache_views(raw, spec, cache.num_blocks, layout, each)
        found.update(zip(each.layers, views, strict=True))
    return {layer: found[layer] for layer in specs}
