"""What a benchmark reads from inside vLLM's worker; named by `--worker-extension-cls`."""

from typing import Any


class CountsExtension:
    """A mixin of vLLM's worker: its methods are called by name, through `/collective_rpc`."""

    def forebay_counts(self) -> dict[str, int]:
        """The counts of the connector's worker side.

        `reach_bytes` is -1 if it is not known; `encoded_groups` is the number of groups whose KV is
        encoded. These counts are newer than those on `/metrics`, which come with the next step.
        """
        from vllm.distributed.kv_transfer import (  # noqa: PLC0415 - in the worker only
            get_kv_transfer_group,
            has_kv_transfer_group,
        )

        connector: Any = get_kv_transfer_group() if has_kv_transfer_group() else None
        side = getattr(connector, "_worker", None)
        copies = getattr(side, "_copies", None)
        reach_bytes = getattr(copies, "reach_bytes", -1)
        encoded_groups = sum(map(bool, getattr(side, "encodes", ())))
        counts = getattr(side, "counts", {})
        return {**counts, "reach_bytes": reach_bytes, "encoded_groups": encoded_groups}
