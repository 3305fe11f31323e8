"""A host that kills itself at a named point of the commit that makes a compaction true.

Usage: ``python kill_in_commit.py VAULT SESSION POINT``. The point is found from outside: the database connection that this
process opens is a subclass that looks at the statements.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from dataclasses import replace
from typing import Any

from moryflow import open_host
from moryflow_sdk import ModelInfo
from moryflow_sdk.support.scripted import ScriptedModel

POINT = sys.argv[3]


class Watched(sqlite3.Connection):
    """Kills the process once the summary was written and its commit has come to the point."""

    armed = appended = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self._at("before", sql)
        cursor = super().execute(sql, *values)
        Watched.appended |= Watched.armed and sql.startswith("INSERT INTO nodes")
        self._at("after", sql)
        return cursor

    def _at(self, side: str, sql: str) -> None:
        what = sql.split()[0]
        reached = {
            "before BEGIN": side == "before" and what == "BEGIN",
            "after the node": side == "after" and Watched.appended,
            "before COMMIT": side == "before" and what == "COMMIT",
            "after COMMIT": side == "after" and what == "COMMIT" and Watched.appended,
        }
        if Watched.armed and reached[POINT]:
            os.kill(os.getpid(), signal.SIGKILL)


class Model(ScriptedModel):
    """Arms the connection with the end of the summary; the next thing that is written is the compaction."""

    async def stream(self, request: Any) -> Any:
        async for event in super().stream(request):
            yield event
        Watched.armed = request.purpose == "compact"


async def main() -> None:
    real = sqlite3.connect
    sqlite3.connect = lambda *args, **options: real(*args, **{**options, "factory": Watched})  # type: ignore[assignment]
    info = ModelInfo(id="scripted", name="scripted", provider="scripted", context_window=10_000)
    async with await open_host(builtins=()) as host:
        turns = [{"text": "## Goal\nMend.", "purpose": "compact"}, {"text": "done"}]
        host.plugin_set = replace(host.plugin_set, providers=(Model(turns, info=info),))
        session = await host.resume(sys.argv[1], sys.argv[2])
        await session.prompt("and now?")


if __name__ == "__main__":
    asyncio.run(main())
