"""What the doctor reads in vLLM's flags is what vLLM's own parser makes of them."""

from typing import Any

import pytest
from tests.engines.vllm.real import forked

from forebay.engines.start.vllm_flags import VllmFlags, read_flags

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
# Our field → vLLM's.
FIELDS = {
    "model": "model",
    "load_format": "load_format",
    "prefix_caching": "enable_prefix_caching",
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "decode_context_parallel": "decode_context_parallel_size",
    "prefill_context_parallel": "prefill_context_parallel_size",
    "kv_dtype": "kv_cache_dtype",
    "gpu_blocks": "num_gpu_blocks_override",
    "kv_cache_bytes": "kv_cache_memory_bytes",
    "media_cache_type": "mm_processor_cache_type",
}
LINES = [
    ["--model", "a/b", "-tp", "2", "--pipeline_parallel_size=3", "--no-enable-prefix-caching"],
    ["--model=a", "-dcp", "2", "-pcp", "2", "--load-format", "dummy", "--kv-cache-dtype", "fp8"],
    ["--enable-prefix-caching", "--num-gpu-blocks-override", "77", "--model", "c"],
    ["--no-enable-prefix-caching", "--enable-prefix-caching", "--kv-cache-memory-bytes", "4096"],
    ["--mm-processor-cache-type", "shm", "--speculative-config.method", "ngram"],
    ["-sc", '{"method": "ngram", "num_speculative_tokens": 2}', "--model", "d"],
    ["--kv-transfer-config", '{"kv_connector": "ForebayConnector", "kv_role": "kv_both"}'],
]


def by_vllm(lines: list[list[str]]) -> list[dict[str, Any]]:
    """The arguments that vLLM's server would start with."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    found = []
    for words in lines:
        parsed = vars(parser.parse_args(words))
        kept = {name: parsed[name] for name in FIELDS.values()}
        transfer = parsed["kv_transfer_config"]
        kept["connector"] = getattr(transfer, "kv_connector", None)
        kept["speculation"] = (parsed["speculative_config"] or {}).get("method")
        found.append(kept)
    return found


def test_flags_mean_to_us_what_they_mean_to_vllm() -> None:
    for words, theirs in zip(LINES, forked.call(by_vllm, LINES), strict=True):
        ours = read_flags(words)
        assert (ours.connector, ours.speculation) == (theirs["connector"], theirs["speculation"])
        for name, their_name in FIELDS.items():
            found, default = getattr(ours, name), getattr(VllmFlags(), name)
            # What is not said is vLLM's to choose.
            assert found in {default, theirs[their_name]}, (name, words)
            if any(flag_of(word) == their_name for word in words):
                assert found == theirs[their_name], (name, words)


def flag_of(word: str) -> str:
    """A flag as vLLM names its field."""
    name = word.partition("=")[0].lstrip("-").replace("-", "_")
    short = {
        "tp": "tensor_parallel_size",
        "dcp": "decode_context_parallel_size",
        "pcp": "prefill_context_parallel_size",
    }
    return short.get(name, name).removeprefix("no_")
