"""Questions to a person at a terminal: once, always, or stop (S0.9, D24)."""

from __future__ import annotations

import asyncio
import sys

from moryflow_sdk import Event, MoryflowError

from moryflow.host import Host

from .text import plain

_REPLIES = {"o": "once", "once": "once", "y": "once", "a": "always", "always": "always", "s": "stop", "stop": "stop"}


class TerminalAsker:
    """Answers ``permission.asked`` by asking at the terminal, on standard error, one question at a time.

    A question that was answered elsewhere, or whose call or turn has ended, is withdrawn. Subscribe it before what tells of
    these, so that it is off the line by then.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turn = asyncio.Lock()
        self._open: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, Event] = {}
        self._waits = False
        self._shown = ""

    def __call__(self, event: Event) -> None:
        match event.type:
            case "permission.asked":
                self._asked[event.data["approval_id"]] = event
                self._put(event)
            case "permission.replied":
                self._withdraw(event.data["approval_id"])
            case "tool.result":
                self._withdraw_of(event, event.data["call_id"])
            case "turn.finish":
                self._withdraw_of(event)

    def wait(self) -> None:
        """Show questions without reading an answer: the person is typing a line."""
        self._waits = True

    def go_on(self) -> None:
        """Ask again, and what was only shown meanwhile too."""
        self._waits = False
        for approval, event in self._asked.items():
            if approval not in self._open:
                self._put(event)

    def _put(self, event: Event) -> None:
        approval = event.data["approval_id"]
        if self._waits:
            sys.stderr.write(f"{question(event)}  answer with /reply {approval} once|always|stop\n")
        else:
            self._open[approval] = asyncio.get_running_loop().create_task(self._ask(event))

    def _withdraw_of(self, ended: Event, call: str = "") -> None:
        for approval, asked in list(self._asked.items()):
            if asked.session == ended.session and call in ("", asked.data["call_id"]):
                self._withdraw(approval)

    def _withdraw(self, approval: str) -> None:
        self._asked.pop(approval, None)
        task = self._open.pop(approval, None)
        if task is not None and not task.done():
            task.cancel()
            if self._shown == approval:
                self._shown = ""
                sys.stderr.write("\n")  # what is told next does not stand behind the question

    async def _ask(self, event: Event) -> None:
        async with self._turn:
            sys.stderr.write(question(event))
            self._shown = event.data["approval_id"]
            reply = await _answer()
            self._shown = ""
            try:
                if reply is None:
                    sys.stderr.write("\nmoryflow: standard input has ended, so nobody can be asked\n")
                    await self._host.approvals.nobody_left()
                else:
                    await self._host.approvals.reply(event.data["approval_id"], reply)
            except MoryflowError as error:
                sys.stderr.write(f"moryflow: {plain(str(error))}\n")


async def _answer() -> str | None:
    """Return what was typed, ``None`` at the end of an input that is no terminal."""
    while True:
        sys.stderr.write("  [o]nce  [a]lways  [s]top > ")
        sys.stderr.flush()
        line = await read_line()
        if not line and not sys.stdin.isatty():
            return None
        if not line:  # Ctrl-D ends no line
            sys.stderr.write("\n")
        reply = _REPLIES.get(line.strip().lower()) if line else "stop"
        if reply is not None:
            return reply


async def read_line() -> str:
    """Read a line from the terminal without a thread, so that Ctrl-C leaves nobody waiting for input.

    A file, or the null device, cannot be waited for; its next line, or its end, is there already.
    """
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def ready() -> None:
        if not line.done():
            line.set_result(sys.stdin.readline())

    try:
        loop.add_reader(sys.stdin.fileno(), ready)
    except PermissionError:
        return sys.stdin.readline()
    try:
        return await line
    finally:
        loop.remove_reader(sys.stdin.fileno())


def question(event: Event) -> str:
    """Return a question as text: whose it is, the tool, what it would touch, why it is asked, what *always* would store."""
    data = event.data
    whose = f"{plain(str(event.agent))}: " if event.parent else ""
    targets = "\n".join(f"    {plain(target)}" for target in data["targets"])
    remember = data.get("remember") or ()
    patterns = (remember,) if isinstance(remember, str) else remember
    stored = f"\n  always stores: {', '.join(map(plain, patterns))}" if patterns else "\n  this answer counts once"
    return f"\n? {whose}{plain(data['tool'])} wants to\n{targets}\n  because: {plain(data['reason'])}{stored}\n"
