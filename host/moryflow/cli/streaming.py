"""``--output stream-json``: events as JSON Lines, answers to questions on standard input."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from moryflow_sdk import MoryflowError

SHAPE = '{"type": "permission.reply", "approval_id": …, "reply": "once|always|reject|stop"}'


def write_line(document: Any) -> None:
    """Write one JSON line and flush it; what is not valid Unicode is escaped."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def init_event(host: Any, session: Any) -> dict[str, Any]:
    """Return the first event: who works where, with what."""
    _, model = host.choose_model(session)
    plugins = []
    for record in host.plugin_set.records:
        shown = {"name": record.name, "version": record.version, "tier": record.tier, "status": record.status}
        plugins.append(shown | ({"error": record.error} if record.error else {}))
    return {
        "v": 1,
        "type": "init",
        "session": session.id,
        "vault": session.row.vault,
        "agent": session.agent.id,
        "model": model.id,
        "mode": session.mode,
        "plugin_set": host.plugin_set.id,
        "plugins": plugins,
    }


def answer_from_stdin(host: Any) -> None:
    """Take ``{"type": "permission.reply", "approval_id": …, "reply": …}`` lines from standard input.

    A closed standard input answers every open question with stop; nothing waits for ever.
    """
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[Any]] = set()

    def start(document: dict[str, Any]) -> None:
        task = loop.create_task(_reply(host, document))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        for line in sys.stdin:
            try:
                document = json.loads(line)
            except ValueError:
                document = {"type": "invalid"}
            if not loop.is_closed():
                loop.call_soon_threadsafe(start, document)
        if not loop.is_closed():
            loop.call_soon_threadsafe(start, {"type": "closed"})

    threading.Thread(target=read, name="moryflow-stdin", daemon=True).start()


async def _reply(host: Any, document: dict[str, Any]) -> None:
    if document.get("type") == "closed":
        await host.approvals.nobody_left()
        return
    try:
        if document.get("type") != "permission.reply":
            raise MoryflowError(
                "a line on standard input is not a permission.reply", next_step='{"type": "permission.reply", …}'
            )
        reply, message = document.get("reply", ""), document.get("message", "")
        await host.approvals.reply(document.get("approval_id", ""), reply, message=message, by="client")
    except MoryflowError as error:
        write_line(
            {"v": 1, "type": "error", "code": error.code, "message": error.message, "where": "", "next": error.next_step}
        )
