"""Questions to a person at a terminal: once, always, or stop (S0.9, D24)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from moryflow_sdk import Event

from moryflow.host import Host
from moryflow.session import Session

from .render import plain

_REPLIES = {"o": "once", "once": "once", "y": "once", "a": "always", "always": "always", "s": "stop", "stop": "stop"}


class TerminalAsker:
    """Answers ``permission.asked`` by asking at the terminal, on standard error."""

    def __init__(self, host: Host, session: Session) -> None:
        self._host = host
        self._session = session
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, event: Event) -> None:
        if event.type == "permission.asked":
            task = asyncio.get_running_loop().create_task(self._ask(event.data))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, data: Any) -> None:
        sys.stderr.write(question(data))
        while True:
            sys.stderr.write("  [o]nce  [a]lways  [s]top > ")
            sys.stderr.flush()
            line = await asyncio.to_thread(sys.stdin.readline)
            reply = "stop" if not line else _REPLIES.get(line.strip().lower())
            if reply is not None:
                await self._host.approvals.reply(data["approval_id"], reply)
                return


def question(data: Any) -> str:
    """Return a question as text: the tool, what it would touch, why it is asked, what *always* would store."""
    targets = "\n".join(f"    {plain(target)}" for target in data["targets"])
    remember = data.get("remember")
    stored = f"\n  always stores: {plain(str(remember))}" if remember else "\n  this answer counts once"
    return f"\n? {plain(data['tool'])} wants to\n{targets}\n  because: {plain(data['reason'])}{stored}\n"
