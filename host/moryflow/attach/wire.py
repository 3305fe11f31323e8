"""The HTTP client of an attached command line: one request for each connection, and a stream of events.

It does not use :mod:`moryflow_sdk.client`, which is for programs with an event loop: asyncio and the SDK's types would take
four times as long to import as everything here.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 40.0
"""A stream without any data for so long, not even a heartbeat, is broken."""
MARKERS = ("session.compacted", "approval.requested")
"""Names under which some events are sent a second time, for clients of other hosts; they are skipped here."""


class ServerRefusal(Exception):
    """The server refused a request, or cannot be used.

    :ivar status: the HTTP status; 0 if no server answered.
    """

    def __init__(self, status: int, code: str, message: str, where: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where, self.next_step = status, code, message, where, next_step


class NoServer(ServerRefusal):
    """No server answers."""

    def __init__(self, where: str, said: str = "no Moryflow server answers") -> None:
        super().__init__(0, "config", said, where, "moryflow serve, or leave out --attach")


class RunningServer:
    """A running server, with the token of its home folder."""

    def __init__(self, home: str, url: str, token: str) -> None:
        self.home, self.url, self._token = home, url, token
        self.language, self.process, self.traces = "en", 0, False

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, key: str = "", wait: bool = False) -> Any:
        """Send a request and return the JSON of the answer.

        :param key: an idempotency key: a prompt that is sent again with it does not begin a second turn.
        :param wait: wait for the answer without a time limit.
        :raises ServerRefusal: the server refuses.
        :raises OSError: the server does not answer.
        """
        status, head, stream = self._request(method, path, body, {"Idempotency-Key": key} if key else {}, wait=wait)
        with stream:
            found = self._json(status, _body(head, stream))
        if status >= 400:
            raise self._refused(status, found if isinstance(found, dict) else {})
        return found

    def read(self, path: str) -> bytes:
        """Return the body at a path that is not a JSON document; raises as :meth:`ask` does."""
        status, head, stream = self._request("GET", path, None, {}, wait=False, version="1.1")
        with stream:
            data = _body(head, stream)
        if status >= 400:
            raise self._refused(status, self._json(status, data))
        return data

    def _json(self, status: int, data: bytes) -> Any:
        try:
            return json.loads(data or b"null")
        except ValueError:
            raise ServerRefusal(
                status, "config", "what answers there is not a Moryflow server", self.url, "moryflow serve"
            ) from None

    def _refused(self, status: int, said: Mapping[str, Any]) -> ServerRefusal:
        if status == 401:
            message = f"the server does not accept the token of this home, {self.home}: it is the server of another home"
            return ServerRefusal(status, "config", message, self.url, "moryflow serve, or set MORYFLOW_HOME")
        code, message, next_step = (str(said.get(name, "")) for name in ("code", "message", "next"))
        return ServerRefusal(status, code or "error", message or f"HTTP {status}", str(said.get("where", "")), next_step)

    def events(
        self, session: str, after: int | None, *, of_server: bool = False, ended: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int | None, dict[str, Any]]]:
        """Yield the id and the document of each event of a session and its sub-agents, until the connection ends.

        :param after: the id of the last known event; ``None`` begins with the next one.
        :param of_server: also yield events that belong to no session, such as a reload.
        :param ended: called at each line from the server, at the latest at a heartbeat; ends the stream if it returns true.
        """
        place = {} if after is None else {"Last-Event-ID": str(after)}
        path = f"/events?session={session}&session=" if of_server else f"/sessions/{session}/events"
        status, head, stream = self._request("GET", path, None, place, wait=False, silence=SILENCE_SECONDS)
        with stream:
            if status >= 400:
                raise self._refused(status, self._json(status, _body(head, stream)))
            number: int | None = None
            for line in stream:
                if ended() or not line.endswith(b"\n"):  # the connection broke within the line
                    return
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: "):
                    document = json.loads(line[6:])
                    if document["type"] not in MARKERS:
                        yield number, document
                    number = None

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        *,
        wait: bool,
        silence: float = 120.0,
        version: str = "1.0",
    ) -> tuple[int, Mapping[str, str], BinaryIO]:
        """Send a request; return the status, the headers and a stream of the body.

        :param version: the HTTP version. With 1.0 a body of unknown length ends with the connection; with 1.1 it is chunked,
            so that a cut is noticed.
        """
        data = b"" if body is None else json.dumps(body).encode()
        host = "localhost" if self.url.startswith("unix:") else self.url.partition("//")[2]
        given = {
            "Host": host, "Authorization": f"Bearer {self._token}", "Content-Type": "application/json",
            "Content-Length": str(len(data)), "Connection": "close", **headers,
        }  # fmt: skip
        lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        with self._connected() as connection:
            connection.settimeout(None if wait else silence)
            connection.sendall("\r\n".join(lines).encode() + data)
            stream = connection.makefile("rb")
        try:
            return *_head(stream), stream
        except (IndexError, ValueError):
            stream.close()
            raise ServerRefusal(0, "config", "what answers there does not speak HTTP", self.url, "moryflow serve") from None
        except BaseException:
            stream.close()
            raise

    def _connected(self) -> socket.socket:
        host, _, port = self.url.partition("://")[2].rpartition(":")
        if unix := self.url.startswith("unix:"):
            connection = socket.socket(socket.AF_UNIX)
        else:
            connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS)
        try:
            if unix:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(self.url[5:])
            self._refuse_stranger(connection)
        except BaseException:
            connection.close()
            raise
        if self.url.startswith("https:"):
            import ssl

            return ssl.create_default_context().wrap_socket(connection, server_hostname=host.strip("[]"))
        return connection

    def _refuse_stranger(self, connection: socket.socket) -> None:
        """Refuse to send the token to another user's program, which may listen at the address of a server that has ended.

        :raises NoServer: the program that listens there belongs to another user.
        """
        user = _listening_user(connection)
        if user is not None and user not in (0, os.geteuid(), _owner(self.home)):
            raise NoServer(self.url, f"what listens there belongs to another user (uid {user}) and is not given the token")


def _listening_user(connection: socket.socket) -> int | None:
    """Return the user id of the program that `connection` leads to, or ``None`` if the system does not tell."""
    if connection.family == socket.AF_UNIX:
        option = getattr(socket, "SO_PEERCRED", None)
        return None if option is None else struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, 12))[1]
    address, port = connection.getpeername()[:2]
    packed = socket.inet_pton(connection.family, address)
    place = "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
    wide = (f"0000000000000000FFFF0000{place}", "0" * 32)  # the address itself as IPv6, and "any address"
    names = {f"{name}:{port:04X}".encode() for name in (place, "0" * 8, *wide)}
    for table in ("tcp", "tcp6") if connection.family == socket.AF_INET else ("tcp6",):
        try:
            with open(f"/proc/net/{table}", "rb", 256) as rows:  # noqa: PTH123
                rows.readline()
                for row in rows:  # listening sockets come first; the small buffer avoids reading the many others
                    _, local, _, state, _, _, _, user, *_ = row.split()
                    if state != b"0A":
                        break
                    if local in names:
                        return int(user)
        except OSError:
            continue
    return None


def _owner(home: str) -> int | None:
    try:
        return os.stat(home).st_uid  # noqa: PTH116
    except OSError:
        return None


def _head(stream: BinaryIO) -> tuple[int, Mapping[str, str]]:
    first = stream.readline()
    if not first:
        raise ConnectionResetError("the server closed the connection")
    headers: dict[str, str] = {}
    while (line := stream.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if not line:
        raise ConnectionResetError(_CUT)
    return int(first.split()[1]), headers


def _body(head: Mapping[str, str], stream: BinaryIO) -> bytes:
    """Return the whole body.

    :raises ConnectionResetError: the connection broke within the body.
    """
    if head.get("transfer-encoding") == "chunked":
        return b"".join(_pieces(stream))
    data = stream.read()
    if len(data) < int(head.get("content-length", 0)):
        raise ConnectionResetError(_CUT)
    return data


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while True:
        line = stream.readline()
        size = int(line, 16) if line.endswith(b"\n") else -1
        data = stream.read(size + 2) if size >= 0 else b""
        if len(data) != size + 2:
            raise ConnectionResetError(_CUT)
        if not size:
            return
        yield data[:-2]


_CUT = "the connection broke"


def find(home: str, url: str = "") -> RunningServer:
    """Return the server of `home`, or the one at `url`; it must belong to this home, this version and this machine.

    :raises ServerRefusal: it does not, or no server runs.
    """
    from moryflow import __version__

    try:
        token = _text(f"{home}/server/token").strip()
        url = url or _address(home)
    except (OSError, ValueError, KeyError, TypeError):
        raise NoServer(home) from None
    if not url.startswith("unix:") and not _is_near(url):
        said = "only a server of this machine can be attached to: the turn works in a folder of yours, with your environment"
        raise ServerRefusal(0, "config", said, url, "http://127.0.0.1:PORT, unix:PATH, or --attach alone")
    server = RunningServer(home, url.rstrip("/"), token)
    try:
        about = server.ask("GET", "/health")
    except OSError as error:
        raise NoServer(url, f"no Moryflow server answers: {error.strerror or error}") from None
    server.language, server.process = str(about.get("language") or "en"), int(about.get("pid") or 0)
    server.traces = bool(about.get("trace"))
    version, other = str(about.get("version")), str(about.get("home"))
    if version != __version__:
        said = f"the server is version {version}, and this is {__version__}"
        raise ServerRefusal(0, "config", said, url, "stop the server and start it again: moryflow serve")
    if other != home and os.path.realpath(other) != os.path.realpath(home):
        raise ServerRefusal(
            0, "config", f"the server belongs to another home, {other}", url, "moryflow serve, or set MORYFLOW_HOME"
        )
    return server


def _address(home: str) -> str:
    """Return the URL of the server of `home`.

    :raises OSError: no server has started, or its process is gone, so that another program may listen there now.
    """
    found = json.loads(_text(f"{home}/server/running.json"))
    os.kill(int(found["pid"]), 0)
    return str(found["url"])


def _is_near(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    return scheme in ("http", "https") and host in ("127.0.0.1", "localhost", "[::1]") and port.isdecimal()


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return file.read()
