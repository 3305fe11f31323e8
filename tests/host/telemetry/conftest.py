"""A collector on the loopback, and OTLP as Google's own reader of protobuf understands it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rig import rig

__all__ = ["rig"]


def read(text: str | bytes) -> ExportTraceServiceRequest:
    """Return a document as OpenTelemetry's own classes; a field that they do not know is an error.

    OTLP writes ids as hexadecimal digits, where JSON of protobuf has base64.
    """
    document = json.loads(text)
    for span in all_spans(document):
        for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def all_spans(document: Any) -> Iterator[dict[str, Any]]:
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a span, or of a resource, as plain values."""
    found: dict[str, Any] = {}
    for pair in of.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@dataclass
class LoopbackCollector:
    """Takes what is posted."""

    status: int = 200
    answer: bytes = b"{}"
    silent: bool = False
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def spans(self) -> list[Any]:
        return [span for body in self.bodies for span in flat(read(body))]


def flat(request: ExportTraceServiceRequest) -> list[Any]:
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[LoopbackCollector]:
    """A collector that keeps what it gets."""
    found = LoopbackCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if found.silent:
                found.came.set()
                found.over.wait(60)
                return
            found.paths.append(self.path)
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            found.bodies.append(body)
            self.send_response(found.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(found.answer)))
            self.end_headers()
            self.wfile.write(found.answer)
            found.came.set()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.over.set()
    server.shutdown()
    thread.join()
    server.server_close()
