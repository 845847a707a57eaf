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
    layers: tuple[str, ...]
    page_bytes: int


@dataclass(slots=True)
class StepMetadata(StepPlan, KVConnectorMetadata):
    """See StepPlan."""


@dataclass(slots=True)
class ReportMetadata(WorkerReport, KVConnectorWorkerMetadata):
    """See WorkerReport."""

    @classmethod
    def of(cls, report: WorkerReport) -> "ReportMetadata":
        """One worker's report."""
        return cls(report.step, report.stored, report.over)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ReportMetadata":
        """Both workers' reports as one."""
        assert isinstance(other, ReportMetadata)
        self.add(other)
        return self
