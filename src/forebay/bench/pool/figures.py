"""What a running pool was measured to do; docs/bench.md defines every figure."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from forebay.bench.disk.figures import RawComparison, Spread, comparison_json


class Latency(NamedTuple):
    """How long a call took, in ms: p50 by rounds, p99 and longest over all of them."""

    p50_ms: Spread
    p99_ms: float
    longest_ms: float
    calls: int

    @classmethod
    def of(cls, rounds: list[list[float]]) -> "Latency":
        """From the seconds of every call, round by round; no round is empty."""
        medians = [sorted(each)[len(each) // 2] * 1e3 for each in rounds]
        every = sorted(second * 1e3 for each in rounds for second in each)
        return cls(Spread.of(medians), every[len(every) * 99 // 100], every[-1], len(every))


@dataclass(frozen=True, slots=True)
class PoolBenchFigures:
    """The `--dram` figures of `forebay bench pool`."""

    dram_bytes: int
    record_payload_bytes: int
    small_payload_bytes: int  # of the chunks that are looked up and committed
    raw_write_gbps: float
    lookup: Latency  # beside a client that stores at half of that
    lookup_beside_gbps: float  # what that client really stored
    lookup_beside_commits: Latency  # beside a client that commits steadily
    beside_commits_per_s: float  # how many it did
    lookup_chunks: int
    lookups_not_ready: int  # of all these, those that found less than everything in DRAM
    commits_per_s: Spread
    commit_batch: int
    nvme: RawComparison
    nvme_misses: int
    stored: int  # records, of several times the DRAM
    found: int  # of these, loaded again with their bytes
    refused: int  # records that were not taken though there was room on NVMe
    idle_cpu_share: float  # of one core, with a client connected and nothing to do
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Flat names for programs."""
        return {
            "dram_bytes": self.dram_bytes,
            "small_payload_bytes": self.small_payload_bytes,
            "pool_raw_write_gbps": round(self.raw_write_gbps, 3),
            **_latency("lookup_500", self.lookup),
            "lookup_beside_gbps": round(self.lookup_beside_gbps, 3),
            **_latency("lookup_500_beside_commits", self.lookup_beside_commits),
            "beside_commits_per_s": round(self.beside_commits_per_s),
            "lookup_chunks": self.lookup_chunks,
            "lookups_not_ready": self.lookups_not_ready,
            **self.commits_per_s.as_json("commits_per_s", None),
            "commit_batch": self.commit_batch,
            **comparison_json("nvme_to_slab", self.nvme),
            "nvme_to_slab_misses": self.nvme_misses,
            "stored_records": self.stored,
            "found_records": self.found,
            "refused_records": self.refused,
            "everything_found": self.found == self.stored and not self.refused,
            "pool_idle_cpu_share": round(self.idle_cpu_share, 4),
            "pool_seconds": round(self.seconds, 1),
        }


def _latency(name: str, latency: Latency) -> dict[str, Any]:
    return {
        **latency.p50_ms.as_json(f"{name}_p50_ms"),
        f"{name}_p99_ms": round(latency.p99_ms, 3),
        f"{name}_longest_ms": round(latency.longest_ms, 3),
        f"{name}_calls": latency.calls,
    }
