"""When loading KV beats computing it again.

Loading n tokens takes latency + bytes(n) / bandwidth, computing them n / prefill rate. Loading wins
above the bandwidth prefill rate x bytes a token, and there from the number of tokens on that pays
for the latency. The prefill rate is taken as constant; it falls with the context, so that loading a
long prefix wins by more than is shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from forebay.plan.capacity import TOKENS_MAX
from forebay.plan.model.shape import Shape, most_tokens
from forebay.plan.number import real, whole
from forebay.plan.ssd import DRIVES, GB


@dataclass(frozen=True, slots=True)
class KvSource:
    """A tier that KV can be read from, with its bandwidth and latency."""

    name: str
    bytes_s: float
    latency_us: float

    def __post_init__(self) -> None:
        real(f"bandwidth of {self.name}", self.bytes_s)
        real("latency_us", self.latency_us, most=1e9, zero=True)


# PCIe as measured with pinned memory; networks at line rate, which a real one approaches.
SOURCES: Final[dict[str, KvSource]] = {
    "pcie5-x16": KvSource("pcie5-x16", 54.5 * GB, 20.0),
    **{
        name: KvSource(name, drive.read_bytes_s, drive.latency_us)
        for name, drive in DRIVES.items()
        if drive.read_bytes_s is not None
    },
    "25gbe": KvSource("25gbe", 3.125 * GB, 200.0),
    "100gbe": KvSource("100gbe", 12.5 * GB, 200.0),
}


@dataclass(frozen=True, slots=True)
class SourceBreakeven:
    """Loading from one tier against recomputing on the GPU."""

    source: str
    bytes_s: float
    latency_us: float
    wins_from_tokens: int | None  # the shortest prefix that loads faster; none: none does
    load_ms: float  # for `tokens`
    speedup: float  # recompute / load, for `tokens`


@dataclass(frozen=True, slots=True)
class Breakeven:
    """Loading from each tier against recomputing on the GPU."""

    tokens: int
    prefill_tps: float
    token_bytes: int
    even_bytes_s: float  # the bandwidth that equals recomputing, latency aside, at `tokens`
    recompute_ms: float  # for `tokens`
    contests: tuple[SourceBreakeven, ...]


def breakeven(
    shape: Shape, prefill_tps: float, tokens: int, sources: Iterable[KvSource]
) -> Breakeven:
    """Each source against recomputing at the measured rate, in prompt tokens per second."""
    real("prefill_tps", prefill_tps, most=1e12)
    whole("tokens", tokens, most=TOKENS_MAX)
    recompute_s = tokens / prefill_tps
    return Breakeven(
        tokens=tokens,
        prefill_tps=prefill_tps,
        token_bytes=shape.token_bytes,
        even_bytes_s=shape.sequence_bytes(tokens) / recompute_s,
        recompute_ms=recompute_s * 1000,
        contests=tuple(_compare(shape, prefill_tps, tokens, source) for source in sources),
    )


def _compare(shape: Shape, prefill_tps: float, tokens: int, source: KvSource) -> SourceBreakeven:
    def load_s(length: int) -> float:
        return source.latency_us / 1e6 + shape.sequence_bytes(length) / source.bytes_s

    # Load time is concave in the length and recompute time linear: the GPU wins up to one length.
    gpu_wins_up_to = most_tokens(lambda length: load_s(length) >= length / prefill_tps, TOKENS_MAX)
    return SourceBreakeven(
        source=source.name,
        bytes_s=source.bytes_s,
        latency_us=source.latency_us,
        wins_from_tokens=None if gpu_wins_up_to == TOKENS_MAX else gpu_wins_up_to + 1,
        load_ms=load_s(tokens) * 1000,
        speedup=tokens / prefill_tps / load_s(tokens),
    )
