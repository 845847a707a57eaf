"""An OTLP receiver: a gRPC server that keeps the spans it is sent, as a collector would."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace: str  # hex digits
    id: str
    parent: str  # empty: none
    attributes: dict[str, Any]
    began_ns: int
    ended_ns: int


class TraceReceiver:
    """Listens at a port of its own until it is closed."""

    def __init__(self) -> None:
        import grpc
        from opentelemetry.proto.collector.trace.v1 import (
            trace_service_pb2 as messages,
        )
        from opentelemetry.proto.collector.trace.v1 import (
            trace_service_pb2_grpc as service,
        )

        received = self.spans = []

        class Receiver(service.TraceServiceServicer):  # type: ignore[misc] # it has no types
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
                received.extend(_spans(request))
                return messages.ExportTraceServiceResponse()

        self._server = grpc.server(ThreadPoolExecutor(2))
        service.add_TraceServiceServicer_to_server(Receiver(), self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    spans: list[ReceivedSpan]

    def of(self, request_id: str, name: str) -> list[ReceivedSpan]:
        """The spans of a request, by the id that its client knows."""
        return [
            span
            for span in list(self.spans)
            if span.name == name and span.attributes.get("gen_ai.request.id") == request_id
        ]

    def close(self) -> None:
        self._server.stop(None).wait()


def _spans(request: Any) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            {
                each.key: getattr(each.value, str(each.value.WhichOneof("value")))
                for each in span.attributes
            },
            span.start_time_unix_nano,
            span.end_time_unix_nano,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
