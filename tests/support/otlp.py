"""A collector: an HTTP server that decodes what OTLP exporters send, or one that does them harm."""

from __future__ import annotations

import gzip
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = {0: "UNSPECIFIED", 1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
STATUS = {0: "UNSET", 1: "OK", 2: "ERROR"}


@dataclass(frozen=True)
class Span:
    """One of those that arrived; ids in hex."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    status: str
    message: str
    events: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """Use as ``with Collector() as collector``; what came is in ``spans`` and ``metrics`` (name to attributes)."""

    spans: list[Span] = field(default_factory=list)
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)  # decompressed
    requests: list[str] = field(default_factory=list)  # path and query

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector._take(self.path, {name.lower(): text for name, text in self.headers.items()}, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wait_for_spans(self, count: int, name: str = "") -> list[Span]:
        """Those whose name starts so, once there are that many."""
        await wait_until(lambda: len(self.named(name)) >= count, what=f"{count} spans", shown=lambda: repr(self.spans))
        return self.named(name)

    def named(self, name: str) -> list[Span]:
        return [span for span in list(self.spans) if span.name.startswith(name)]

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.requests.append(path)
        self.headers.append(headers)
        self.bodies.append(body)
        if path.partition("?")[0].endswith("/v1/traces"):
            self._take_spans(ExportTraceServiceRequest.FromString(body))
        else:
            self._take_metrics(ExportMetricsServiceRequest.FromString(body))

    def _take_spans(self, request: Any) -> None:
        for batch in request.resource_spans:
            resource = _attributes(batch.resource.attributes)
            for scope in batch.scope_spans:
                self.spans += [_span(span, resource) for span in scope.spans]

    def _take_metrics(self, request: Any) -> None:
        for batch in request.resource_metrics:
            self.resources.append(_attributes(batch.resource.attributes))
            for scope in batch.scope_metrics:
                for metric in scope.metrics:
                    points = getattr(metric, metric.WhichOneof("data")).data_points
                    self.metrics.setdefault(metric.name, []).extend(_attributes(p.attributes) for p in points)


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name, KINDS[span.kind], span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
        tuple(link.span_id.hex() for link in span.links), STATUS[span.status.code], span.status.message,
        len(span.events), _attributes(span.attributes), resource,
    )  # fmt: skip


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        yield server.getsockname()[1]


@contextmanager
def dead_port() -> Iterator[int]:
    """A port that nobody listens on, kept so."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
