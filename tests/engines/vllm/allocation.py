"""What vLLM really allocates for a model: bytes of a block; run with its environment."""

import os
import sys
from typing import Any

from tests.engines.vllm.engine import QUIET


def block_bytes(worker: Any) -> tuple[int, int]:
    """Bytes of all KV tensors a block, and its tokens."""
    cache = worker.model_runner.kv_cache_config
    total = sum(tensor.size for tensor in cache.kv_cache_tensors)
    return total // cache.num_blocks, cache.kv_cache_groups[0].kv_cache_spec.block_size


def main() -> None:
    os.environ.update(QUIET, VLLM_ALLOW_INSECURE_SERIALIZATION="1")
    from vllm import LLM

    engine = LLM(
        model=sys.argv[1],
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=2,
        kv_cache_memory_bytes=32 << 20,
    )
    print("allocated", *engine.collective_rpc(block_bytes)[0], flush=True)


if __name__ == "__main__":
    main()
