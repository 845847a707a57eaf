"""A router as far as it listens: vLLM's KV events from its ZMQ socket, and what follows."""

from collections import defaultdict
from typing import Any

import msgspec


class Router:
    """Subscribes to one engine's events; what it believes is in `media`."""

    def __init__(self, endpoint: str) -> None:
        import zmq

        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)
        self.batches = 0
        self.events: list[dict[str, Any]] = []
        self.media: dict[str, set[int]] = defaultdict(set)  # medium → blocks that lie there

    def listen(self, timeout_s: float = 0.05) -> bool:
        """Take in what has come; whether it was anything."""
        before = self.batches
        while self._socket.poll(timeout_s * 1000):
            _, _, payload = self._socket.recv_multipart()
            self.batches += 1
            for event in msgspec.msgpack.decode(payload)[1]:
                self._take(event)
        return self.batches > before

    def _take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["type"] == "BlockStored":
            self.media[event["medium"]].update(event["block_hashes"])
        elif event["type"] == "BlockRemoved":
            self.media[event["medium"]].difference_update(event["block_hashes"])
        else:
            self.media["GPU"].clear()

    def described(self, medium: str) -> dict[int, tuple[Any, ...]]:
        """What was ever said of the blocks of a medium: block → all that shapes its hash."""
        found: dict[int, tuple[Any, ...]] = {}
        for event in self.events:
            if event["type"] != "BlockStored" or event["medium"] != medium:
                continue
            size, parent = event["block_size"], event["parent_block_hash"]
            extra = event.get("extra_keys") or [None] * len(event["block_hashes"])
            for number, block in enumerate(event["block_hashes"]):
                tokens = event["token_ids"][number * size : (number + 1) * size]
                assert len(tokens) == size
                found[block] = (
                    parent, tuple(tokens), size, msgspec.json.encode(extra[number]),
                    event["lora_name"], event["group_idx"], event["kv_cache_spec_kind"],
                )  # fmt: skip
                parent = block
        return found

    def close(self) -> None:
        self._socket.close(linger=0)
