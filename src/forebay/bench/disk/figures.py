"""Figures of a run and what they say: medians with their spread, pairs with their ratio."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, NamedTuple, Self

# A model to speak of: Qwen2.5-32B, 64 layers, 8 KV heads of 128, bf16, keys and values.
MODEL_NAME: Final = "Qwen2.5-32B in bf16"
MODEL_KV_BYTES: Final = 64 * 8 * 128 * 2 * 2  # a token
# Recomputing costs 2 x 32.8e9 operations a token; an H100 sustains about half of its 989 TFLOP/s.
MODEL_PREFILL_TOKENS: Final = 7500  # a second, computed


class Spread(NamedTuple):
    """A median and how far the runs lay apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least one run."""
        return cls(median(values), min(values), max(values))

    def as_json(self, name: str, digits: int | None = 3) -> dict[str, Any]:
        """Two flat names."""
        low, high = round(self.low, digits), round(self.high, digits)
        return {name: round(self.median, digits), f"{name}_spread": [low, high]}

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class RawComparison:
    """Raw I/O against Forebay, measured in pairs back to back, GB/s."""

    forebay: Spread
    raw: Spread
    ratio: Spread  # of the pairs
    pairs: tuple[tuple[float, float], ...]  # raw, forebay
    by_depth: dict[int, tuple[float, float]]  # depth → medians of raw and forebay

    @classmethod
    def of(cls, rounds: Sequence[dict[int, tuple[float, float]]]) -> Self:
        """Rounds of depth → (raw, forebay); a pair is the best of the depths in one round."""
        pairs = tuple(
            (max(raw for raw, _ in each.values()), max(forebay for _, forebay in each.values()))
            for each in rounds
        )
        by_depth = {
            depth: (
                median(each[depth][0] for each in rounds),
                median(each[depth][1] for each in rounds),
            )
            for depth in rounds[0]
        }
        return cls(
            Spread.of([forebay for _, forebay in pairs]),
            Spread.of([raw for raw, _ in pairs]),
            Spread.of([forebay / raw for raw, forebay in pairs]),
            pairs,
            by_depth,
        )


PAIRS: Final = 5
Measure = Callable[[int, float], float]  # depth and seconds → GB/s


def compare_in_pairs(
    depths: Sequence[int], raw: Measure, forebay: Measure, slice_s: Callable[[str], float]
) -> RawComparison:
    """A slice of raw and a slice of Forebay, back to back, in alternating order.

    So what else goes on in the machine meets both. `slice_s` is told what comes next, and answers
    with how long it may take.
    """
    rounds = []
    for number in range(PAIRS):
        order = [("raw", raw), ("forebay", forebay)]
        if number % 2:
            order.reverse()
        each = {}
        for depth in depths:
            found = {
                name: measure(depth, slice_s(f"{name}, depth {depth}")) for name, measure in order
            }
            each[depth] = (found["raw"], found["forebay"])
        rounds.append(each)
    return RawComparison.of(rounds)


@dataclass(frozen=True, slots=True)
class DirectoryShare:
    """What one directory carried of the bytes that were stored."""

    path: str
    share: float  # of 1


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """All that `forebay bench pool` measures; None: the space or the time did not suffice."""

    record_payload_bytes: int
    seconds: float
    written_bytes: int  # by all of it, to the drives
    read: RawComparison
    write: RawComparison
    mixed_forebay: tuple[float, float]  # read and write at once, GB/s
    mixed_raw: tuple[float, float]
    shares: tuple[DirectoryShare, ...]
    misses: int  # of records that were stored and not evicted: 0 unless the drive is broken
    dropped: int
    reopen_100k_s: Spread | None
    index_bytes_per_record: float | None
    keys_100k_ms: Spread

    def as_json(self) -> dict[str, Any]:
        """Flat names for programs; docs/bench.md defines each."""
        reopen, name = self.reopen_100k_s, "reopen_100k_s"
        return {
            "record_payload_bytes": self.record_payload_bytes,
            "seconds": round(self.seconds, 1),
            "written_bytes": self.written_bytes,
            **comparison_json("read", self.read),
            **comparison_json("write", self.write),
            "mixed_read_gbps": round(self.mixed_forebay[0], 3),
            "mixed_write_gbps": round(self.mixed_forebay[1], 3),
            "raw_mixed_read_gbps": round(self.mixed_raw[0], 3),
            "raw_mixed_write_gbps": round(self.mixed_raw[1], 3),
            "directories": [asdict(share) for share in self.shares],
            "misses": self.misses,
            "dropped": self.dropped,
            **(reopen.as_json(name) if reopen else {name: None, f"{name}_spread": None}),
            "index_bytes_per_record": self.index_bytes_per_record,
            **self.keys_100k_ms.as_json("keys_100k_ms", 2),
            "tokens_per_s": round(tokens_per_s(self)),
            "tokens_per_s_model": MODEL_NAME,
            "verdict": verdict(self),
        }


def tokens_per_s(figures: DiskFigures) -> float:
    """How many tokens' KV of the named model the drive gives back in a second."""
    return figures.read.forebay.median * 1e9 / MODEL_KV_BYTES


def verdict(figures: DiskFigures) -> str:
    """The answer to a buyer's question, in one or two sentences."""
    tokens = tokens_per_s(figures)
    times = tokens / MODEL_PREFILL_TOKENS
    facts = (
        f"reads {figures.read.forebay.median:.1f} GB/s verified, the KV of {tokens:,.0f} tokens/s"
        f" of {MODEL_NAME}, {times:.1f} times what one H100 recomputes (computed: "
        f"{MODEL_PREFILL_TOKENS:,} tokens/s)"
    )
    if times >= 2:
        return f"Good enough: it {facts}."
    if times >= 1:
        return f"Good enough for one GPU, without much to spare: it {facts}."
    return (
        f"Too slow for this model: it {facts}; recomputing is faster than loading."
        " It can still serve smaller models, or several such drives together."
    )


def comparison_json(name: str, found: RawComparison) -> dict[str, Any]:
    """Pairs under flat names."""
    return {
        **found.forebay.as_json(f"{name}_gbps"),
        **found.raw.as_json(f"raw_{name}_gbps"),
        **found.ratio.as_json(f"{name}_ratio"),
        f"{name}_ratios": [round(forebay / raw, 3) for raw, forebay in found.pairs],
        f"{name}_by_depth": {
            str(depth): {"raw_gbps": round(raw, 3), "gbps": round(forebay, 3)}
            for depth, (raw, forebay) in found.by_depth.items()
        },
    }
