"""A turn on a terminal: the answer on standard output, everything else on standard error."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, TextIO

from moryflow_sdk import Event

from .text import first_line, plain

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def use_colour(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that wants colour."""
    import os

    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class Blocks:
    """Markdown as it streams: a paragraph, list or fenced block is printed once it is complete."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(no_color=not use_colour(sys.stdout), highlight=False)
        self._pending = ""

    def feed(self, text: str) -> None:
        """Add `text`; print the blocks it completes."""
        self._pending += text
        while (cut := self._boundary()) > 0:
            self._print(self._pending[:cut])
            self._pending = self._pending[cut:].lstrip("\n")

    def flush(self) -> None:
        """Print what is left."""
        self._print(self._pending)
        self._pending = ""

    def _boundary(self) -> int:
        """Return where the first complete block ends, or 0: an empty line outside a fenced block."""
        start = 0
        while (found := self._pending.find("\n\n", start)) >= 0:
            if self._pending[:found].count("```") % 2 == 0:
                return found
            start = found + 2
        return 0

    def _print(self, text: str) -> None:
        if text.strip():
            from rich.markdown import Markdown

            self._console.print(Markdown(plain(text)))


class TerminalView:
    """Shows a turn as it happens. The answer is printed whole at the end when standard output is no terminal."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._live = sys.stdout.isatty()
        self._talks = not quiet and (sys.stderr.isatty() or verbose)
        self._blocks = Blocks() if self._live else None
        self._spinner = Spinner() if not quiet and sys.stderr.isatty() else None

    def __call__(self, event: Event) -> None:
        if self._spinner:
            self._spinner.clear()
        data = event.data
        match event.type:
            case "text.delta" if self._blocks:
                self._blocks.feed(data["text"])
            case "tool.start" if data["state"] == "running":
                self._flush()
                self._note(f"• {data['tool']} {_brief(data['args'])}")
            case "tool.result" if data["status"] != "ok":
                self._note(f"  {data['status']}: {first_line(data['output'])}")
            case "tool.result" if data.get("truncated"):
                self._note(f"  truncated; all of it: moryflow output show {data.get('output_id', '')}")
            case "session.status" if data["status"] == "retry":
                self._note(f"  try {data['attempt']} in {data['in']} s: {data['reason']}")
            case "session.status" if data.get("text"):
                self._note(f"  {data['text']}")
            case "step.finish":
                self._flush()
        if self._spinner:
            self._spinner.expect(event)

    def finish(self, text: str) -> None:
        """Print the answer, if it was not printed as it came."""
        if self._spinner:
            self._spinner.stop()
        self._flush()
        if not self._live and text:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
            sys.stdout.flush()

    def _flush(self) -> None:
        if self._blocks:
            self._blocks.flush()

    def _note(self, text: str) -> None:
        if self._talks:
            sys.stderr.write(plain(text) + "\n")
            sys.stderr.flush()


class Spinner:
    """Something that moves on standard error after a second of silence."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._shown = False

    def expect(self, event: Event) -> None:
        """Start over after `event`; a turn that waits for a person or has ended shows nothing."""
        self.stop()
        if event.type not in ("permission.asked", "turn.finish") and event.data.get("status") not in ("waiting", "idle"):
            self._task = asyncio.get_running_loop().create_task(self._spin())

    def stop(self) -> None:
        """Stop and clear the line."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.clear()

    def clear(self) -> None:
        """Take the spinner off the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False

    async def _spin(self) -> None:
        await asyncio.sleep(1.0)
        number = 0
        while True:
            sys.stderr.write(f"\r{_FRAMES[number % len(_FRAMES)]} ")
            sys.stderr.flush()
            self._shown = True
            number += 1
            await asyncio.sleep(0.1)


def _brief(args: Any) -> str:
    """Return the arguments of a call in one short line."""
    values = args.values() if isinstance(args, dict) else [args]
    return first_line(" ".join(str(value) for value in values if isinstance(value, str | int)), 100)
