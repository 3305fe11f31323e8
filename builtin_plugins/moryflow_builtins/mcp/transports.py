"""How the helper process reaches a server: the SDK's clients, over a program, or over an address that is checked."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from moryflow_sdk.support.processes import CALL_MARK
from moryflow_sdk.support.urls import NotPublic, vetted

from .helper import servers_mark

# The largest event of an HTTP response, in bytes.
MAX_BYTES = 32 * 1024 * 1024
MAX_LAST_LINES = 20


class ServerGone(Exception):
    """The server cannot be reached any more; the message says why."""


@asynccontextmanager
async def connected_program(spec: Mapping[str, Any], last_lines: deque[str]) -> AsyncGenerator[Any]:
    """Start a server that is a program and yield the streams of its messages; the SDK ends it with its process group.

    :param last_lines: receives what the program prints on standard error.
    :raises OSError: the program cannot be started.
    """
    env = {**spec["env"], CALL_MARK: servers_mark(os.environ.get(CALL_MARK, "mcp"))}
    parameters = StdioServerParameters(command=spec["command"], args=list(spec["args"]), env=env, cwd=spec["cwd"])
    reading, writing = os.pipe()
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb"))

    async def listen() -> None:
        while chunk := await lines.read(65536):
            last_lines.extend(line[:200] for line in chunk.decode("utf-8", "replace").splitlines()[-MAX_LAST_LINES:])

    listening = asyncio.create_task(listen())
    try:
        with os.fdopen(writing, "w") as errors:
            async with stdio_client(parameters, errlog=errors) as streams:
                yield streams
    finally:
        listening.cancel()
        pipe.close()


class JudgedTransport(httpx2.AsyncBaseTransport):
    """Connects to exactly the address that was checked: any address for the configured server, a public one for all others.

    If the configured server is on this machine, the hosts that it names, such as its authorization server, may be too. All
    hosts that are neither on this machine nor the server itself must use https, because keys are sent to them.

    :ivar refused: whether the server required a login, or more access than the login gave.
    :ivar failure: the status of its newest answer to a message, if that was an error; the SDK does not report it.
    """

    def __init__(self, url: str) -> None:
        self._own, self._path = _place(httpx2.URL(url)), httpx2.URL(url).path
        self._local = False
        self.refused = False
        self.failure = ""
        self._connections: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        address = await self.check(request.url)
        inner = self._connections.setdefault(host, httpx2.AsyncHTTPTransport(trust_env=False))
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await inner.handle_async_request(sent)
        if (_place(request.url), request.url.path) == (self._own, self._path):
            more = response.status_code == 403 and "insufficient_scope" in response.headers.get("www-authenticate", "")
            self.refused = more or response.status_code == 401
            if request.method == "POST":
                said = f"HTTP {response.status_code} {httpx2.codes.get_reason_phrase(response.status_code)}".rstrip()
                self.failure = said if response.is_error else ""
        return response

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()

    async def check(self, url: httpx2.URL) -> str:
        """Return the address to connect to, also for an address that a browser will open.

        :raises httpx2.ConnectError: connections to it are refused.
        """
        if url.scheme not in ("http", "https") or url.userinfo:
            raise httpx2.ConnectError(
                f"connections to {str(url)[:200]} are refused: it is not an http or https address without a password"
            )
        place = _place(url)
        found = await asyncio.get_running_loop().getaddrinfo(place[1], place[2], type=socket.SOCK_STREAM)
        answers = [str(entry[4][0]) for entry in found]
        local = all(ip_address(answer).is_loopback for answer in answers)
        if place == self._own:
            self._local = local
            return answers[0]
        if self._local and local:
            return answers[0]
        if url.scheme != "https":
            raise httpx2.ConnectError(f"connections to {str(url)[:200]} are refused: it is not https")
        try:
            return str(vetted(answers)[0])
        except NotPublic as error:
            raise httpx2.ConnectError(f"connections to {str(url)[:200]} are refused: {error}") from error


def _place(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def host_of(url: str) -> str:
    """Return the part of the address that belongs to a server's identity: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
