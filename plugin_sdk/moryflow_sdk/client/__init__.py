"""A client of ``moryflow serve``: sessions, turns and events of a running server, from another program.

It speaks HTTP/1.1 over TCP or a Unix socket, with the connections of :mod:`moryflow_sdk.chat_completions`; at the end of this
file is what it needs of them: a request, its answer, and a stream of events.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from moryflow_sdk.chat_completions.failures import Broken, ConnectFailed
from moryflow_sdk.errors import ConfigError, MoryflowError
from moryflow_sdk.events import Event

from .operations import Operations

if TYPE_CHECKING:
    from moryflow_sdk.chat_completions.connection import Connection

__all__ = ["Client", "ClientError", "ClientSession", "connect"]

API = 1
PAUSES = (0.1, 0.3, 1.0, 3.0, 5.0)
"""Seconds between attempts to reach a server again."""


class ClientError(MoryflowError):
    """The server refused a request.

    :ivar status: the HTTP status; `code` is the server's code for the error.
    """

    def __init__(self, status: int, said: Mapping[str, Any]) -> None:
        super().__init__(
            str(said.get("message", status)), where=str(said.get("where", "")), next_step=str(said.get("next", ""))
        )
        self.status = status
        self.code = str(said.get("code", "error"))


async def connect(url: str | None = None, token: str | None = None, *, home: Path | str | None = None) -> Client:
    """Return a client of the server at `url`, by default of the server that runs for this home.

    :param url: ``http://HOST:PORT`` or ``unix:PATH``.
    :param token: the server's token; by default it is read from ``server/token`` below the home.
    :param home: Moryflow's own folder, by default ``MORYFLOW_HOME`` or ``~/.moryflow``.
    :raises ConfigError: no server runs, or the server belongs to another home or has another version.
    """
    folder = Path(home or os.environ.get("MORYFLOW_HOME") or Path.home() / ".moryflow").expanduser().absolute()
    own = url is None
    try:
        token = token or (folder / "server" / "token").read_text(encoding="ascii").strip()
        url = url or _address(folder)
        client = Client(ServerUrl.of(url), token, folder if own else None)
        about = await client.health()
    except ValueError as error:
        raise ConfigError(str(error), where=url or str(folder), next_step="moryflow serve") from error
    except (OSError, KeyError) as error:
        where = url or str(folder)
        raise ConfigError("no Moryflow server answers", where=where, next_step="moryflow serve") from error
    if about.get("api") != API:
        message = f"the server speaks version {about.get('api')} of the API, and this client {API}"
        raise ConfigError(message, where=url, next_step="stop it and start it again: moryflow serve")
    if own and Path(about["home"]) != folder:
        raise ConfigError(f"the server belongs to another home, {about['home']}", where=url, next_step="moryflow serve")
    return client


def _address(home: Path) -> str:
    """Return where the server of `home` listens."""
    found = json.loads((home / "server" / "running.json").read_text(encoding="utf-8"))
    with (home / "server" / "lock").open("rb") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        raise ConnectionRefusedError("the server that listened there has ended")
    os.kill(int(found["pid"]), 0)  # a new server may hold the lock already, and the address be the old one's
    return str(found["url"])


class Client(Operations):
    """A client of a server, with a method for each operation of the server, and for its events.

    :param token: sent as ``Authorization: Bearer``.
    :param home: the home whose server this is: when it is started anew at another address, it is found there.
    """

    def __init__(self, place: ServerUrl, token: str, home: Path | None = None) -> None:
        self._place, self._token, self._home = place, token, home

    @property
    def url(self) -> str:
        """Where the server was last found."""
        return f"unix:{self._place.unix}" if self._place.unix else f"http{'s' * self._place.tls}://{self._place.name}"

    async def _call(
        self, method: str, path: str, given: Mapping[str, Any], *, raw: bool = False, headers: Mapping[str, str] | None = None
    ) -> Any:
        in_query = method in ("GET", "DELETE")
        body = None if in_query else json.dumps(given).encode()
        reply = await self._ask(method, path, given if in_query else {}, body, headers or {})
        data = await reply.body()
        return data.decode("utf-8", "surrogateescape") if raw else json.loads(data or b"null")

    async def _ask(
        self, method: str, path: str, query: Mapping[str, Any], body: bytes | None, headers: Mapping[str, str]
    ) -> HttpReply:
        given = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", **headers}
        try:
            reply = await request(self._place, method, path, headers=given, query=query, body=body)
        except (ConnectionRefusedError, FileNotFoundError):  # nothing was sent
            if self._home is None:
                raise
            self._place = ServerUrl.of(_address(self._home))
            reply = await request(self._place, method, path, headers=given, query=query, body=body)
        if reply.status >= 400:
            data = await reply.body()
            try:
                document = json.loads(data)
            except ValueError:
                document = {"message": data.decode("utf-8", "replace")[:200]}
            raise ClientError(reply.status, document)
        return reply

    async def import_session(self, lines: str) -> Any:
        """Import a session from JSON Lines, as :meth:`export` returned them."""
        headers = {"Content-Type": "application/jsonl"}
        return json.loads(await (await self._ask("POST", "/import", {}, lines.encode(), headers)).body())

    def session_of(self, id: str) -> ClientSession:
        """Return a session by its id, without asking the server whether the session exists."""
        return ClientSession(self, id)

    async def follow(
        self,
        after: int | None = None,
        *,
        sessions: Sequence[str] = (),
        types: Sequence[str] = (),
        tries: int | None = None,
    ) -> AsyncGenerator[Event]:
        """Yield events for ever; after a broken connection it reconnects and continues after the last event.

        The first event is ``open``. A ``reset`` says that events were missed: ask for the state of the sessions again.

        :param after: the `seq` of the last event that you know; with ``None``, only new events come.
        :param tries: how often it tries to reach a server that does not answer; ``None``: without end.
        :raises ClientError: the server refuses the stream.
        :raises OSError: the server did not answer so often.
        """
        failures = 0
        query = {"session": list(sessions), "types": ",".join(types) or None}
        while True:
            try:
                place = {} if after is None else {"Last-Event-ID": str(after)}
                reply = await self._ask("GET", "/events", query, None, place)
                try:
                    async for number, document in reply.events():
                        failures, after = 0, after if number is None else number
                        yield _event(document)
                finally:
                    reply.close()
            except ClientError as error:
                if error.status != 503:
                    raise
            except OSError:  # the server is away for a moment; it keeps the events
                if tries is not None and failures >= tries:
                    raise
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            failures += 1


class ClientSession:
    """One session of a server."""

    def __init__(self, client: Client, id: str) -> None:
        self._client, self.id = client, id

    async def stream(self, text: str, **options: Any) -> AsyncGenerator[Event]:
        """Run one turn and yield its events and those of its sub-agents, until the session is idle again.

        Closing the generator early stops the turn. After a broken connection it continues without a gap.

        :param options: further arguments of :meth:`Client.prompt`: ``files``, ``images``, ``queue``, ``on_ask`` and others.
        :raises ClientError: the session is busy, or does not exist.
        """
        seen = int((await self._client.session(self.id, limit=1))["seq"])
        events = self._client.follow(seen, sessions=[self.id])
        turn, ended, asks = "", False, options.get("on_ask", "prompt") == "prompt"
        try:
            async for event in events:
                if event.type == "open" and not turn:
                    begun = await self._client.prompt(self.id, text, key=secrets.token_hex(12), **options)
                    if begun["turn"] is None:  # a slash command, which reaches no model
                        return
                    turn = str(begun["turn"])
                elif event.type not in ("open", "reset"):
                    yield event
                if event.session == self.id and event.turn == turn:
                    # A worker does not wait for an answer: it ends here, and goes on with the same turn when there is one.
                    paused = asks and event.data.get("end_reason") == "approval_required"
                    ended = ended or (event.type == "turn.finish" and not paused)
                    if ended and event.type == "session.status":
                        return
        finally:
            await events.aclose()
            if turn and not ended:
                with suppress(MoryflowError, OSError):
                    await self._client.cancel(self.id)

    async def prompt(self, text: str, **options: Any) -> str:
        """Run one turn and return the answer's text."""
        async for _ in self.stream(text, **options):
            pass
        nodes = (await self._client.session(self.id, limit=1))["nodes"]
        return next((str(node["payload"].get("text") or "") for node in reversed(nodes) if node["kind"] == "assistant"), "")


