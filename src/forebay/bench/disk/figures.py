"""A run's figures under the names of docs/bench.md: medians, spreads, pairs with ratios."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from forebay.settings import DiskSetting

# A model to speak of: Qwen2.5-32B, 64 layers, 8 KV heads of 128, bf16, keys and values.
MODEL_NAME: Final = "Qwen2.5-32B in bf16"
MODEL_KV_BYTES: Final = 64 * 8 * 128 * 2 * 2  # a token
# Recomputing costs 2 x 32.8e9 operations a token; an H100 sustains about half of its 989 TFLOP/s.
MODEL_PREFILL_TOKENS: Final = 7500  # a second, computed
PAIRS: Final = 5

Figures = dict[str, Any]  # by the names of docs/bench.md
Progress = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)
Measure = Callable[[int, float], float]  # depth and seconds → GB/s
Round = dict[int, tuple[float, float]]  # depth → GB/s of raw and of Forebay


@dataclass(frozen=True, slots=True)
class PoolBenchPlan:
    disks: tuple[DiskSetting, ...]
    payload_bytes: int  # of a record
    seconds: float  # for the drives, and as much for a pool on them
    dram_bytes: int = 0  # of that pool


def spread(name: str, values: Sequence[float], digits: int | None = 3) -> Figures:
    """The median of at least one run, with the least and the greatest."""
    low, high = round(min(values), digits), round(max(values), digits)
    return {name: round(median(values), digits), f"{name}_spread": [low, high]}


def latency(name: str, rounds: Sequence[Sequence[float]]) -> Figures:
    """Latencies of calls: p50 by rounds, p99 and longest over all of them."""
    medians = [sorted(each)[len(each) // 2] * 1e3 for each in rounds]
    every = sorted(second * 1e3 for each in rounds for second in each)
    return {
        **spread(f"{name}_p50_ms", medians),
        f"{name}_p99_ms": round(every[len(every) * 99 // 100], 3),
        f"{name}_longest_ms": round(every[-1], 3),
        f"{name}_calls": len(every),
    }


def compare_in_pairs(
    name: str,
    depths: Sequence[int],
    raw: Measure,
    forebay: Measure,
    slice_s: Callable[[str], float],
) -> Figures:
    """A slice of raw and a slice of Forebay, back to back, in alternating order.

    So other load on the machine affects both. `slice_s` is told what comes next, and returns how
    long it may take.
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
    return pairs(name, rounds)


def pairs(name: str, rounds: Sequence[Round]) -> Figures:
    """Figures of pairs: the best raw and the best Forebay rate over all depths in each round."""
    raws, forebays = (
        [max(rates[which] for rates in each.values()) for each in rounds] for which in (0, 1)
    )
    ratios = [forebay / raw for raw, forebay in zip(raws, forebays, strict=True)]
    return {
        **spread(f"{name}_gbps", forebays),
        **spread(f"raw_{name}_gbps", raws),
        **spread(f"{name}_ratio", ratios),
        f"{name}_ratios": [round(ratio, 3) for ratio in ratios],
        f"{name}_by_depth": {
            str(depth): {
                key: round(median(each[depth][which] for each in rounds), 3)
                for which, key in enumerate(("raw_gbps", "gbps"))
            }
            for depth in rounds[0]
        },
    }


def worth(read_gbps: float) -> Figures:
    """What a drive with this read bandwidth is worth, compared with recomputing."""
    tokens = read_gbps * 1e9 / MODEL_KV_BYTES
    times = tokens / MODEL_PREFILL_TOKENS
    facts = (
        f"reads {read_gbps:.1f} GB/s verified, the KV of {tokens:,.0f} tokens/s"
        f" of {MODEL_NAME}, {times:.1f} times what one H100 recomputes (computed: "
        f"{MODEL_PREFILL_TOKENS:,} tokens/s)"
    )
    if times >= 2:
        verdict = f"Good enough: it {facts}."
    elif times >= 1:
        verdict = f"Good enough for one GPU, without much to spare: it {facts}."
    else:
        verdict = (
            f"Too slow for this model: it {facts}; recomputing is faster than loading."
            " It can still serve smaller models, or several such drives together."
        )
    return {
        "tokens_per_s": round(tokens),
        "tokens_per_s_model": MODEL_NAME,
        "verdict": verdict,
    }
