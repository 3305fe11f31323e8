"""Who may speak to the server: one ASGI layer, outermost, that answers before any body is read."""

from __future__ import annotations

import hmac
from typing import Any, NamedTuple

from .replies import SAFE_HEADERS, problem

BODY_LIMIT = 10 << 20
"""Bytes of a request's body."""


class Access(NamedTuple):
    """What a request must show.

    :ivar hosts: the values of ``Host`` that are ours; `origins` those of ``Origin``.
    :ivar token: what ``Authorization: Bearer`` must carry.
    :ivar free: paths without a token: the files of the page, which hold no data, and the exchange of a one-time code.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    token: str
    free: tuple[str, ...]

    def refusal(self, path: str, headers: list[tuple[bytes, bytes]]) -> tuple[int, str, str, str] | None:
        """Return status, code, sentence and next step where a request with these headers is refused."""
        found: dict[str, list[str]] = {}
        for name, value in headers:
            found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        if len(found.get("host", ())) != 1 or found["host"][0].lower() not in self.hosts:
            return 421, "wrong_host", "this server has another name", f"use {min(self.hosts)}"
        if any(origin not in self.origins for origin in found.get("origin", ())):
            return 403, "foreign_origin", "pages of other sites may not use this server", "open the link that serve printed"
        if any(site not in ("none", "same-origin") for site in found.get("sec-fetch-site", ())):
            return 403, "foreign_origin", "pages of other sites may not use this server", "type the address yourself"
        if path in self.free or path.startswith("/page/"):
            return None
        given = found.get("authorization", ())
        kind, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode("latin-1"), self.token.encode()):
            return 401, "no_token", "a token is needed", "send Authorization: Bearer TOKEN; serve says where it is"
        lengths = found.get("content-length", ())
        if any(not _is_number(length) or int(length) > BODY_LIMIT for length in lengths):
            return 413, "too_large", f"a body has at most {BODY_LIMIT >> 20} MiB", "send less"
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


class TooLarge(Exception):
    """A body without a length turned out to be longer than it may be."""


class Guard:
    """Lets through what may speak to `app`, and answers the rest."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._access.refusal(scope["path"], list(scope["headers"]))
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if refusal is not None:
            status, code, message, next_step = refusal
            await problem(status, code, message, next_step)(scope, receive, _with_headers(send))
            return
        await self._app(scope, _limited(receive), _with_headers(send))


def _limited(receive: Any) -> Any:
    taken = 0

    async def limited() -> Any:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > BODY_LIMIT:
            raise TooLarge
        return message

    return limited


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            message = {**message, "headers": [*message["headers"], *(pair for pair in SAFE_HEADERS if pair[0] not in there)]}
        await send(message)

    return sending
