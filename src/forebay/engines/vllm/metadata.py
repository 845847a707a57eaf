"""What vLLM carries between its scheduler and its workers: shards, step plans and reports."""

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from forebay.engines.geometry import Shard
from forebay.engines.step import StepPlan, WorkerReport


@dataclass(frozen=True, slots=True)
class ShardMetadata(KVConnectorHandshakeMetadata):
    """A worker's part of every block, told to the scheduler when the KV cache is allocated."""

    shard: Shard
    layers: tuple[str, ...]  # of group 0
    page_bytes: int  # of group 0; the largest if they differ
    local_bytes: tuple[int, ...] = ()  # size of a block, by group from 1 on
    full_bytes: int = 0  # size of a block of group 0; 0: its layers are equal
    local_layers: tuple[tuple[str, ...], ...] = ()  # by group from 1 on
    unlike: tuple[tuple[str, ...], ...] = ()  # each layer with what shapes it, if they differ
    interleave: int = 1  # successive tokens that a rank has
    encodes: tuple[int, ...] = ()  # by group, the size of pages that are encoded here; 0: none

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """The size of a block, by group."""
        return (self.full_bytes or self.page_bytes * len(self.layers), *self.local_bytes)


@dataclass(slots=True)
class StepMetadata(StepPlan, KVConnectorMetadata):
    """See StepPlan."""


@dataclass(slots=True)
class ReportMetadata(WorkerReport, KVConnectorWorkerMetadata):
    """See WorkerReport."""

    @classmethod
    def of(cls, report: WorkerReport) -> "ReportMetadata":
        """One worker's report."""
        return cls(report.step, report.stored, report.over, report.reach)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ReportMetadata":
        """Two workers' reports merged."""
        assert isinstance(other, ReportMetadata)
        self.add(other)
        return self
