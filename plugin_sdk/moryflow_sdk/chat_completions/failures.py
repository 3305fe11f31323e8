"""Turn every failure before, around or in an answer into a :class:`ModelError` that says what to do next.

The same failure may come as an HTTP status, as an error object inside a stream, or as a page of HTML. Whatever the form, the
key never gets into a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

from moryflow_sdk.errors import ModelError, ModelErrorCode, redact

from .endpoint import Endpoint

# The patterns are texts, so that re compiles (and caches) them with the first error and not at the start of a turn.
_CONTEXT = (
    r"(?i)context[ _-]?(length|window|size|limit)|maximum context|too many (input )?tokens|exceed_context"
    r"|(prompt|input|request|message)s? (is |are )?too (long|large)|reduce the length|input length|token limit"
)
_OUTPUT_LIMIT = r"(?i)\bmax(_completion|_output|imum output)?[_ ]tokens\b"
_QUOTA = r"(?i)insufficient[ _](quota|balance|funds|credit)|exceeded your current quota|billing|credit balance|out of credits"
_BAD_KEY = (
    r"(?i)(invalid|incorrect|missing|expired) (x-)?api[ _-]?key|api_key_invalid"
    r"|\bapi[ _-]?key\b.{0,40}\b(not valid|invalid|incorrect|missing|expired)"
)
_ADVICE = (
    (r"(?i)\bcertificate", "where your network signs certificates itself, export SSL_CERT_FILE=FILE.pem with its certificate"),
    (r"(?i)\bproxy\b", "check the proxy in HTTPS_PROXY or HTTP_PROXY, or add the server to NO_PROXY"),
    (
        r"(?i)\b(tools?|functions?)`?( use| calls?| calling)? ((is|are) not (supported|enabled)|param requires --jinja)"
        r"|support (the )?[`'\"]?(tools?|functions?)\b|(enable-auto-tool-choice|supplied: (tools|functions))\b",
        "choose a model that calls tools with -m (moryflow model list), or set"
        " models.providers.{label}.models.NAME.tools to false, and it gets none",
    ),
)
"""Pairs of a pattern for the message and the advice that helps."""

_WORDS: tuple[tuple[str, ModelErrorCode], ...] = (
    (r"insufficient_|billing|payment|api_key|authentication|unauthori[sz]ed|permission|forbidden", "auth"),
    (r"rate_limit|too_many_requests|resource_exhausted|throttl", "rate_limit"),
    (r"content_(policy|filter)|safety|moderation", "content_filter"),
    (r"not_found", "not_found"),
    (r"timeout|timed_out|deadline", "timeout"),
    (r"overloaded|server_error|internal|unavailable", "overloaded"),
    (r"invalid_request|bad_request|unsupported|validation|invalid_argument", "bad_request"),
)
"""What the kind of an error object says, if the object has no status."""
_STATUS: dict[int, ModelErrorCode] = {
    401: "auth", 402: "auth", 403: "auth", 404: "not_found", 408: "timeout", 409: "overloaded", 410: "not_found",
    413: "context", 425: "overloaded", 429: "rate_limit", 499: "timeout", 504: "timeout", 522: "timeout", 524: "timeout",
}  # fmt: skip


def from_status(status: int, headers: Mapping[str, str], body: bytes, endpoint: Endpoint) -> ModelError:
    """Return the error for an answer whose HTTP status is not 200."""
    if 300 <= status < 400:
        target = redact(plain(headers.get("location", "").split("?")[0])[:200], endpoint.key)
        return ModelError(
            f"{endpoint.label} answered with a redirect (HTTP {status}) to {target or 'nowhere'}; "
            "it was not followed, because that would send the key to another server",
            code="protocol",
            status=status,
            next_step=f"set the final address in {endpoint.url_source}",
        )
    text = body.decode(errors="replace")
    try:
        detail = _Detail.of(json.loads(text))
    except (ValueError, RecursionError):
        detail = _Detail(_short(text))
    wait = retry_after(headers)
    if wait is None and (told := re.search(r'"retryDelay": ?"([\d.]{1,9})s"', text)):
        wait = _number(told[1])  # Google says it in the body
    return _error(_by_status(status), detail, endpoint, status, wait)


def from_object(value: Any, endpoint: Endpoint) -> ModelError:
    """Return the error for an error object that came with status 200, alone or inside the stream."""
    detail = _Detail.of(value)
    fallback: ModelErrorCode = _by_status(detail.status) if detail.status and detail.status >= 400 else "overloaded"
    told: list[ModelErrorCode] = [code for pattern, code in _WORDS if re.search(pattern, detail.kind)]
    return _error(told[0] if told else fallback, detail, endpoint, detail.status, None)


def is_error(value: Mapping[str, Any]) -> bool:
    """Whether a chunk, a choice or its delta reports a failure: as ``{"error": …}``, or in the form of vLLM and Anthropic."""
    return bool(value.get("error")) or "error" in (value.get("object"), value.get("type"))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a server asks to wait: in ``retry-after-ms``, or in ``retry-after`` as seconds or a date."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max((date - datetime.now(UTC)).total_seconds(), 0.0)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return min(max(number, 0.0), 1e9) if number == number else None


def plain(text: str) -> str:
    """Return the words of `text` on one line, without HTML tags, control characters and lone surrogates."""
    text = re.sub(r"(?is)<(script|style)\b.*?</\1\s*>|<[^<>]{0,2000}>", " ", whole(text))
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]+", " ", text).strip()


def whole(text: str) -> str:
    """Return `text` with surrogate pairs joined, and lone surrogates, which UTF-8 cannot encode, replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@dataclass(frozen=True)