def _event(document: dict[str, Any]) -> Event:
    names = ("v", "type", "seq", "ts", "session", "parent", "agent", "turn", "step")
    head: dict[str, Any] = {name: document.pop(name) for name in names if name in document}
    given: dict[str, Any] = {"session": "", **head, "data": document}
    return Event(**given)


class ServerUrl(NamedTuple):
    """The address of a server: a Unix socket, or host and port."""

    unix: str
    host: str
    port: int
    tls: bool

    @classmethod
    def of(cls, url: str) -> ServerUrl:
        """Return the address in ``http://HOST:PORT`` or ``unix:PATH``.

        :raises ValueError: `url` is neither.
        """
        if url.startswith("unix:"):
            return cls(url[5:], "localhost", 0, False)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address of a server")
        return cls("", parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), parts.scheme == "https")

    @property
    def name(self) -> str:
        """The value of the header ``Host``."""
        if self.unix:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpReply:
    """An answer whose body has not been read yet."""

    def __init__(self, status: int, connection: Connection) -> None:
        self.status = status
        self._connection = connection

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives.

        :raises OSError: the connection broke before the end.
        """
        try:
            async with aclosing(self._connection.pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        except Broken as error:
            raise ConnectionError("the server closed the connection") from error

    async def body(self) -> bytes:
        """Return the whole body and close the connection."""
        try:
            return b"".join([piece async for piece in self.pieces()])
        finally:
            self.close()

    async def events(self) -> AsyncGenerator[tuple[int | None, dict[str, Any]]]:
        """Yield the events of a stream, each with its id.

        :raises OSError: the connection broke.
        """
        rest = b""
        async for piece in self.pieces():
            *frames, rest = (rest + piece).split(b"\n\n")
            for frame in frames:
                fields = dict(
                    line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line and not line.startswith(b":")
                )
                if b"data" in fields:
                    yield int(fields[b"id"]) if b"id" in fields else None, json.loads(fields[b"data"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def request(
    place: ServerUrl, method: str, path: str, *, headers: Mapping[str, str], query: Mapping[str, Any], body: bytes | None
) -> HttpReply:
    """Send a request on a new connection and return the answer.

    :raises OSError: no server answers at the address.
    """
    from moryflow_sdk.chat_completions.connection import Connection, ServerAddress
    from moryflow_sdk.chat_completions.transport import tls_context

    query_text = urlencode([pair for name, value in query.items() for pair in _pairs(name, value)])
    length = {} if body is None else {"Content-Length": str(len(body))}
    given = {"Host": place.name, **headers, "Connection": "close", **length}
    address = ServerAddress(place.host, place.port, tls_context() if place.tls else None, place.unix)
    try:
        connection = await Connection.open(address, None)
    except ConnectFailed as error:
        raise ConnectionRefusedError(str(error)) from error
    try:
        target = f"{path}{f'?{query_text}' if query_text else ''}".encode()
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
        head = await connection.request(method.encode(), target, pairs, body)
        return HttpReply(head.status_code, connection)
    except Broken as error:
        connection.close()
        raise ConnectionError(f"what answers there does not speak HTTP: {error}") from error
    except BaseException:
        connection.close()
        raise


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    if value is None:
        return []
    values: list[Any] = [*value] if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownVariableType]
    return [(name, str(item).lower() if isinstance(item, bool) else str(item)) for item in values]
