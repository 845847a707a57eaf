"""The KV cache group that is shared, as long as there is only one, and its block table.

vLLM keeps a block table for each group of layers with one kind of attention. An engine with several
is declined (`identity`), so everything here is about the only group; whoever supports more begins
in this file, and with `ChainRoot.group`, which is part of every key.
"""

from collections.abc import Sequence
from typing import Any, Final

GROUP: Final = 0  # its index, in vLLM's lists and in our keys


def shared_group(cache: Any) -> Any:
    """The group: its layers, and their spec."""
    return cache.kv_cache_groups[GROUP]


def shared_blocks(block_ids: Sequence[Sequence[int]]) -> list[int]:
    """Its blocks, of what vLLM gave to a request in every group."""
    return list(block_ids[GROUP])
