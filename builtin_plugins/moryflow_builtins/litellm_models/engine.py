"""Import and call litellm without its side effects; its table of prices is read without the import.

Each workaround is for behaviour of litellm 1.106; see ``tests/builtins/litellm_models``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from moryflow_sdk import ModelError
from moryflow_sdk.chat_completions import Endpoint, from_object, from_status, retry_after
from moryflow_sdk.chat_completions.failures import next_step, plain
from moryflow_sdk.errors import ModelErrorCode, redact
from moryflow_sdk.support.threads import on_daemon_thread

_DURING_IMPORT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it downloads its price table: three attempts, seven seconds offline
    "LITELLM_MODE": "PRODUCTION",  # else it loads .env from the working directory
    "PYTHON_DOTENV_DISABLED": "1",  # the same, for versions that read this variable
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "litellm")
_lock = threading.Lock()
_future: Future[Any] | None = None


def start() -> Future[Any]:
    """Start to import litellm in a thread, only once; the future's result is the module."""
    global _future
    with _lock:
        if _future is None:
            _future = on_daemon_thread(_load, "moryflow-litellm")
        return _future


def _load() -> Any:
    with _environment(_DURING_IMPORT):
        litellm = importlib.import_module("litellm")
    _quiet(litellm)
    _follow_no_redirects()
    _correct_events()
    with suppress(Exception):  # a problem of the library will show in the first real call, with its message
        asyncio.run(_warm_up(litellm))
    return litellm


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables in a block and restore them afterwards, so that later programs do not inherit them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _quiet(litellm: Any) -> None:
    """Turn off litellm's help texts, which go to standard output with the answer, and its loggers, which repeat errors."""
    litellm.suppress_debug_info = True
    litellm.set_verbose = False
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL)
        logger.handlers.clear()
        logger.propagate = False


async def _warm_up(litellm: Any) -> None:
    """Load now what litellm would load during the first call, which would block the event loop for a third of a second."""
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "anthropic/x", "messages": messages, "mock_response": "x", "api_key": "x"}
    async for _ in await litellm.acompletion(**arguments(body, 5.0)):
        pass


def _follow_no_redirects() -> None:
    """Prevent that keys are sent to the target of a redirect.

    litellm's clients follow redirects, and httpx then removes only ``Authorization``, not ``x-api-key``. So the transport
    below all its asynchronous clients returns redirects without their target.
    """
    transport = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport").LiteLLMAiohttpTransport
    send = transport.handle_async_request

    async def send_here_only(self: Any, request: Any) -> Any:
        response = await send(self, request)
        if 300 <= response.status_code < 400 and "location" in response.headers:
            del response.headers["location"]
        return response

    transport.handle_async_request = send_here_only


_STATUS_OF_ERROR = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "timeout_error": 504,
}  # fmt: skip


def _correct_events() -> None:
    """Correct the events of Anthropic's protocol before litellm reads them.

    litellm fails on token counts that are not numbers and on tool calls without an id or a name, calls an answer that was cut
    at the context window complete, and treats every error inside a stream as a temporary one.
    """
    handler = importlib.import_module("litellm.llms.anthropic.chat.handler")
    parse = handler.ModelResponseIterator.chunk_parser

    def parse_corrected(self: Any, chunk: Any) -> Any:
        if isinstance(chunk, dict):
            event = cast("dict[str, Any]", chunk)
            error = _mapping(event.get("error"))
            status = _STATUS_OF_ERROR.get(str(error.get("type")))
            if event.get("type") == "error" and status:
                raise handler.AnthropicError(message=str(error.get("message") or event), status_code=status)
            _correct(event)
        return parse(self, chunk)

    handler.ModelResponseIterator.chunk_parser = parse_corrected


def _correct(event: dict[str, Any]) -> None:
    message, block, delta = (_mapping(event.get(key)) for key in ("message", "content_block", "delta"))
    for place in (event, message):
        if "usage" in place:
            place["usage"] = _counts(place["usage"])
    if block.get("type") == "tool_use":
        block.update({key: "" for key in ("id", "name") if not isinstance(block.get(key), str)})
    if delta.get("stop_reason") == "model_context_window_exceeded":
        delta["stop_reason"] = "max_tokens"


