"""Responses: JSON documents, and errors as ``{code, message, next}`` with a fitting status."""

from __future__ import annotations

import json

from moryflow_sdk import ConfigError, ModelError, MoryflowError, PluginError, ToolError
from pydantic_core import to_json
from starlette.responses import Response

# Headers of every response that does not set them itself.
SAFE_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-dns-prefetch-control", b"off"),  # the name of a host that a model links to may hold what it has read
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

# The status of an error by its code; for other codes, an error of the caller is 422 and one of ours 500.
_STATUS = {
    "not_found": 404, "expired": 404, "gone": 503, "ambiguous": 400, "invalid": 422, "too_large": 413, "busy": 409,
    "stale": 409, "outdated": 409, "locked": 503, "no_space": 503, "io": 503, "readonly": 503, "newer": 503, "corrupt": 503,
    "foreign": 503, "no_locks": 503, "many_files": 503, "denied": 403,
}  # fmt: skip


class RequestError(MoryflowError):
    """A client's request that cannot be carried out.

    :ivar status: the HTTP status of the response.
    """

    def __init__(self, status: int, code: str, message: str, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.status = status
        self.code = code


def json_reply(document: object, status: int = 200) -> Response:
    """Return `document` as a JSON response; lone surrogates are kept as escapes."""
    return Response(encoded(document), status, media_type="application/json")


def encoded(document: object) -> bytes:
    """Return `document` as JSON bytes; it may contain any text and any object."""
    try:
        return to_json(document, fallback=str)
    except ValueError:  # text that UTF-8 cannot encode, in a file name for example
        return json.dumps(document, default=str).encode()


def problem(status: int, code: str, message: str, next_step: str = "", where: str = "") -> Response:
    return json_reply(error_document(code, message, next_step, where), status)


def error_document(code: str, message: str, next_step: str = "", where: str = "") -> dict[str, str]:
    return {"code": code, "message": message, "next": next_step, **({"where": where} if where else {})}


def problem_of(error: MoryflowError) -> Response:
    return problem(status_of(error), error.code, error.message, error.next_step or "moryflow doctor", error.where)


def status_of(error: MoryflowError) -> int:
    match error:
        case RequestError():
            return error.status
        case ConfigError() | PluginError() | ToolError():
            return _STATUS.get(error.code, 422)
        case ModelError():
            return 503
        case _:
            return _STATUS.get(error.code, 500)
