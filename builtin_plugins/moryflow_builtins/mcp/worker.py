"""The helper process with the MCP SDK and all servers: if a server crashes, floods or leaks, calls fail but the host lives on.

The protocol is lines of JSON. A request is ``{"id", "do", "server", …}``; the reply is ``{"id", "result"}`` or ``{"id",
"error"}``, with any number of ``{"id", "progress"}`` before, and ``{"id", "login"}`` with an address to open.
``{"cancel": id}`` cancels a request. A server is connected on first use, and what it lists is compared with its pin.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    Implementation,
    PromptListChangedNotification,
    ToolListChangedNotification,
)
from moryflow_sdk.support.processes import CALL_MARK, end_marked
from pydantic import ValidationError

from .definitions import FIELDS, MAX_PROMPT, MAX_TOOLS, tool_hash
from .helper import servers_mark
from .lock import canonical
from .oauth import LoginNeeded, log_in, signed_in
from .transports import MAX_BYTES, MAX_LAST_LINES, JudgedTransport, ServerGone, connected_program, host_of

# How many entries of a list are counted at most.
LONGEST_LIST = 20_000
# How many pages of a list are asked for at most; a server may never end its list.
MAX_PAGES = MAX_TOOLS
_BACKSTOP = 3600.0
# Messages of the SDK for an HTTP status without a message of the server.
_STATUS_ONLY = ("Server returned an error response", "Session terminated", "Not Found")


class Request:
    """A request of the host, with a function to send progress before its result."""

    def __init__(self, message: Mapping[str, Any], say: Callable[[Mapping[str, Any]], None]) -> None:
        self.do: str = message["do"]
        self.server: Mapping[str, Any] = message["server"]
        self.given: Mapping[str, Any] = message
        self.say = say

    async def progress(self, done: float, total: float | None, message: str | None) -> None:
        share = f"{done:g} of {total:g}" if total else f"{done:g}"
        self.say({"progress": f"{share}: {message}"[:500] if message else share})


class McpConnection:
    """A connection to a server. It has a task of its own, because the SDK requires the same task to open and close it."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._http = JudgedTransport(spec["url"]) if "url" in spec else None
        self._last_lines: deque[str] = deque(maxlen=MAX_LAST_LINES)
        self._client: Any = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._listing: dict[str, Any] = {}
        self._changed = True
        self._lock = asyncio.Lock()
        self._task = asyncio.create_task(self._live())

    @property
    def ended(self) -> bool:
        """Whether a new connection has to be made."""
        if self._leave.is_set() or self._task.done():
            return True  # a server that does not know the session any more answers 404
        return self._http is not None and (self._http.refused or self._http.failure.startswith("HTTP 404"))

    async def close(self) -> None:
        """End the connection, and the program with it."""
        self._leave.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), 8)
        self._task.cancel()

    async def do(self, request: Request) -> Any:
        """Carry out a request and return its result.

        :raises Exception: anything that goes wrong; :func:`explain` turns it into code and message.
        """
        seconds = self.spec.get("connect_seconds", 60)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise ServerGone(f"it did not answer within {seconds:g} s") from None
        try:
            return await getattr(self, f"_{request.do}")(request)
        except Exception as error:
            if self._http is not None and self._http.refused:
                raise LoginNeeded("it wants a login") from error
            if isinstance(error, MCPError) and (error.error.code, str(error)) == (CONNECTION_CLOSED, "Connection closed"):
                self._leave.set()
                raise ServerGone("; ".join(("it ended", *self._said()))) from error
            if self._http is not None and self._http.failure and str(error) in _STATUS_ONLY:
                raise ServerGone(f"{explain(error)['message']}; {self._http.failure}") from error
            raise

    def _said(self) -> list[str]:
        lines = " / ".join(line for line in self._last_lines if line.strip())[-1500:]
        more = self._http.failure if self._http else lines and f"it said: {lines}"
        return [more] if more else []

    # ---------------------------------------------------------------- the connection

    async def _live(self) -> None:
        try:
            async with self._make_client() as self._client:
                self._ready.set_result(None)
                await self._leave.wait()
        except BaseException as error:
            if not self._ready.done():
                said = explain(error)
                failure = ServerGone("; ".join((f"it cannot be connected to: {said['message']}", *self._said())))
                if said["code"] == "mcp_login" or (self._http is not None and self._http.refused):
                    failure = LoginNeeded(said["message"] if said["code"] == "mcp_login" else "it wants a login")
                self._ready.set_exception(failure)
                self._ready.exception()  # mark it as retrieved: perhaps nobody waits for it
            if isinstance(error, asyncio.CancelledError):
                raise

    def _make_client(self) -> Client:
        info = Implementation(name="moryflow", version=self.spec.get("client_version", "0"))
        common: dict[str, Any] = {
            "client_info": info,
            "read_timeout_seconds": _BACKSTOP,
            "message_handler": self._notified,
            "cache": None,
        }
        if self._http is None:
            return Client(connected_program(self.spec, self._last_lines), **common)
        timeout = httpx2.Timeout(30.0, read=self.spec.get("timeout") or 300.0)
        auth = signed_in(self.spec)
        http = httpx2.AsyncClient(
            transport=self._http, headers=self.spec["headers"], auth=auth, timeout=timeout, trust_env=False
        )
        streams = streamable_http_client(self.spec["url"], http_client=http, max_sse_event_size=MAX_BYTES)
        return Client(streams, **common)

    async def _notified(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification | PromptListChangedNotification):
            self._changed = True

    # ---------------------------------------------------------------- requests

    async def _list(self, _: Request) -> Any:
        return await self._list_now()

    async def _call(self, request: Request) -> Any:
        """Call a tool, if it is unchanged since the review; report it if any tool has changed."""
        name, pinned = request.given["tool"], request.given["pinned"]
        listing = await self._current_list()
        hashes = {tool["name"]: tool["hash"] for tool in listing["tools"]}
        drift = {"drift": listing} if hashes != pinned else {}
        if hashes.get(name) != pinned[name]:
            return {**drift, "refused": True}
        result = await self._client.call_tool(
            name, dict(request.given["args"]), read_timeout_seconds=_BACKSTOP, progress_callback=request.progress
        )
        return {**drift, **_plain(result)}

    async def _prompt(self, request: Request) -> Any:
        name, listing = request.given["name"], await self._current_list()
        now = next((prompt for prompt in listing["prompts"] if prompt["name"] == name), None)
        if now != request.given["pinned"] or listing["identity"] != request.given["identity"]:
            return {"refused": True}
        return _plain(await self._client.get_prompt(name, dict(request.given["args"])))

    async def _paged(self, work: Any, field: str) -> tuple[list[Any], int]:
        """Return at most :data:`MAX_TOOLS` entries of a list, and how many more there are."""
        found, cursor = list[Any](), None
        for _ in range(MAX_PAGES):
            page = await work(cursor=cursor, cache_mode="refresh")
            found += getattr(page, field)
            cursor = page.next_cursor
            if not cursor or len(found) > LONGEST_LIST:
                break
        return found[:MAX_TOOLS], max(0, len(found) - MAX_TOOLS)

    async def _current_list(self) -> dict[str, Any]:
        """Return identity, tools and prompts of the server; asked for again after it has reported a change."""
        async with self._lock:
            if self._changed:
                self._changed = False
                self._listing = await self._list_now()
            return self._listing

    async def _list_now(self) -> dict[str, Any]:
        info, capabilities = self._client.server_info, self._client.server_capabilities
        identity = {**self.spec["identity"], "name": info.name[:200] if info else ""}
        if self._http is None:
            identity["version"] = info.version[:200] if info else ""
        else:
            identity["host"] = host_of(self.spec["url"])
        tools, beyond = list[Any](), 0
        if capabilities.tools is not None:
            found, beyond = await self._paged(self._client.list_tools, "tools")
            for whole in map(_plain, found):
                tool = {name: whole[name] for name in FIELDS if name in whole}
                tools.append({**tool, "hash": tool_hash(tool, identity)})
        said = {name: " ".join(str(getattr(info, name, "")).split())[:200] for name in ("name", "version")}
        prompts = list[Any]()
        if capabilities.prompts is not None:
            prompts = [_prompt(_plain(each)) for each in (await self._paged(self._client.list_prompts, "prompts"))[0]]
        server = {**said, "protocol": self._client.protocol_version}
        return {"identity": identity, "server": server, "tools": tools, "beyond": beyond, "prompts": prompts}


