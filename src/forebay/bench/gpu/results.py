"""A row's results: written after every repeat, and continued if a run was interrupted.

A repeat has all its variants, from one run; a repeat that was broken off is measured again whole.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from forebay.bench.result.machine import gpus


class RowResults:
    def __init__(self, path: Path, row: str, scale: str) -> None:
        self.path = path
        self._ratios: list[tuple[str, str, str, str]] = []
        self.found: dict[str, Any] = {"row": row, "scale": scale, "repeats": [], "beside": {}}
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known.get("scale") == scale:
                self.found = known
        self.found.setdefault("machine", machine())

    @property
    def repeats(self) -> list[dict[str, Any]]:
        repeats: list[dict[str, Any]] = self.found["repeats"]
        return repeats

    def keep(self, repeat: Mapping[str, Any]) -> None:
        self.repeats.append(dict(repeat))
        self._divide()
        self._write()

    def beside(self, name: str, value: object) -> None:
        """Something measured once, beside the repeats."""
        self.found["beside"][name] = value
        self._write()

    def ratio(self, name: str, figure: str, one: str, other: str) -> None:
        """One variant's figure over another's in each repeat, now and whenever one is added."""
        self._ratios.append((name, figure, one, other))
        self._divide()

    def spread(self, name: str, ratios: Sequence[float]) -> None:
        """Ratios as they are kept: median, least and most."""
        kept = [round(value, 3) for value in (median(ratios), min(ratios), max(ratios))]
        self.found.setdefault("ratios", {})[name] = kept
        self._write()

    def _divide(self) -> None:
        for name, figure, one, other in self._ratios:
            ratios = [
                repeat[one][figure] / repeat[other][figure]
                for repeat in self.repeats
                if figure in repeat.get(one, ()) and repeat.get(other, {}).get(figure)
            ]
            if ratios:
                self.spread(name, ratios)

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".part")
        fresh.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)


def machine() -> dict[str, str]:
    found = {"day": time.strftime("%Y-%m-%d", time.gmtime())}
    return {**found, "gpu": "\n".join(gpus())} if gpus() else found
