"""The ASGI application: the routes of the table, the page, the stream of events, and the guard.

The guard is the outermost layer: it decides which requests the server accepts before any body is read.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from moryflow_sdk import MoryflowError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from moryflow import __version__

from . import host_operations, session_operations
from .events import Filter
from .operations import OPERATIONS, Call, Operation, document, operation
from .replies import SAFE_HEADERS, RequestError, problem, problem_of
from .service import Service
from .tokens import bearer

log = logging.getLogger(__name__)
PAGE = Path(__file__).parent / "page"
# Paths that need no token: the page, which holds no data, and the exchange of a one-time code for the token.
_FREE = ("/", "/code")
_WITHOUT_HOME = ("/code", "/health", "/metrics", "/openapi.json")
# How many streams of events there may be; fewer if a server may have few connections.
MAX_STREAMS = 500
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types moryflow"
)
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Imported because they add their operations to the table.
_MODULES = (host_operations, session_operations)

After = Annotated[int | None, "the last seq that was seen; 0 is the beginning; without it, from now on"]
Types = Annotated[str, "only these, separated by commas"]


@operation("GET", "/events", "a stream of events", stream=True, aliases=("/event", "/global/event"))
async def events(
    at: Call,
    session: Annotated[list[str] | None, "only of these and of their sub-agents; empty: what belongs to none"] = None,
    types: Types = "", after: After = None,
) -> Any:  # fmt: skip
    """Follow what happens in all sessions. Last-Event-ID resumes without loss."""
    store = at.service.host.store
    return _stream(at, Filter([name and (await store.session(name)).id for name in session or ()], _names(types)), after)


@operation("GET", "/sessions/{id}/events", "a stream of events", stream=True)
async def session_events(at: Call, id: str, types: Types = "", after: After = None) -> Any:
    """Follow what happens in a session and its sub-agents."""
    return _stream(at, Filter([(await at.service.host.store.session(id)).id], _names(types)), after)


@operation("GET", "/openapi.json", "this table")
async def openapi(at: Call, version: Annotated[str, "3.2, or 3.1 without itemSchema"] = "3.2") -> Any:
    """Describe the operations as OpenAPI."""
    if version not in ("3.1", "3.2"):
        raise RequestError(422, "invalid", f"there is no OpenAPI {version} here", "GET /openapi.json?version=3.1")
    return document(OPERATIONS, version)


def _names(types: str) -> list[str]:
    return [name.strip() for name in types.split(",") if name.strip()]


def _stream(at: Call, wanted: Filter, after: int | None) -> Response:
    service = at.service
    if service.stopping:
        raise RequestError(503, "stopping", "the server is being stopped", "try again when it is back")
    if service.events.readers >= service.most_streams:
        raise RequestError(429, "too_many", f"{service.most_streams} streams are open already", "close some")
    last = at.request.headers.get("last-event-id", "")
    place = int(last[:20]) if last.isascii() and last.isdigit() else after
    if place is not None and not 0 <= place < 1 << 62:
        raise RequestError(422, "invalid", "the place must be the number of an event", "leave it out")
    hello = {"v": 1, "version": __version__, "started": service.started}
    own = at.token_id
    return EventStream(service.events.frames(place, wanted, hello), lambda: not own or at.token_id == own)


class EventStream(Response):
    """Sends frames until they end, the client disconnects, or it is no longer `allowed` to read."""

    def __init__(self, frames: AsyncIterator[bytes], allowed: Callable[[], bool]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames, self._allowed = frames, allowed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait((sending, leaving))
            await self._frames.aclose()  # type: ignore[attr-defined]

    async def _send(self, send: Any) -> None:
        async for data in self._frames:
            if not self._allowed():  # the token was revoked meanwhile; a quiet stream has a frame every ten seconds
                break
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def application(service: Service, access: Access) -> Guard:
    paths: dict[str, dict[str, Operation]] = {}
    for one in OPERATIONS:
        for path in (one.path, *one.aliases):
            paths.setdefault(path, {})[one.method] = one
    page = [Route("/", _page_file, methods=["GET"]), Route("/page/{name}", _page_file, methods=["GET"])]
    routes = [Route(path, _endpoint(service, path, by_method), methods=[*by_method]) for path, by_method in paths.items()]
    handlers = {MoryflowError: _error_reply, HTTPException: _no_route, ClientDisconnect: _nobody_there, Exception: _crash_reply}
    users = service.owners.user_of if service.owners is not None else None
    return Guard(Starlette(routes=[*page, *routes], exception_handlers=handlers), access, users)


def _endpoint(service: Service, path: str, by_method: Mapping[str, Operation]) -> Any:
    async def answer(request: Request) -> Response:
        if path not in _WITHOUT_HOME and not service.has_home:
            said = f"the home of this server, {service.host.home}, was moved away or deleted"
            raise RequestError(503, "gone", said, "put it back, or start moryflow serve again")
        return await by_method["GET" if request.method == "HEAD" else request.method](service, request)

    return answer


async def _page_file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    file = PAGE / name
    if file not in PAGE.iterdir() or file.suffix not in _KINDS:  # to look for a name of a stranger's may fail
        return problem(404, "not_found", "the page has no such file", "GET /")
    headers = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
    return FileResponse(file, media_type=_KINDS[file.suffix], headers=headers)


async def _error_reply(_: Request, error: Exception) -> Response:
    assert isinstance(error, MoryflowError)
    return problem_of(error)


async def _no_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    if status == 405:
        refused = problem(405, "wrong_method", f"{request.url.path} has no {request.method}", "GET /openapi.json lists all")
        refused.headers.update(getattr(error, "headers", None) or {})  # RFC 9110 wants Allow
        return refused
    return problem(404, "not_found", f"there is nothing at {request.url.path}", "GET /openapi.json lists all")


async def _nobody_there(_: Request, error: Exception) -> Response:
    return problem(400, "disconnected", "the client left before its request was whole", "send it again")


async def _crash_reply(_: Request, error: Exception) -> Response:
    with suppress(Exception):
        log.error("a request failed", exc_info=error)
    return problem(500, "error", f"{type(error).__name__}: {error}", "report what the server printed")


# The most bytes of a request's body.
BODY_LIMIT = 10 << 20
_TOO_LARGE = 413, "too_large", f"a body has at most {BODY_LIMIT >> 20} MiB", "send less"


class Access(NamedTuple):
    """The conditions that a request must meet.

    :ivar hosts: the accepted values of ``Host``; `origins` are those of ``Origin``.
    :ivar token: the token that ``Authorization: Bearer`` must contain, unless it is one whose id `id_of` knows.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    token: str
    id_of: Callable[[str], str] = lambda _: ""

    def refusal(self, path: str, headers: list[tuple[bytes, bytes]]) -> tuple[int, str, str, str] | None:
        """Return status, code, sentence and next step if a request with these headers is refused, else ``None``."""
        found: dict[str, list[str]] = {}
        for name, value in headers:
            found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        if "transfer-encoding" in found and "content-length" in found:  # a proxy may take another one than we do
            return 400, "two_lengths", "a request has one length", "leave Content-Length or Transfer-Encoding out"
        if len(found.get("host", ())) != 1 or found["host"][0].lower() not in self.hosts:
            return 421, "wrong_host", "this server has another name", f"use {min(self.hosts)}"
        if any(origin not in self.origins for origin in found.get("origin", ())):
            return 403, "foreign_origin", "pages of other sites may not use this server", "open the link that serve printed"
        if any(site not in ("none", "same-origin") for site in found.get("sec-fetch-site", ())):
            return 403, "foreign_origin", "pages of other sites may not use this server", "type the address yourself"
        if path in _FREE or path.startswith("/page/"):
            return None
        given = found.get("authorization", ())
        token = bearer(given[0]) if len(given) == 1 else ""
        if not hmac.compare_digest(token.encode("latin-1"), self.token.encode()) and not self.id_of(token):
            return 401, "no_token", "a token is needed", "send Authorization: Bearer TOKEN; serve says where it is"
        lengths = found.get("content-length", ())
        if any(not _is_number(length) or int(length) > BODY_LIMIT for length in lengths):
            return _TOO_LARGE
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


