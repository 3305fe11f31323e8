"""Answers: JSON, and errors as ``{code, message, next}`` with the status that fits."""

from __future__ import annotations

import json

from moryflow_sdk import ConfigError, ModelError, MoryflowError, PluginError, ToolError
from pydantic_core import to_json
from starlette.responses import Response

SAFE_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""On every answer that does not say otherwise."""

_STATUS = {
    "not_found": 404, "expired": 404, "gone": 503, "ambiguous": 400, "invalid": 422, "too_large": 413, "busy": 409,
    "stale": 409, "outdated": 409, "locked": 503, "no_space": 503, "io": 503, "readonly": 503, "newer": 503, "corrupt": 503,
    "foreign": 503, "no_locks": 503, "many_files": 503, "denied": 403,
}  # fmt: skip
"""The status of an error by its code; the rest of what a caller got wrong is 422, of what we did 500."""


class RequestError(MoryflowError):
    """What a client sent cannot be done.

    :ivar status: of the answer.
    """

    def __init__(self, status: int, code: str, message: str, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.status = status
        self.code = code


def json_reply(document: object, status: int = 200) -> Response:
    """Return `document` as JSON; half characters stay, as escapes."""
    return Response(encoded(document), status, media_type="application/json")


def encoded(document: object) -> bytes:
    """Return `document` as JSON, whatever it holds."""
    try:
        return to_json(document, fallback=str)
    except ValueError:  # text that UTF-8 cannot carry, a file name for example
        return json.dumps(document, default=str).encode()


def problem(status: int, code: str, message: str, next_step: str = "", where: str = "") -> Response:
    """Return an error."""
    found = {"code": code, "message": message, "next": next_step, **({"where": where} if where else {})}
    return json_reply(found, status)


def problem_of(error: MoryflowError) -> Response:
    """Return one of our errors with its status."""
    return problem(status_of(error), error.code, error.message, error.next_step or "moryflow doctor", error.where)


def status_of(error: MoryflowError) -> int:
    """Return the HTTP status of an error."""
    match error:
        case RequestError():
            return error.status
        case ConfigError() | PluginError() | ToolError():
            return _STATUS.get(error.code, 422)
        case ModelError():
            return 503
        case _:
            return _STATUS.get(error.code, 500)