class _Detail:
    """The content of an error body: a message, words for its kind, perhaps a status and the parameter that is refused."""

    message: str = ""
    kind: str = ""
    status: int | None = None
    param: str = ""

    @classmethod
    def of(cls, value: Any) -> _Detail:
        while isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        if not isinstance(value, dict):
            return cls(_short(value))
        found = cast("dict[str, Any]", value)
        for key in ("error", "detail"):
            if isinstance(found.get(key), dict | list):
                return cls.of(found[key])
        words = [str(found[key]) for key in ("code", "type", "status") if isinstance(found.get(key), str)]
        numbers = (_number(str(found.get(key, ""))) for key in ("code", "status"))
        status = next((int(number) for number in numbers if number is not None and 100 <= number < 600), None)
        message: Any = next((found[key] for key in ("message", "error", "detail", "msg") if found.get(key)), "")
        behind: Any = found.get("metadata")
        if isinstance(behind, dict) and isinstance(raw := cast("dict[str, Any]", behind).get("raw"), str):
            message = f"{message}: {raw}"  # OpenRouter's own message says only that its provider failed
        place: Any = found.get("loc")  # of pydantic: ["body", "messages", 2, "reasoning"]
        parts = [str(part) for part in cast("list[Any]", place) if part != "body"] if isinstance(place, list) else []
        return cls(_short(message), " ".join(words).lower(), status, _short(found.get("param") or ".".join(parts)))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)
    text = plain(text[:4000])
    return text if len(text) <= 500 else f"{text[:500]}…"


def _by_status(status: int) -> ModelErrorCode:
    return _STATUS.get(status, "overloaded" if status >= 500 else "bad_request")


def _error(code: ModelErrorCode, detail: _Detail, endpoint: Endpoint, status: int | None, wait: float | None) -> ModelError:
    """Return the error; some services say with a general status what only their words tell."""
    text = f"{detail.kind} {detail.message}"
    quota = status == 402 or bool(re.search(_QUOTA, text))
    is_too_long = re.search(_CONTEXT, text) and (re.search(r"(?i)context", text) or not re.search(_OUTPUT_LIMIT, text))
    if code == "rate_limit" and wait is None and quota:
        code = "auth"
    elif code not in ("auth", "rate_limit") and is_too_long:
        code = "context"
    elif code == "bad_request" and re.search(r"content_(policy|filter)", text):
        code = "content_filter"
    elif code in ("bad_request", "overloaded") and re.search(_BAD_KEY, text):
        code = "auth"
    refused = " refused the request" if code in ("auth", "bad_request", "context", "not_found") else ""
    suffix = f" (HTTP {status})" if status else ""
    message = detail.message or "the provider reported an error"
    error = ModelError(
        f"{endpoint.label}{refused}{suffix}: {redact(message, endpoint.key)}",
        code=code,
        status=status,
        retry_after=wait,
        next_step=next_step(code, endpoint, message, quota=quota),
    )
    error.param = detail.param
    return error


