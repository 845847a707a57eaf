"""vLLM's own scheduler and Forebay's connector around a model whose KV can be checked.

What the model writes for a token is a hash of all tokens up to it, and what it keeps as a state is
one too. Before each step everything that the step looks at is compared with what it must be, so
wrong, stale or missing KV of any group fails at once, whatever it would have done to an answer. The
groups share the memory of their blocks, as vLLM has it.
"""

import copy
import hashlib
import math
import time
from types import SimpleNamespace
from typing import Any

import torch

from forebay.engines.geometry import Reach, ReachKind
from forebay.engines.vllm.groups import cache_groups

TOKEN = 16  # bytes that the model keeps of a token, in every layer
VOCABULARY = 1000
HANG_S = 60.0


def spec_of(reach: Reach, block_tokens: int) -> Any:
    """vLLM's spec of a layer that looks so far back."""
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    common: dict[str, Any] = {
        "block_size": block_tokens, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32,
    }  # fmt: skip
    if reach.kind is ReachKind.WINDOW:
        return SlidingWindowSpec(sliding_window=reach.tokens, **common)
    if reach.kind is ReachKind.CHUNKED:
        return ChunkedLocalAttentionSpec(attention_chunk_size=reach.tokens, **common)
    if reach.kind is ReachKind.STATE:
        return MambaSpec(
            block_size=block_tokens,
            shapes=((4,),),
            dtypes=(torch.float32,),
            page_size_padded=block_tokens * TOKEN,
            mamba_cache_mode="align",
        )
    return FullAttentionSpec(**common)


def hashes_of(tokens: list[int], known: list[bytes]) -> list[bytes]:
    """Of every token and all before it; those of the first tokens are known."""
    found = list(known)
    for token in tokens[len(found) :]:
        before = found[-1] if found else b""
        found.append(hashlib.blake2b(before + token.to_bytes(4), digest_size=TOKEN).digest())
    return found


def next_token(last: bytes) -> int:
    """What the model samples behind a token with this hash."""
    return int.from_bytes(last[:4]) % VOCABULARY


def answer_to(tokens: list[int], count: int) -> list[int]:
    """What the model answers, by what its KV must be."""
    said, hashes = list(tokens), hashes_of(tokens, [])
    for _ in range(count):
        said.append(next_token(hashes[-1]))
        hashes = hashes_of(said, hashes)
    return said[len(tokens) :]


