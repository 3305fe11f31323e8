"""What a turn waits for, in one line: the model, a tool, a retry; and that line, turning, on standard error."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moryflow_sdk import Event
from moryflow_sdk.events import DELTAS
from moryflow_sdk.support.texts import visible

from . import brief, cut, ending, fitting, plain, terminal_width
from .interrupts import ASIDES
from .streams import stderr

_FRAMES, _ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_USUAL = 80
_LAST_LINES = 3
"""Lines of what a tool prints that stand below its name while it runs."""
_END = 4096
"""Characters at the end of what a tool prints in which they are looked for, when they are shown: a tool may print 20 MB."""


class Awaited:
    """What the turn waits for now, as its events tell."""

    def __init__(self) -> None:
        self._what = ""
        self._since = 0.0
        self._tools: dict[tuple[str, str], str] = {}
        """What running calls are shown as, by session and id; the next is the end of what each has printed."""
        self._printed: dict[tuple[str, str], str] = {}

    def note(self, event: Event) -> None:
        if not event.session:  # of the host, such as a reload: the turn awaits what it did before
            return
        data = event.data
        call = event.session, str(data.get("call_id", ""))
        match event.type:
            case "tool.start" if data["state"] == "running":
                self._tools[call] = visible(f"{data['tool']} {brief(data['args'])}".rstrip())
            case "tool.result":
                self._tools.pop(call, None)
                self._printed.pop(call, None)
            case "tool.delta":
                self._printed[call] = (self._printed.get(call, "") + data.get("text", "")[-_END:])[-_END:]
            case "turn.finish" if event.parent is None:
                self._tools.clear()
                self._printed.clear()
            case _:
                pass
        what = self._of(event)
        if what != self._what:
            self._what, self._since = what, time.monotonic()

    def forget(self) -> None:
        """Await nothing: what a turn that was cut off left running never tells of its end."""
        self._tools.clear()
        self._printed.clear()
        self._what = ""

    def _of(self, event: Event) -> str:
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
        """How long it has been waited for; 0 when nothing is."""
        return time.monotonic() - self._since if self._what else 0.0

    def line(self) -> str:
        """Return what is awaited, with the next look of the spinner before it; empty when nothing is."""
        if not self._what:
            return ""
        frames = _FRAMES if "utf" in (sys.__stderr__.encoding if sys.__stderr__ else "").lower() else _ASCII_FRAMES
        frame = frames[int(self.seconds * 10) % len(frames)]
        took = f" · {self.seconds:.0f} s" if self.seconds >= 1 else ""
        return f"{frame} {self._what}{took}"

    def printed(self) -> list[str]:
        """Return the last lines that a running tool has printed; of several, the last line of each behind its name."""
        if len(self._tools) == 1:
            return [f"  {line}" for call in self._tools for line in self._last_lines(call)]
        most = max((terminal_width() or _USUAL) // 3, 12)
        lines = ((shown, line) for call, shown in self._tools.items() for line in self._last_lines(call)[-1:])
        return [f"  {cut(shown, most)} · {line}" for shown, line in lines]

    def _last_lines(self, call: tuple[str, str]) -> list[str]:
        lines = plain(self._printed.get(call, "")).split("\n")
        return [line for line in lines if line.strip()][-_LAST_LINES:]


class Spinner:
    """The line of :class:`Awaited` after a second of silence, taken away before anything else is printed.

    :param words: returns the end of what is being said.
    """

    def __init__(self, awaited: Awaited, words: Callable[[], str]) -> None:
        self._awaited = awaited
        self._words = words
        self._task: asyncio.Task[None] | None = None
        self._shown = False
        self._from = 0.0

    def go_on(self) -> None:
        """Turn, beginning a second from now."""
        if self._task is None:
            self._from = time.monotonic() + 1.0
            self._task = asyncio.get_running_loop().create_task(self._spin())
            ASIDES.append(self._aside)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            ASIDES.remove(self._aside)
        self.clear()

    def clear(self) -> None:
        """Take the spinner off the line."""
        if self._shown:
            stderr().write("\r\x1b[K")
            stderr().flush()
            self._shown = False
        self._from = time.monotonic() + 1.0

    @contextmanager
    def _aside(self) -> Iterator[None]:
        self.clear()
        yield

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