class Guard:
    """Passes accepted requests to `app`, and answers all others itself."""

    def __init__(self, app: Any, access: Access, users: Callable[[str], Awaitable[str | None]] | None = None) -> None:
        self._app = app
        self._access = access
        self._users = users

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._access.refusal(scope["path"], list(scope["headers"]))
        if refusal is not None and refusal[0] == 401 and self._users is not None:
            refusal = await self._refusal_of_user(scope, refusal)
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if refusal is not None:
            refused = problem(*refusal)
            if refusal[0] == 400:  # where the next request begins is not known
                refused.headers["connection"] = "close"
            await refused(scope, receive, _with_headers(send))
            return
        await self._app(scope, _limited(receive), _with_headers(send))

    async def _refusal_of_user(self, scope: Any, refusal: tuple[int, str, str, str]) -> tuple[int, str, str, str] | None:
        """Accept the token of a user in place of the server's own; the scope then names the user."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"authorization"]
        token = given[0].partition(" ")[2].strip() if len(given) == 1 else ""
        assert self._users is not None
        try:
            user = await self._users(token) if token else None
        except MoryflowError as error:  # a gate that cannot look is closed
            return 503, "locked", error.message, error.next_step
        if user is None:
            return refusal
        scope["moryflow.user"] = user
        return self._access._replace(token=token).refusal(scope["path"], list(scope["headers"]))


def _limited(receive: Any) -> Any:
    taken = 0

    async def limited() -> Any:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > BODY_LIMIT:  # a body without Content-Length is measured as it comes
            raise RequestError(*_TOO_LARGE)
        return message

    return limited


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            message = {**message, "headers": [*message["headers"], *(pair for pair in SAFE_HEADERS if pair[0] not in there)]}
        await send(message)

    return sending
