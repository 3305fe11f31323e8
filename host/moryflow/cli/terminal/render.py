"""A turn on a terminal: Markdown as it streams, tools, remarks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from moryflow_sdk import Event
from moryflow_sdk.events import DELTAS
from moryflow_sdk.support.texts import visible

from .text import first_line, plain, told_result


def use_colour(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that wants colour."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class MarkdownBlocks:
    """Markdown as it streams: a paragraph, list or fenced block is printed once it is complete.

    :param before: called before anything is printed.
    :ivar pending: what has come of the next block.
    """

    def __init__(self, before: Callable[[], None]) -> None:
        from rich.console import Console

        self._console = Console(no_color=not use_colour(sys.stdout), highlight=False)
        self._before = before
        self.pending = ""

    def feed(self, text: str) -> None:
        """Add `text`; print the blocks it completes."""
        self.pending += text
        while (cut := self._boundary()) > 0:
            self._print(self.pending[:cut])
            self.pending = self.pending[cut:].lstrip("\n")

    def flush(self) -> None:
        """Print what is left."""
        self._print(self.pending)
        self.pending = ""

    def _boundary(self) -> int:
        """Return where the first complete block ends, or 0: an empty line outside a fenced block."""
        start = 0
        while (found := self.pending.find("\n\n", start)) >= 0:
            if self.pending[:found].count("```") % 2 == 0:
                return found
            start = found + 2
        return 0

    def _print(self, text: str) -> None:
        if text.strip():
            from rich.markdown import Markdown

            self._before()
            self._console.print(Markdown(plain(text)))


TRUNCATED = {"en": "truncated", "zh": "已截断"}
"""What is said of an output that was cut, by interface language."""

DIFF_LINES = 30
"""Rows that what a call has changed may take."""
NOTICE_LINES = 60
"""How much of a plugin's notice is shown, for example of a change that somebody is asked to agree to."""


