"""Whether a prompt that nobody knows was served before under another salt.

Keys under different salts have nothing in common, so the pool cannot tell, and must not. The engine
can, for prompts that it has served itself: it keeps the first chunks of the last `_PROMPTS_MAX`
prompts, each by a key without salt with the keys that it was stored under. No salt and no token is
kept.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from forebay.engines.scheduling.request import TrackedRequest
from forebay.identity.keys import KeyChain

_PROMPTS_MAX: Final = 4096
_SALTS_MAX: Final = 8  # salts remembered of one prompt


class SaltMemory:
    """First chunks that this engine has served, under any salt. Owned by the scheduler's thread."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, dict[bytes, None]] = OrderedDict()

    def remember(self, tracked: TrackedRequest) -> None:
        """Note a request that is looked up."""
        if not tracked.keys:
            return
        plain = _unsalted(tracked)
        seen = self._seen.setdefault(plain, {})
        self._seen.move_to_end(plain)
        seen[tracked.keys[0]] = None
        if len(seen) > _SALTS_MAX:
            del seen[next(iter(seen))]
        if len(self._seen) > _PROMPTS_MAX:
            self._seen.popitem(last=False)

    def is_known_elsewhere(self, tracked: TrackedRequest) -> bool:
        """Whether its first chunk was served under another salt."""
        return bool(tracked.keys) and len(self._seen.get(_unsalted(tracked), ())) > 1


def _unsalted(tracked: TrackedRequest) -> bytes:
    """The key that the first chunk would have without a salt."""
    if not tracked.root.salt:
        return tracked.keys[0]
    size = tracked.shape.chunk_tokens
    parts = tracked.parts(0, size) if tracked.parts is not None else b""
    chain = KeyChain(replace(tracked.root, salt=""))
    return chain.extend(tracked.request.all_token_ids[:size], {0: parts} if parts else None)[0]
