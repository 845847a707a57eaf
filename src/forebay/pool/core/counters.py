"""What the pool counts, under the names that `forebay stats` and the metrics use."""

from collections import Counter


class Counters:
    """Monotone counts since start; owned by the pool's thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count something; a label is part of the name: `misses.deadline`."""
        self._counts[name] += count

    def get(self, name: str) -> int:
        """One count."""
        return self._counts[name]

    def as_dict(self) -> dict[str, int]:
        """All of them, sorted by name."""
        return dict(sorted(self._counts.items()))
