"""The helper process: it holds the MCP SDK and all servers, so that their death, flood or leak costs a call and not the host.

Lines of JSON both ways. A request is ``{"id", "do", "server", …}``; what comes back for it is ``{"id", "result"}`` or ``{"id",
"error"}``, with ``{"id", "progress"}`` and ``{"id", "ask"}`` before. ``{"cancel": id}`` ends a request, ``{"answer": id, …}``
answers what it asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from moryflow_sdk.support.processes import CALL_MARK, end_marked

from .connection import McpConnection, Request, explain
from .helper import servers_mark
from .oauth import log_in

MOST_MEMORY = 1024 * 1024
"""KiB that this process may have taken; with more it ends once it is idle, and is started anew when it is needed."""
LIMIT = 64 * 1024 * 1024
STEP, GRACE = 0.5, 10.0
"""Seconds between two looks at whether the host is there, and for an orderly end when it is not."""


class McpWorker:
    """Takes requests and answers them side by side."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._requests: dict[int, Request] = {}
        self._connections: dict[str, McpConnection] = {}

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Answer until the host is gone; then end every server."""
        async for line in lines:
            message = json.loads(line)
            if "cancel" in message:
                if task := self._tasks.get(message["cancel"]):
                    task.cancel()
            elif "answer" in message:
                if request := self._requests.get(message["answer"]):
                    request.answered(message)
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
        request = self._requests[number] = Request(message, lambda said: self._say({"id": number, **said}))
        try:
            self._say({"id": number, "result": await self._do(request)})
        except asyncio.CancelledError:
            self._say({"id": number, "error": {"code": "cancelled", "message": "the call was cancelled"}})
        except BaseException as error:  # whatever a server leads to is the answer to this request
            self._say({"id": number, "error": explain(error)})
        finally:
            del self._tasks[number], self._requests[number]
            if not self._tasks and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MOST_MEMORY:
                os._exit(0)  # servers go with it

    async def _do(self, request: Request) -> Any:
        if request.do == "login":

            async def show(url: str) -> None:
                await request.ask({"login": url})

            return await log_in(request.server, show)
        return await (await self._connection(request.server)).do(request)

    async def _connection(self, server: Mapping[str, Any]) -> McpConnection:
        """Return the connection to a server; one that is configured otherwise by now, or has ended, is made anew."""
        key = server["key"]
        known = self._connections.get(key)
        if known is not None and (known.spec != server or known.ended):
            del self._connections[key]
            await known.close()
            known = self._connections.get(key)
        if known is None:
            known = self._connections[key] = McpConnection(server)
        return known


def end_servers() -> None:
    """End whatever a server has started and left behind, also in a process group of its own."""
    end_marked([servers_mark(os.environ.get(CALL_MARK, "mcp"))])


def watch(host: int) -> None:
    """Begin to watch for the end of the host; when a server keeps this process from noticing it, end all the same."""

    def work() -> None:
        while os.getppid() == host:
            time.sleep(STEP)
        time.sleep(GRACE)
        end_servers()
        os._exit(1)

    threading.Thread(target=work, daemon=True).start()


async def main() -> None:
    """Serve standard input; what libraries print goes to standard error."""
    watch(os.getppid())
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
