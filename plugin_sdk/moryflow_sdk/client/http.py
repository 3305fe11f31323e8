"""As much of HTTP/1.1 as a client of one server needs: a request, its answer, and lines of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

LONGEST_LINE = 1 << 26
"""Characters of one line of a stream: an event is one line."""


class ServerUrl(NamedTuple):
    """Where a server is: a Unix socket, or host and port."""

    unix: str
    host: str
    port: int
    tls: bool

    @classmethod
    def of(cls, url: str) -> ServerUrl:
        """Return the place of ``http://HOST:PORT`` or ``unix:PATH``.

        :raises ValueError: `url` is neither.
        """
        if url.startswith("unix:"):
            return cls(url[5:], "localhost", 0, False)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server")
        return cls("", parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), parts.scheme == "https")

    @property
    def name(self) -> str:
        """What the header ``Host`` says."""
        if self.unix:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpReply:
    """An answer whose body is still to be read."""

    def __init__(
        self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.status, self.headers = status, headers
        self._reader, self._writer = reader, writer

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes.

        :raises OSError: the connection broke before the end.
        """
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await self._reader.readline()).split(b";")[0] or b"x", 16):
                    yield (await self._reader.readexactly(size + 2))[:-2]
            elif "content-length" in self.headers:
                yield await self._reader.readexactly(int(self.headers["content-length"]))
            else:
                while data := await self._reader.read(1 << 16):
                    yield data
        except (ValueError, asyncio.IncompleteReadError) as error:
            raise ConnectionError("the server closed the connection") from error

    async def body(self) -> bytes:
        """Return the whole body, and close."""
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
        """Let go of the connection."""
        self._writer.close()


async def request(
    place: ServerUrl, method: str, path: str, *, headers: Mapping[str, str], query: Mapping[str, Any], body: bytes | None
) -> HttpReply:
    """Send a request on a connection of its own and return the answer.

    :raises OSError: nobody answers there.
    """
    if place.unix:
        reader, writer = await asyncio.open_unix_connection(place.unix, limit=LONGEST_LINE)
    else:
        reader, writer = await asyncio.open_connection(place.host, place.port, ssl=place.tls or None, limit=LONGEST_LINE)
    try:
        said = urlencode([pair for name, value in query.items() for pair in _pairs(name, value)])
        lines = [f"{method} {path}{f'?{said}' if said else ''} HTTP/1.1", f"Host: {place.name}"]
        given = {**headers, "Connection": "close", **({"Content-Length": str(len(body))} if body is not None else {})}
        lines += [f"{name}: {value}" for name, value in given.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header has a line of its own")
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        found: dict[str, str] = {}
        while (line := (await reader.readline()).strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            found[name.strip().lower()] = value.strip()
        return HttpReply(status, found, reader, writer)
    except (IndexError, ValueError) as error:
        writer.close()
        raise ConnectionError(f"what answers there does not speak HTTP: {error}") from error
    except BaseException:
        writer.close()
        raise


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    if value is None:
        return []
    values: list[Any] = [*value] if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownVariableType]
    return [(name, str(item).lower() if isinstance(item, bool) else str(item)) for item in values]
