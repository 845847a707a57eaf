"""When loading KV beats computing it again.

Loading n tokens takes latency + bytes(n) / bandwidth, computing them n / prefill rate. Loading wins
if the bandwidth is above prefill rate x bytes per token, from the number of tokens on that makes up
for the latency. With tensor parallelism each GPU has its own link for what its rank holds; a drive
or a network carries what all ranks hold, each number once. The prefill rate is assumed to be
constant; in fact it falls with the context, so loading a long prefix wins by more than is shown.
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
    is_per_gpu: bool = False  # each GPU has its own; else all GPUs of a host share it

    def __post_init__(self) -> None:
        real(f"bandwidth of {self.name}", self.bytes_s)
        real("latency_us", self.latency_us, most=1e9, zero=True)


# PCIe as measured with pinned memory; networks at line rate, which real ones nearly reach.
SOURCES: Final[dict[str, KvSource]] = {
    "pcie5-x16": KvSource("pcie5-x16", 54.5 * GB, 20.0, is_per_gpu=True),
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
    is_per_gpu: bool
    wins_from_tokens: int | None  # the shortest prefix that loads faster; None: none does
    load_ms: float  # for `tokens`
    speedup: float  # recompute / load, for `tokens`


@dataclass(frozen=True, slots=True)
class Breakeven:
    """Loading from each tier against recomputing on the GPU."""

    tokens: int
    tp: int
    prefill_tps: float  # of all ranks together
    token_bytes: int
    even_bytes_s: float  # bandwidth at which both take as long for `tokens`, without latency
    even_gpu_bytes_s: float  # the same for each GPU's own link
    recompute_ms: float  # for `tokens`
    contests: tuple[SourceBreakeven, ...]


def breakeven(
    shape: Shape, prefill_tps: float, tokens: int, sources: Iterable[KvSource], tp: int = 1
) -> Breakeven:
    """Compare each source with recomputing at the measured rate, in prompt tokens per second."""
    real("prefill_tps", prefill_tps, most=1e12)
    whole("tokens", tokens, most=TOKENS_MAX)
    rank = shape.rank(tp)
    recompute_s = tokens / prefill_tps
    return Breakeven(
        tokens=tokens,
        tp=tp,
        prefill_tps=prefill_tps,
        token_bytes=shape.token_bytes,
        even_bytes_s=shape.sequence_bytes(tokens) / recompute_s,
        even_gpu_bytes_s=rank.sequence_bytes(tokens) / recompute_s,
        recompute_ms=recompute_s * 1000,
        contests=tuple(
            _compare(rank if source.is_per_gpu else shape, prefill_tps, tokens, source)
            for source in sources
        ),
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
        is_per_gpu=source.is_per_gpu,
        wins_from_tokens=None if gpu_wins_up_to == TOKENS_MAX else gpu_wins_up_to + 1,
        load_ms=load_s(tokens) * 1000,
        speedup=tokens / prefill_tps / load_s(tokens),
    )
