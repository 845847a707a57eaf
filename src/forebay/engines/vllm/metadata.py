"""Step plans and reports as vLLM carries them between its scheduler and its workers."""

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from forebay.engines.step import StepPlan, WorkerReport


@dataclass(slots=True)
class StepMetadata(StepPlan, KVConnectorMetadata):
    """See StepPlan."""


@dataclass(slots=True)
class ReportMetadata(WorkerReport, KVConnectorWorkerMetadata):
    """See WorkerReport."""

    @classmethod
    def of(cls, report: WorkerReport) -> "ReportMetadata":
        """One worker's report."""
        return cls(report.step, report.stored, report.missed, report.over, report.digests)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ReportMetadata":
        """Both workers' reports as one."""
        assert isinstance(other, ReportMetadata)
        self.add(other)
        return self