def _counts(usage: Any) -> dict[str, Any]:
    found = {key: _counts(value) if isinstance(value, dict) else value for key, value in _mapping(usage).items()}
    return {key: value for key, value in found.items() if not key.endswith("_tokens") or (type(value) is int and value >= 0)}


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def arguments(body: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Return the keyword arguments of ``acompletion`` for the body of a chat-completions request."""
    return {
        **body,
        "stream": True,
        "stream_options": {"include_usage": True},
        "timeout": timeout,  # for each read; the default is 6,000 s, and stream_timeout has no effect
        "max_retries": 0,  # the host itself retries, and shows that
        "num_retries": 0,
        "_skip_mcp_handler": True,  # else any call with tools needs the package mcp
    }


def lacks_thinking(messages: list[dict[str, Any]]) -> bool:
    """Whether the request goes on after calls of an answer that has none of Anthropic's signed thinking blocks."""
    if not messages or messages[-1].get("role") != "tool":
        return False
    asked = next((message for message in reversed(messages) if message.get("tool_calls")), {})
    return not asked.get("thinking_blocks")


_FILE = "model_prices_and_context_window_backup.json"


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return litellm's table of about 4,000 models; empty if this version of litellm does not have the file."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        try:
            found = json.loads((Path(folder) / _FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def entry(prefix: str, name: str) -> dict[str, Any]:
    """Return the table's entry for a model; empty if the table does not have it."""
    rows = table()
    row = rows.get(f"{prefix}/{name}") or rows.get(name) or {}
    return row if row.get("mode", "chat") in ("chat", "responses") else {}


def facts(prefix: str, name: str) -> dict[str, Any]:
    """Return the fields of a ``ModelInfo`` that the table has. As in the table, the context window counts input only."""
    row = entry(prefix, name)
    if not row:
        return {}
    found = {
        "context_window": _whole(row.get("max_input_tokens") or row.get("max_tokens")),
        "max_output": _whole(row.get("max_output_tokens")),
        "input_price": _per_million(row.get("input_cost_per_token")),
        "output_price": _per_million(row.get("output_cost_per_token")),
        "cached_price": _per_million(row.get("cache_read_input_token_cost")),
        "images": bool(row.get("supports_vision")),
        "tools": row.get("supports_function_calling", True) is not False,
    }
    return {field: value for field, value in found.items() if value is not None}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _per_million(value: Any) -> float | None:
    return round(value * 1_000_000, 6) if isinstance(value, int | float) else None


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
    """Return the ``ModelError`` for `error`. If it wraps the exception of a broken stream, that one is used instead."""
    inner = getattr(error, "original_exception", None)
    if isinstance(inner, Exception) and inner is not error:
        return from_exception(inner, endpoint)
    message = words(error)
    code: ModelErrorCode | None = next(
        (_BY_NAME[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _BY_NAME), None
    )
    if code is None and _REFUSED.search(message):
        code = "unreachable"
    if code is None and _is_unreadable(error):
        code, message = "protocol", f"the answer cannot be read: {message}"
    if code is None and _is_connection(error):
        code = "timeout" if _TIMED_OUT.search(message) else "unreachable"
    if code is not None:
        return _plain_error(code, message, endpoint)
    headers = _headers(error)
    body = json.dumps({"error": {"message": message, "code": _kind(error)}}).encode()
    numbers = (getattr(cause, "status_code", None) for cause in reversed(_causes(error)))
    status = next((number for number in numbers if isinstance(number, int)), None)  # litellm's own is often just 400 or 500
    if status is None:
        return _plain_error("protocol", message, endpoint)
    found = from_status(status, headers, body, endpoint)
    found.retry_after = found.retry_after if found.retry_after is not None else retry_after(headers)
    return found


def words(error: BaseException) -> str:
    """Return the service's own message: without litellm's chain of class names, and extracted from JSON."""
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
    """Return the service's own code for the error, which is not in the text (``content_policy_violation`` is a plain 400)."""
    body = getattr(error, "body", None)
    found = getattr(error, "code", None) or (cast("dict[str, Any]", body).get("code") if isinstance(body, dict) else None)
    return found if isinstance(found, str) else ""


def _is_connection(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"APIConnectionError", "ConnectError", "ClientError", "OSError"})


def _causes(error: BaseException) -> list[BaseException]:
    chain = [error]
    while (cause := chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _is_unreadable(error: BaseException) -> bool:
    """Whether litellm failed to read an answer; it reports that, too, as a failed connection."""
    causes = _causes(error)
    unreadable = any(isinstance(cause, LookupError | TypeError | AttributeError | ValueError) for cause in causes)
    return unreadable and not any(isinstance(cause, OSError) for cause in causes)


def _headers(error: BaseException) -> dict[str, str]:
    """Return the headers of the answer. litellm has them in its own attribute; those of ``response`` are empty."""
    found = getattr(error, "litellm_response_headers", None) or getattr(getattr(error, "response", None), "headers", None)
    try:
        return {str(name).lower(): str(value) for name, value in dict(found or {}).items()}
    except (TypeError, ValueError):
        return {}


def _plain_error(code: ModelErrorCode, message: str, endpoint: Endpoint) -> ModelError:
    hint = "install the package it names into Moryflow's environment" if code == "missing" else next_step(code, endpoint)
    return ModelError(redact(f"{endpoint.label}: {message}", endpoint.key), code=code, next_step=hint)
