"""litellm's exceptions as ours."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from moryflow_sdk import ModelError
from moryflow_sdk.chat_completions import Endpoint, from_object, from_status, retry_after
from moryflow_sdk.chat_completions.failures import next_step, plain
from moryflow_sdk.errors import ModelErrorCode
from moryflow_sdk.redact import redact

_BY_NAME: dict[str, ModelErrorCode] = {
    "ContextWindowExceededError": "context",
    "ContentPolicyViolationError": "content_filter",
    "Timeout": "timeout",
    "APITimeoutError": "timeout",
    "TimeoutError": "timeout",
    "UnsupportedParamsError": "bad_request",
    "ModuleNotFoundError": "missing",
    "NoCredentialsError": "auth",
    "DefaultCredentialsError": "auth",
}
_PREFIX = re.compile(r"^(\s*(litellm\.)?\w*(Error|Exception|Timeout)\w*( -|:)\s*)+")
_REFUSED = re.compile(
    r"(?i)cannot connect|connection refused|connect call failed|name or service not known|nodename nor servname"
)
_TIMED_OUT = re.compile(r"(?i)\btime(d)?[ -]?out\b")


def from_exception(error: BaseException, endpoint: Endpoint) -> ModelError:
    """Return what `error` means. The exception that a broken stream is wrapped in says less than the one inside."""
    inner = getattr(error, "original_exception", None)
    if isinstance(inner, Exception) and inner is not error:
        return from_exception(inner, endpoint)
    message = words(error)
    code: ModelErrorCode | None = next(
        (_BY_NAME[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _BY_NAME), None
    )
    if code is None and _REFUSED.search(message):
        code = "unreachable"
    if code is None and _is_connection(error):
        code = "timeout" if _TIMED_OUT.search(message) else "unreachable"
    if code is not None:
        return _plain_error(code, message, endpoint)
    headers = _headers(error)
    body = json.dumps({"error": {"message": message, "code": _kind(error)}}).encode()
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return _plain_error("protocol", message, endpoint)
    found = from_status(status, headers, body, endpoint)
    found.retry_after = found.retry_after if found.retry_after is not None else retry_after(headers)
    return found


def words(error: BaseException) -> str:
    """Return the provider's own words: without litellm's chain of class names, and out of the JSON they came in."""
    text = str(error)
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        found = from_object(_json(text[start : end + 1]), Endpoint("", "")).message.partition(": ")[2]
        if found and found != "the provider reported an error":
            return found
    text = re.split(r" Original exception:|\. Handle with `litellm|\n", text)[0]
    return plain(_PREFIX.sub("", text))[:500] or type(error).__name__


def _json(text: str) -> Any:
    for candidate in (text, text.replace('\\"', '"').replace("\\\\", "\\")):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return None


def _kind(error: BaseException) -> str:
    """Return the provider's own word for what is wrong. It is not in the text (``content_policy_violation`` is a plain 400)."""
    body = getattr(error, "body", None)
    found = getattr(error, "code", None) or (cast("dict[str, Any]", body).get("code") if isinstance(body, dict) else None)
    return found if isinstance(found, str) else ""


def _is_connection(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"APIConnectionError", "ConnectError", "ClientError", "OSError"})


def _headers(error: BaseException) -> dict[str, str]:
    """``retry-after`` is in an attribute of litellm's own; the headers of ``response`` are empty."""
    found = getattr(error, "litellm_response_headers", None) or getattr(getattr(error, "response", None), "headers", None)
    try:
        return {str(name).lower(): str(value) for name, value in dict(found or {}).items()}
    except (TypeError, ValueError):
        return {}


def _plain_error(code: ModelErrorCode, message: str, endpoint: Endpoint) -> ModelError:
    hint = "install the package it names into Moryflow's environment" if code == "missing" else next_step(code, endpoint)
    return ModelError(redact(f"{endpoint.label}: {message}", endpoint.key), code=code, next_step=hint)