def next_step(code: str, endpoint: Endpoint, message: str = "", *, quota: bool = False) -> str:
    """Return what the user can do about an error with this code and message."""
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, message)), "")
    if advice and code not in ("auth", "context", "rate_limit"):
        return advice.format(label=endpoint.label)
    if quota and code in ("auth", "rate_limit"):
        return f"check the balance or the plan of the account behind {endpoint.key_source}, or choose another model with -m"
    steps = {
        "auth": f"check the key in {endpoint.key_source}" if endpoint.key else f"set a key: {endpoint.key_source}",
        "not_found": f"check the model name (moryflow model list) and the address in {endpoint.url_source}",
        "unreachable": (
            f"start the server, or correct the address in {endpoint.url_source}"
            if endpoint.is_loopback
            else f"check the network and the address in {endpoint.url_source}"
        ),
        "context": "compact the session (moryflow session compact) or choose a model with a larger context window",
        "rate_limit": "try again later, or choose another model with -m",
        "overloaded": "try again later, or choose another model with -m",
        "timeout": "try again later, or choose another model with -m",
        "bad_request": (
            "choose another model with -m, or drop the parameter it names (moryflow config prompt show lists yours)"
        ),
        "content_filter": "rephrase the prompt, or choose another model with -m",
        "protocol": f"check that {endpoint.url_source} is the address of an OpenAI-compatible API (most end in /v1)",
    }
    return steps.get(code, "")


class ConnectFailed(Exception):
    """No connection could be made: nobody answers, the certificate is not valid, or the proxy refuses."""


class TimedOut(Exception):
    """The other side did not answer, or did not accept data, in time."""


class Broken(Exception):
    """The connection ended, or the other side does not speak HTTP."""


class NoAnswer(Broken):
    """The connection ended before a single byte of an answer."""


class NotHttp(Broken):
    """The answer is not HTTP."""


class Undecodable(Exception):
    """An answer is compressed with a method that is not supported, or its compressed data is broken."""


WIRE_ERRORS = (ConnectFailed, TimedOut, Broken, Undecodable)
"""The exceptions with which a connection fails."""


def connection_error(error: Exception, endpoint: Endpoint, *, answered: bool = False) -> ModelError:
    """Return the error for a connection that failed; `answered`: a part of the answer had arrived."""
    where = f"{endpoint.label} at {endpoint.public_url}"
    code: ModelErrorCode
    if isinstance(error, ConnectFailed):
        code, message = "unreachable", f"cannot reach {where}: {plain(str(error))[:300]}"
    elif isinstance(error, TimedOut | TimeoutError):
        code, message = "timeout", f"{where} did not answer in time"
    elif isinstance(error, Undecodable):
        code, message = "protocol", f"{where} sent a compressed answer that cannot be read"
    elif isinstance(error, NotHttp) and not answered:
        code, message = "unreachable", f"{where} answered with something that is not HTTP"
    else:
        code, message = "incomplete" if answered else "unreachable", f"{where} closed the connection without an answer"
    return ModelError(redact(message, endpoint.key), code=code, next_step=next_step(code, endpoint, message))


def check(endpoint: Endpoint) -> None:
    """Refuse an address or a key that cannot be used, before anything is sent.

    :raises ModelError: it says which of them is wrong and where it is set, but never quotes the key.
    """
    if not endpoint.key.isascii() or not endpoint.key.isprintable() or " " in endpoint.key:
        message = f"the key in {endpoint.key_source} has characters that a key cannot have"
        raise ModelError(message, code="auth", next_step=f"set it again: {endpoint.key_source}")
    try:
        parts = urlsplit(endpoint.base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and endpoint.base_url.isprintable() and " " not in endpoint.base_url
    except ValueError:
        usable = False
    if not usable:
        raise ModelError(
            f"{endpoint.label}: the address in {endpoint.url_source} is not an http:// or https:// address",
            code="bad_request",
            next_step=f"correct the address in {endpoint.url_source}",
        )


def unsendable(endpoint: Endpoint) -> ModelError:
    """Return the error for a request with characters that are not allowed. It does not quote them: they may be a secret."""
    return ModelError(
        f"{endpoint.label}: the request cannot be sent: its address or one of its headers has characters it cannot have",
        code="bad_request",
        next_step=f"check models.providers.{endpoint.label}.headers and the address in {endpoint.url_source}",
    )
