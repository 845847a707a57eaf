"""Engines' descriptions of themselves, for `forebay stats` and `forebay why`."""

from dataclasses import dataclass
from itertools import islice
from typing import Final

from forebay.pool.messages import ENGINES_LISTED_MAX, Describe
from forebay.pool.session import public_id

_ENGINES_MAX: Final = 1024  # descriptions kept; as many as engines can be connected


@dataclass(frozen=True, slots=True)
class DescribedEngine:
    """One engine."""

    engine_id: str  # its name for people, see `public_id`
    description: Describe
    joined_at: float  # monotonic: when it first described itself


class DescribedEngines:
    """Descriptions by the secret names that engines join under. Owned by the pool's thread."""

    def __init__(self) -> None:
        self._engines: dict[str, DescribedEngine] = {}

    def describe(self, engine: str, description: Describe, now: float) -> None:
        """An engine describes itself; again when that has changed."""
        before = self._engines.get(engine)
        joined_at = now if before is None else before.joined_at
        if before is None and len(self._engines) >= _ENGINES_MAX:
            del self._engines[next(iter(self._engines))]
        self._engines[engine] = DescribedEngine(public_id(engine), description, joined_at)

    def get(self, engine: str) -> DescribedEngine | None:
        """An engine's description, if it has given one."""
        return self._engines.get(engine)

    def left(self, engine: str) -> None:
        """All processes of an engine have exited."""
        self._engines.pop(engine, None)

    def __len__(self) -> int:
        return len(self._engines)

    def listing(self, now: float) -> list[dict[str, object]]:
        """The `ENGINES_LISTED_MAX` engines that have been here longest, for `forebay why`."""
        return [
            {
                "id": each.engine_id,
                "model": each.description.model,
                "engine": each.description.engine,
                "sharing": each.description.sharing,
                "why": each.description.why,
                "namespace": each.description.namespace.hex()[:16],
                "chunk_tokens": each.description.chunk_tokens,
                "prefix_caching": each.description.prefix_caching,
                "joined_s": round(now - each.joined_at, 1),
            }
            for each in islice(self._engines.values(), ENGINES_LISTED_MAX)
        ]
