"""Spans as an OTLP/HTTP JSON document, and the collector that it is sent to, as the ``OTEL_…`` variables name it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from moryflow_sdk import ConfigError, MoryflowError
from moryflow_sdk.support.secrets import know

from moryflow import __version__

from .spans import NAMES, SCHEMA_URL, TraceSpan

# The conventions' own defaults.
PORT, PATH, TIMEOUT = 4318, "/v1/traces", 10_000
# The most bytes of a collector's answer that are read.
MAX_ANSWER = 64 * 1024
_INTERNAL, _CLIENT, _ERROR = 1, 3, 2
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def document(spans: Iterable[TraceSpan], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return spans as an ``ExportTraceServiceRequest`` in the JSON encoding of OTLP."""
    pairs = _pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    resource = {"service.name": "moryflow", "service.version": __version__, **pairs}
    if name := environ.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = name
    scope = {"scope": {"name": "moryflow", "version": __version__}, "schemaUrl": SCHEMA_URL}
    scope["spans"] = [_span(span) for span in spans]
    about = [{"key": key, "value": _value(value)} for key, value in resource.items()]
    return {"resourceSpans": [{"resource": {"attributes": about}, "scopeSpans": [scope], "schemaUrl": SCHEMA_URL}]}


def _span(span: TraceSpan) -> dict[str, Any]:
    given = {NAMES[name]: value for name, value in span.attributes.items() if value is not None}
    found: dict[str, Any] = {"traceId": span.trace, "spanId": span.id, "name": span.name}
    found |= {"parentSpanId": span.parent} if span.parent else {}
    found |= {"kind": _CLIENT if span.client else _INTERNAL}
    found |= {"startTimeUnixNano": str(span.start), "endTimeUnixNano": str(span.end)}
    found["attributes"] = [{"key": key, "value": _value(value)} for key, value in given.items()]
    return {**found, "status": {"code": _ERROR} if "error.type" in given else {}}


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}  # 64 bits: JSON's own numbers hold 53
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(item) for item in value]}}  # pyright: ignore[reportUnknownVariableType]
        case _:  # a lone surrogate cannot be sent
            return {"stringValue": str(value).encode("utf-8", "replace").decode()}


def trace_parent(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the trace and span that ``TRACEPARENT`` names; an invalid one counts as none, as the standard demands."""
    found = _TRACE_PARENT.fullmatch(environ.get("TRACEPARENT", "").strip())
    return (found[1], found[2]) if found else None


class Collector(NamedTuple):
    """Where traces go.

    :ivar timeout: seconds for one request.
    """

    url: str
    headers: Mapping[str, str]
    timeout: float

    async def send(self, spans: Iterable[TraceSpan], environ: Mapping[str, str]) -> None:
        """Send spans in one request, which is not repeated: what fails is still in the store.

        :raises MoryflowError: the collector was not reached, or did not take all of them.
        """
        import asyncio

        from moryflow_sdk.chat_completions.endpoint import Endpoint
        from moryflow_sdk.chat_completions.failures import Broken, ConnectFailed, TimedOut, Undecodable
        from moryflow_sdk.chat_completions.transport import HttpClient, tls_context

        body = json.dumps(document(spans, environ), separators=(",", ":")).encode()
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.compress(body)
        endpoint = Endpoint(self.url, "the collector", headers=self.headers, timeout=self.timeout)
        answer, status = b"", 0
        try:
            client = HttpClient(endpoint, await asyncio.to_thread(tls_context) if endpoint.is_tls else None)
            async with asyncio.timeout(self.timeout):
                response = await client.send("POST", "", body)
                status = response.status
                async for piece in response.pieces():
                    answer = (answer + piece)[:MAX_ANSWER]
                await response.aclose()
            await client.aclose()
        except TimeoutError:
            raise self._error(f"did not answer within {self.timeout:g} s") from None
        except (ConnectFailed, TimedOut, Broken, Undecodable, ValueError) as error:
            raise self._error(f"was not reached: {error}") from error
        if not 200 <= status < 300:
            raise self._error(f"answered {status}")
        if problem := _rejected(answer):
            raise self._error(problem)

    @property
    def place(self) -> str:
        """The address without user, password and query, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def _error(self, what: str) -> MoryflowError:
        next_step = "check --otlp, telemetry.otlp or OTEL_EXPORTER_OTLP_ENDPOINT"
        return MoryflowError(f"the collector {what}", where=self.place, next_step=next_step)


def _rejected(answer: bytes) -> str:
    try:
        told: Any = json.loads(answer or b"{}")
        part = told.get("partialSuccess") or {}
        count = int(part.get("rejectedSpans") or 0)
    except (ValueError, AttributeError, TypeError):
        return ""  # the answer of a proxy, or the binary encoding: 2xx is what counts
    return f"refused {count} spans: {part.get('errorMessage', '')}".rstrip(": ") if count else ""


def collector_of(environ: Mapping[str, str], setting: str | None, given: str | None = None) -> Collector | None:
    """Return the collector: `given` on the command line, or as the environment says, or that of the `setting`.

    :raises ConfigError: its address or the time limit is invalid.
    """
    whole = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") if given is None else None
    url = whole or given or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or setting
    if not url:
        return None
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError("this is no address of a collector", where=url, next_step=f"http://localhost:{PORT}, for example")
    if not whole and not url.rstrip("/").endswith(PATH):
        url = url.rstrip("/") + PATH
    headers: dict[str, str] = {}
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        headers |= {key.lower(): value for key, value in _pairs(environ.get(name, "")).items()}
    packed = environ.get("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION") or environ.get("OTEL_EXPORTER_OTLP_COMPRESSION") or "none"
    if packed not in ("gzip", "none"):
        raise ConfigError("this is no compression; it is gzip or none", where=f"OTEL_EXPORTER_OTLP_COMPRESSION={packed}")
    know(headers.values())  # they hold keys, which no message must repeat
    headers |= {"content-encoding": "gzip"} if packed == "gzip" else {}
    limit = environ.get("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT") or environ.get("OTEL_EXPORTER_OTLP_TIMEOUT") or str(TIMEOUT)
    if not limit.isdecimal() or not int(limit):
        raise ConfigError("this is no number of milliseconds", where=f"OTEL_EXPORTER_OTLP_TIMEOUT={limit}")
    return Collector(url, headers, int(limit) / 1000)


def _pairs(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs if key.strip()}
