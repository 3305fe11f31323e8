"""Canonical target strings; files go to :meth:`Files.resolve`."""

from __future__ import annotations

from collections.abc import Callable

from moryflow_sdk import Target, TargetRequest
from moryflow_sdk.services import Files
from moryflow_sdk.targets import command_in

_PREFIX = {"query": "query", "mcp": "mcp", "task": "task", "tool": "tool"}


def resolved(request: TargetRequest, files: Callable[[], Files]) -> Target:
    """Return `request` as gates see it; what cannot be resolved carries an error and is denied."""
    if request.kind == "file":
        return files().resolve(request.value, domain=request.domain, as_stored=True)
    if request.kind == "url":
        return _url(request)
    if request.kind == "shell":
        return command_in(files().resolve(request.folder or ".", as_stored=True), request.value, request.domain)
    text = f"{_PREFIX[request.kind]}:{request.value}"
    return Target(domain=request.domain, kind=request.kind, text=text, given=request.value)


def _url(request: TargetRequest) -> Target:
    """Return a URL in the one form that is matched and fetched."""
    from urllib.parse import urlsplit, urlunsplit

    target = Target(domain=request.domain, kind="url", text=f"url:{request.value}", given=request.value)
    try:
        parts = urlsplit(request.value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return target.replace(error=f"not a URL: {error}")
    if parts.scheme.lower() not in ("http", "https") or not host:
        return target.replace(error="only http and https URLs with a host can be fetched")
    if parts.username is not None or parts.password is not None:
        return target.replace(error="a URL with a user name or password is refused")
    where = f"[{host}]" if ":" in host else host
    netloc = where if port is None else f"{where}:{port}"
    canonical = urlunsplit((parts.scheme.lower(), netloc, parts.path or "/", parts.query, ""))
    return target.replace(text=f"url:{canonical}")