class HashedModel:
    """One engine: its scheduler, its worker, and memory."""

    def __init__(
        self,
        config: Any,
        specs: list[Any],
        blocks: int,
        *,
        prefix_caching: bool = True,  # the engine's own
        **settings: Any,
    ) -> None:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        config = copy.deepcopy(config)
        config.kv_transfer_config.kv_connector_extra_config = settings
        sizes = [spec.block_size for spec in specs]
        config.cache_config.block_size = max(sizes)
        config.cache_config.num_gpu_blocks = blocks
        config.cache_config.enable_prefix_caching = prefix_caching
        if prefix_caching and any(type(spec).__name__ == "MambaSpec" for spec in specs):
            config.cache_config.mamba_cache_mode = "align"
            config.cache_config.mamba_block_size = max(sizes)
        groups = [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        cache.kv_cache_layout = "LBHNC"
        self.cache, self.groups = cache, cache_groups(cache)
        self.scheduler = Scheduler(
            config,
            cache,
            StructuredOutputManager(config),
            block_size=math.lcm(*sizes),
            hash_block_size=math.gcd(*sizes),
            log_stats=False,
        )
        self.worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache)
        raw = torch.zeros((blocks, max(sizes) * TOKEN), dtype=torch.uint8)
        self.memory = raw.numpy()
        self.worker.register_kv_caches(
            {
                f"layer.{number}": raw[:, : TOKEN if self._keeps_state(number) else size * TOKEN]
                for number, size in enumerate(sizes)
            }
        )
        self.states: dict[str, int] = {}  # request → the block with its state
        self.hashes: dict[str, list[bytes]] = {}  # of each request's tokens
        self._numbers = 0

    @property
    def side(self) -> Any:
        return self.scheduler.connector._scheduler

    def generate(
        self, prompts: list[list[int]], answer: int = 4, salt: str | None = None
    ) -> list[list[int]]:
        """Answer all at once."""
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        hasher = get_request_block_hasher(
            self.scheduler.kv_cache_manager.block_pool.hash_block_size, sha256
        )
        requests = []
        for tokens in prompts:
            self._numbers += 1
            sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
            requests.append(
                Request(
                    f"r{self._numbers}",
                    list(tokens),
                    sampling,
                    None,
                    cache_salt=salt,
                    block_hasher=hasher,
                )
            )
            self.scheduler.add_request(requests[-1])
        self.step_until(lambda: not self.scheduler.has_unfinished_requests())
        return [list(request.output_token_ids) for request in requests]

    def empty_cache(self) -> None:
        """Until nothing is in flight; then forget everything that the engine has itself."""
        self.step_until(lambda: not self.side.has_work)
        assert self.scheduler.reset_prefix_cache()

    def step_until(self, done: Any) -> None:
        until = time.monotonic() + HANG_S
        while not done():
            assert time.monotonic() < until
            self.step()

    def step(self) -> None:
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        output = self.scheduler.schedule()
        self.worker.handle_preemptions(output.kv_connector_metadata)
        for block in output.new_block_ids_to_zero or ():
            self.memory[block] = 0
        self.worker.bind_connector_metadata(output.kv_connector_metadata)
        self.worker.start_load_kv(SimpleNamespace())
        sampled = [self._compute(name, output) for name in output.num_scheduled_tokens]
        results = self.worker.get_transfer_results(output.finished_req_ids)
        told = KVConnectorOutput(
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving or set(),
            kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
        )
        names = list(output.num_scheduled_tokens)
        order = {name: number for number, name in enumerate(names)}
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(names, order, sampled, kv_connector_output=told)
        )

    def close(self) -> None:
        self.scheduler.shutdown()
        self.worker.shutdown()

    def _compute(self, name: str, output: Any) -> list[int]:
        """One request's part of a step: look, compare, write; what is sampled."""
        request = self.scheduler.requests[name]
        stop = request.num_computed_tokens  # this step's are counted already
        start = stop - output.num_scheduled_tokens[name]
        tokens = list(request.all_token_ids)
        new = next((each for each in output.scheduled_new_reqs if each.req_id == name), None)
        is_fresh = new is not None or name in output.scheduled_cached_reqs.resumed_req_ids
        tables = self.scheduler.kv_cache_manager.get_block_ids(name)
        hashes = self.hashes[name] = hashes_of(tokens, self.hashes.get(name, []))
        for group in self.groups:
            for table in group.tables:
                ids, size = tables[table], group.block_tokens
                if group.reach.kind is ReachKind.STATE:
                    if start:
                        held = (
                            ids[(start - 1) // size] if is_fresh else self.states[f"{name}.{table}"]
                        )
                        assert self.memory[held, :TOKEN].tobytes() == hashes[start - 1], "a state"
                    here = self.states[f"{name}.{table}"] = ids[(stop - 1) // size]
                    self._write(here, 0, hashes[stop - 1])
                    continue
                for at in range(group.reach.start(start), start):
                    place = at % size * TOKEN
                    found = self.memory[ids[at // size], place : place + TOKEN].tobytes()
                    assert found == hashes[at], f"{group.reach} at {at} of {start}"
                for at in range(start, stop):
                    if ids[at // size]:
                        self._write(ids[at // size], at % size * TOKEN, hashes[at])
        if stop < request.num_tokens:
            return []
        return [next_token(hashes[-1])]

    def _write(self, block: int, place: int, data: bytes) -> None:
        assert block, "nobody writes to the null block"
        self.memory[block, place : place + TOKEN] = torch.frombuffer(
            bytearray(data), dtype=torch.uint8
        ).numpy()

    def _keeps_state(self, table: int) -> bool:
        return any(
            table in group.tables and group.reach.kind is ReachKind.STATE for group in self.groups
        )
