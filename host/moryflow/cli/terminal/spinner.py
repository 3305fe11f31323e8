"""What a turn waits for (the model, a tool, a retry) as one line, and the spinner that shows it on standard error."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from moryflow_sdk import Event
from moryflow_sdk.events import DELTAS
from moryflow_sdk.support.texts import visible

from . import brief, ending, fitting, plain, terminal_width
from .streams import stderr

_FRAMES, _ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_USUAL = 80
# How many of the last lines of running tools are shown.
_LAST_LINES = 3
# How many characters of the end of their output are kept: a tool may print 20 MB.
_END = 4096


class Awaited:
    """Knows from a turn's events what the turn waits for now."""

    def __init__(self) -> None:
        self._activity = ""
        self._since = 0.0
        self._tools: dict[tuple[str, str], str] = {}
        """The text of each running call, by session and call id."""
        self._streams: set[tuple[str, str]] = set()
        """The running calls whose pieces are the output of a command; those of others are lines of their own."""
        self._printed = ""
        """The end of what the tools have printed."""

    def note(self, event: Event) -> None:
        if not event.session:  # an event of the host, such as a reload: the turn still waits for the same
            return
        data = event.data
        call = event.session, str(data.get("call_id", ""))
        match event.type:
            case "tool.start" if data["state"] == "running":
                self._tools[call] = visible(f"{data['tool']} {brief(data['args'])}".rstrip())
                self._streams |= {call} if data.get("domain") == "bash" else set()
            case "tool.result":
                self._tools.pop(call, None)
                self._printed = ""
            case "tool.delta":
                before = self._printed if call in self._streams else ""
                self._printed = (before + data.get("text", ""))[-_END:]
            case "turn.finish" if event.parent is None:
                self.forget()
            case _:
                pass
        what = self._activity_after(event)
        if what != self._activity:
            self._activity, self._since = what, time.monotonic()

    def forget(self) -> None:
        """Wait for nothing: calls that a cut-off turn left running never report their end."""
        self._tools.clear()
        self._activity = self._printed = ""

    def _activity_after(self, event: Event) -> str:
        status = event.data.get("status")
        ended = event.type == "turn.finish" and event.parent is None
        if ended or event.type == "permission.asked" or status in ("waiting", "idle"):
            return ""
        if event.type == "session.status" and status == "retry":
            return f"trying again in {event.data['in']} s"
        if self._tools:
            first, *others = self._tools.values()
            return f"{first} and {len(others)} more" if others else first
        if event.type == "session.status" and event.data.get("text"):
            return str(event.data["text"])
        if event.type in DELTAS:
            return "thinking" if event.type == "reasoning.delta" else "writing"
        return "waiting for the model"

    @property
    def seconds(self) -> float:
        """Seconds that the turn has waited for it; 0 if it waits for nothing."""
        return time.monotonic() - self._since if self._activity else 0.0

    def line(self) -> str:
        """Return what the turn waits for, behind the spinner's current frame; empty if it waits for nothing."""
        if not self._activity:
            return ""
        frames = _FRAMES if "utf" in (sys.__stderr__.encoding if sys.__stderr__ else "").lower() else _ASCII_FRAMES
        frame = frames[int(self.seconds * 10) % len(frames)]
        took = f" · {self.seconds:.0f} s" if self.seconds >= 1 else ""
        return f"{frame} {self._activity}{took}"

    def printed(self) -> list[str]:
        """Return the last lines that running tools have printed."""
        lines = (line.rstrip("\r").rpartition("\r")[2] for line in self._printed.replace("\r\n", "\n").split("\n"))
        return [f"  {plain(line)}" for line in lines if line.strip()][-_LAST_LINES:]


class Spinner:
    """Shows the line of :class:`Awaited` after a second of silence, and erases it before anything else is printed.

    :param words: returns the end of the streaming answer.
    """

    def __init__(self, awaited: Awaited, words: Callable[[], str]) -> None:
        self._awaited = awaited
        self._words = words
        self._task: asyncio.Task[None] | None = None
        self._shown = False
        self._from = 0.0

    def go_on(self) -> None:
        """Start to spin, a second from now."""
        if self._task is None:
            self._from = time.monotonic() + 1.0
            self._task = asyncio.get_running_loop().create_task(self._spin())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.clear()

    def clear(self) -> None:
        if self._shown:
            stderr().write("\r\x1b[K")
            stderr().flush()
            self._shown = False
        self._from = time.monotonic() + 1.0

    async def _spin(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if time.monotonic() > self._from and (line := self._awaited.line()):
                room = (terminal_width() or _USUAL) - 1
                line = fitting(line, room)
                if words := (self._awaited.printed() or [self._words()])[-1].strip():
                    line += f" · {ending(words, max(room - len(line) - 3, 0))}"
                stderr().write(f"\r\x1b[K{fitting(line, room)}")
                stderr().flush()
                self._shown = True