class TerminalView:
    """Shows a turn as it happens. The answer is printed whole at the end when standard output is no terminal.

    :param answers: an answer is expected; a call without a model gives none.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, language: str = "en", answers: bool = True) -> None:
        self._answers = answers
        self._live = answers and sys.stdout.isatty()
        self._quiet = quiet
        self._verbose = verbose
        self._talks = not quiet and (sys.stderr.isatty() or verbose)
        self.session = ""
        """The session that is watched; the answers of its sub-agents are not printed as they come."""
        self.idle = False
        """The person is typing: nothing moves on the terminal."""
        self._truncated = TRUNCATED.get(language, TRUNCATED["en"])
        self._said: list[str] = []
        """The pieces of the newest answer."""
        self._message = ""
        """The message that they belong to."""
        self._printed = ""
        """The last answer that was printed whole."""
        self._blocks: Any = None
        self._spinner: Any = None
        self._error: Event | None = None
        if self._live:
            self._blocks = MarkdownBlocks(self._clear)
        if not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":  # such a one takes no line away
            from .spinner import Spinner

            self._spinner = Spinner()

    def __call__(self, event: Event) -> None:
        if event.type in DELTAS:
            self._delta(event)
            return
        self._clear()
        self._settle_error(event)
        match event.type:
            case "error":
                self._error = event
            case "step.finish":
                self._flush()
            case "session.status" if event.data.get("answered") and event.parent is None:
                said = "".join(self._said)
                self.finish(said)
                self._printed = said
                self._note(event)
            case "plugin.failed" | "plugin.quarantined":
                self._warn(event)
            case _:
                self._note(event)
        if self._spinner and not self.idle:
            self._spinner.expect(event)

    def rest(self) -> None:
        """Let nothing move until a person has typed; not every command ends with an event that says so."""
        self.idle = True
        self.pause()

    def pause(self) -> None:
        """Let nothing move until the next event."""
        if self._spinner:
            self._spinner.stop()

    def finish(self, text: str) -> None:
        """Print the answer, if it was not printed as it came."""
        self.pause()
        self._flush()
        printed, self._printed = self._printed, ""  # the next answer may be the same
        if not self._live and text and text != printed:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
            sys.stdout.flush()

    def _flush(self) -> None:
        if self._blocks:
            self._blocks.flush()

    def _clear(self) -> None:
        if self._spinner:
            self._spinner.clear()

    def _delta(self, event: Event) -> None:
        """Take in more of an answer, of a thought, or of what a tool says while it runs."""
        text = event.data.get("text", "")
        if event.type == "text.delta" and event.parent is None:
            if event.data["message_id"] != self._message:
                self._message = event.data["message_id"]
                self._said = []
            self._said.append(text)
        match event.type:
            case "message.end" if self._blocks and event.data["finish"] == "retried" and event.data["kind"] == "text":
                self._clear()
                self._flush()
                _write("(the answer above broke off; it is asked for again, and what follows replaces it)")
                return
            case "message.start" | "message.end":
                return
            case "tool.delta":
                if self._verbose and not self._quiet:
                    _write(text.rstrip("\n"))
                elif self._spinner:
                    self._spinner.say(text)
                return
            case "text.delta" if self._blocks and (event.parent is None or event.session == self.session):
                self._blocks.feed(text)
                if self._spinner:
                    self._spinner.follow(self._blocks.pending)
            case _:
                pass
        if self._spinner and not self.idle:
            self._spinner.keep(event)

    def _note(self, event: Event) -> None:
        waits = event.type == "session.status" and event.data["status"] == "retry"
        told = (waits or event.type.endswith(".notice")) and not self._quiet
        if not (self._talks or told) or (event.type == "tool.result" and not self._answers):
            return
        if text := _remark(event, self._truncated):
            self._flush()
            _write(f"[{event.agent}] {text}" if event.parent and event.session != self.session else text)

    def _settle_error(self, event: Event) -> None:
        """Show the error before `event`, unless it is the one that ended the turn: that one is told with the result."""
        error, self._error = self._error, None
        if error is not None and (error.parent is not None or event.type != "turn.finish"):
            self._warn(error)

    def _warn(self, event: Event) -> None:
        if self._quiet:
            return
        data = event.data
        if event.type == "error":
            who = f"{event.agent}: " if event.parent and event.session != self.session else ""
            _write(f"moryflow: {who}{data.get('message', '')}")
            if data.get("next"):
                _write(f"  next: {data['next']}")
        elif event.type == "plugin.failed":
            place = f" ({data['file']}:{data.get('line', 1)})" if data.get("file") else ""
            said = " ".join(str(data["error"]).split())  # what a library raises may be a page
            hint = data.get("hint") or f"moryflow plugin info {data['plugin']}"
            where = data.get("hook") or data.get("stage")
            _write(f"moryflow: plugin {data['plugin']} failed in {where}{place}: {said}; {hint}")
        else:
            _write(f"moryflow: plugin {data['plugin']} is skipped in {data['hook']} for this session: {data['reason']}")


def _remark(event: Event, truncated: str) -> str:
    """Return what a person is told of `event` while the turn runs, or nothing."""
    data = event.data
    match event.type:
        case "tool.start" if data["state"] == "running":
            return visible(f"• {data['tool']} {_brief(data['args'])}")
        case "tool.result" if data["status"] != "ok":
            return f"  {told_result(data['status'], data['output'])}"
        case "tool.result" if data.get("diff"):
            return _changed(str(data["diff"]))
        case "tool.result" if data.get("truncated"):
            return f"  {truncated}: moryflow output show {data.get('output_id', '')}"
        case "session.status" if data["status"] == "retry":
            return f"  try {data['attempt']} in {data['in']} s: {data['reason']}"
        case "task.finish":
            return f"• {data['task']['agent']} {data['task']['session']} has ended: {data['task']['end_reason']}"
        case "session.status" if data.get("text"):
            return f"  {data['text']}"
        case kind if kind.startswith("plugin.") and kind.endswith(".notice") and data.get("text"):
            return "\n".join(f"  {first_line(line, 300)}" for line in str(data["text"]).splitlines()[:NOTICE_LINES])
        case "session.notice":
            return f"  {data['text']}"
        case "compaction" if data.get("state") == "done":
            said = [f"  the conversation was shortened: {data.get('tokens_before')} → {data.get('tokens_after')} tokens"]
            return "\n  ".join([*said, *data.get("remarks", ())])
        case _:
            return ""


def _changed(diff: str) -> str:
    """Return what a call changed, path first, marked so that nothing in it looks like a line of ours."""
    from .question_text import preview_lines, screen

    return "\n".join(preview_lines(diff, screen()[0], DIFF_LINES, ""))


def _write(text: str) -> None:
    sys.stderr.write(plain(text) + "\n")
    sys.stderr.flush()


def _brief(args: object) -> str:
    """Return the arguments of a call in one short line, a path before all others."""
    ordered = sorted(args.items(), key=lambda item: item[0] != "path") if isinstance(args, dict) else [("", args)]
    values = [value for _, value in ordered]
    text = " ".join(str(value) for value in values if isinstance(value, str | int)).strip()
    line = first_line(text, 100)
    return line if line == text or line.endswith("…") else f"{line} …"