def _prompt(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a prompt in a pin; if the prompt is too large, only its name and the problem."""
    kept = {key: whole[key] for key in ("name", "title", "description", "arguments") if key in whole}
    return kept if len(canonical(kept)) <= MAX_PROMPT else {"name": kept["name"][:200], "problem": "it is too large"}


def _plain(result: Any) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})


def explain(error: BaseException) -> dict[str, str]:
    """Return code and message for an error of a request."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LoginNeeded):
        return {"code": "mcp_login", "message": str(error)}
    if isinstance(error, ServerGone):
        return {"code": "mcp_gone", "message": str(error)}
    if isinstance(error, MCPError):
        first_line = error.error.message.partition("\n")[0]  # the SDK adds pydantic's text for programmers
        return {"code": "mcp_error", "message": f"{first_line} (code {error.error.code})"}
    if isinstance(error, FileNotFoundError):
        return {"code": "mcp_gone", "message": f"there is no program {error.filename}"}
    if isinstance(error, OSError | httpx2.HTTPError):
        what = error.strerror if isinstance(error, OSError) else ""
        where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return {"code": "mcp_gone", "message": f"{what or error or type(error).__name__}{where}"[:500]}
    if isinstance(error, RuntimeError):  # the SDK raises it for a result that does not fit the tool's output schema
        return {"code": "mcp_invalid_result", "message": str(error)[:500]}
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        said = f"its answer is not what the protocol asks for: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        return {"code": "mcp_invalid_result", "message": said[:500]}
    return {"code": "mcp_failed", "message": f"{type(error).__name__}: {error}"[:500]}


# KiB of memory. If this process uses more, because of a server's answer, it ends; the next request starts a new one.
MAX_MEMORY = 1024 * 1024
LIMIT = 64 * 1024 * 1024
# Seconds between two checks whether the host still runs, and for an orderly end when it does not.
STEP, GRACE = 0.5, 10.0


class McpWorker:
    """Reads requests and answers them concurrently."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[str, McpConnection] = {}

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Answer requests until the host closes the input; then end all servers."""
        async for line in lines:
            message = json.loads(line)
            if "cancel" in message:
                if task := self._tasks.get(message["cancel"]):
                    task.cancel()
            else:
                self._tasks[message["id"]] = asyncio.create_task(self._run(message))
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*(connection.close() for connection in self._connections.values()), return_exceptions=True)

    def _say(self, message: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(message, separators=(",", ":")) + "\n")
        self._answers.flush()

    async def _run(self, message: Mapping[str, Any]) -> None:
        number = message["id"]
        request = Request(message, lambda said: self._say({"id": number, **said}))
        try:
            self._say({"id": number, "result": await self._do(request)})
        except asyncio.CancelledError:
            self._say({"id": number, "error": {"code": "cancelled", "message": "the call was cancelled"}})
        except BaseException as error:  # anything that a server causes is the answer to this request
            self._say({"id": number, "error": explain(error)})
        finally:
            del self._tasks[number]

    async def _do(self, request: Request) -> Any:
        if request.do == "login":
            return await log_in(request.server, lambda url: request.say({"login": url}))
        return await (await self._connection(request.server)).do(request)

    async def _connection(self, server: Mapping[str, Any]) -> McpConnection:
        """Return the connection to a server; make a new one if it has ended, or if the configuration has changed."""
        key = server["key"]
        known = self._connections.get(key)
        if known is None or known.spec != server or known.ended:
            self._connections[key] = McpConnection(server)
            if known is not None:
                await known.close()
        return self._connections[key]


def end_servers() -> None:
    """End all processes that servers started, also those in another process group."""
    end_marked([servers_mark(os.environ.get(CALL_MARK, "mcp"))])


def watch(host: int) -> None:
    """Start a thread that ends this process after the host has ended, or when it takes too much memory."""

    def work() -> None:
        while os.getppid() == host and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MAX_MEMORY:
            time.sleep(STEP)
        if os.getppid() == host:
            print(f"a server made it take more than {MAX_MEMORY >> 20} GiB of memory", file=sys.stderr, flush=True)
        else:
            time.sleep(GRACE)
        end_servers()
        os._exit(1)

    threading.Thread(target=work, daemon=True).start()


async def main() -> None:
    """Serve requests from standard input. Standard output of libraries is redirected to standard error."""
    watch(os.getppid())
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it would print a traceback for each line that is no message
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines = asyncio.StreamReader(limit=LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    with suppress(BrokenPipeError):
        await McpWorker(answers).serve(lines)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    finally:
        end_servers()
        os._exit(0)
