"""What vLLM carries between its scheduler and its workers: what they are, plans and reports."""

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
    """What a worker has of every block; the scheduler is told when the KV cache is there."""

    shard: Shard
    layers: tuple[str, ...]  # of group 0
    page_bytes: int  # likewise; of the largest, where they differ
    local_bytes: tuple[int, ...] = ()  # of a block, by group from 1 on
    full_bytes: int = 0  # of a block of group 0; 0: its layers are equal
    local_layers: tuple[tuple[str, ...], ...] = ()  # by group from 1 on
    unlike: tuple[tuple[str, ...], ...] = ()  # layers, and what shapes each, where that differs
    interleave: int = 1  # tokens that this rank has before the next one has some
    encodes: tuple[int, ...] = ()  # by group, the size of pages that are encoded here; 0: none

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """Of a block, by group."""
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
        """Both workers' reports as one."""
        assert isinstance(other, ReportMetadata)
        self.add(other)
        return self
