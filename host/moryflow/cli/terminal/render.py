"""A turn on a terminal: the answer as Markdown while it streams, tool calls with their results, and remarks.

Only a few lines of a tool's output are shown: its beginning, its end if that tells the result, a diff, or only its size.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from moryflow_sdk import Event, MoryflowError
from moryflow_sdk.events import DELTAS
from moryflow_sdk.support.texts import visible

from moryflow.hooks.threads import deadlines_lifted

from . import brief, cut, failure_line, first_line, folded, is_dumb, plain, use_colour
from .diffs import painted
from .question_text import preview_lines, screen
from .spinner import Awaited, Spinner
from .streams import restore, stderr, stdout
from .tool_output import BOLD, DIFF_LINES, DIM, OUTPUT_LINES, RED, failed, output_lines, rows_in

# The word for an output that was cut, by interface language.
TRUNCATED = {"en": "truncated", "zh": "已截断"}

# How many exchanges of a resumed conversation are shown, and how many lines of each answer.
RECALLED, RECALLED_LINES = 2, 12
# How many cut outputs are kept to be shown whole.
REMEMBERED = 20
# How many lines of a plugin's notice are shown, for example of a change that the user is asked to agree to.
NOTICE_LINES = 60


class TerminalView:
    """Shows a turn as it happens. The answer is printed whole at the end when standard output is not a terminal.

    :ivar answers: an answer is expected; a call without a model gives none.
    :param chat: the user types below, and can ask to see a cut output whole.
    """

    def __init__(
        self, *, quiet: bool = False, verbose: bool = False, language: str = "en", answers: bool = True, chat: bool = False
    ) -> None:
        self.answers = answers
        self._live = answers and stdout().isatty()
        self._quiet = quiet
        self._verbose = verbose
        self._chat = chat
        self._on_terminal = sys.stderr.isatty() and not quiet
        self._shows_remarks = self._on_terminal or (verbose and not quiet)
        self._colours = use_colour(sys.stderr)
        self.session = ""
        """The session that is watched; the answers of its sub-agents are not printed as they come."""
        self.idle = False
        """The user is typing, so nothing may move on the terminal."""
        self.typing = False
        """The input of a conversation is shown while a turn runs; it shows what the turn waits for, so the spinner must not."""
        self._truncated = TRUNCATED.get(language, TRUNCATED["en"])
        self._pieces: list[str] = []
        """The pieces of the newest answer."""
        self._reasoning: list[str] = []
        """The pieces of the reasoning that streams, shown above the input and folded to a line when it ends."""
        self._reasoned_since = 0.0
        self._message = ""
        """The id of the message that the pieces belong to."""
        self._printed = ""
        """The last answer that was printed whole."""
        self._markdown: Any = None
        self._awaited = Awaited()
        self._spinner: Spinner | None = None
        self._error: Event | None = None
        self._running: dict[tuple[str, str], str] = {}
        """The text of each running call, by session and call id: two sub-agents may give two calls the same id."""
        self._last_printed = ""
        """What was printed last in this turn: ``call`` or ``answer``; an empty line stands between the two."""
        self._cut: deque[CutOutput] = deque(maxlen=REMEMBERED)
        """Outputs that were cut; the last is the next to be shown whole."""
        self.whole: Callable[[str], Awaitable[str]] | None = None
        """Returns a stored output that was too long for the model, by its id."""
        self.in_place: Callable[[str], str] = str
        """Returns a next step as it is typed here; a conversation has slash commands for some."""
        self._totals = Totals()
        if self._live:
            from .markdown import MarkdownStream

            self._markdown = MarkdownStream(colour=use_colour(stdout()))
        if self._on_terminal and not (is_dumb() or deadlines_lifted()):  # a debugger, or one that cannot erase a line
            self._spinner = Spinner(self._awaited, self._answer_end)

    def __call__(self, event: Event) -> None:
        self._awaited.note(event)
        if event.type in DELTAS:
            self._delta(event)
        else:
            self._clear()
            self._fold_reasoning()
            error, self._error = self._error, None
            if error is not None and (error.parent is not None or event.type != "turn.finish"):
                self._warn(error)  # the error that ended the turn is shown with the result
            self._totals.note(event)
            self._other(event)
        if self._spinner and not self.idle and not self.typing:
            self._spinner.go_on() if self._awaited.seconds or self._awaited.line() else self._spinner.stop()

    def _other(self, event: Event) -> None:
        match event.type:
            case "error":
                self._error = event
            case "step.finish" | "permission.asked":
                self._flush()
            case "session.status" if event.data.get("answered") and event.parent is None:
                text = "".join(self._pieces)
                self.finish(text)
                self._printed = text
                self._note(event)
            case "plugin.failed" | "plugin.quarantined":
                self._warn(event)
            case "compaction" if event.data.get("state") == "failed" and event.data.get("trigger") != "demand":
                self._warn(event)
            case _:
                self._note(event)

    def rest(self) -> None:
        """Stop the spinner until the user has typed a line: not every command ends with an event that stops it."""
        self.idle = True
        self.pause()

    def begin(self) -> None:
        """Forget what the turn before was waiting for."""
        self._awaited.forget()

    def pause(self) -> None:
        """Stop the spinner until the next event."""
        if self._spinner:
            self._spinner.stop()

    def finish(self, text: str) -> None:
        """Print the answer, unless it was printed while it streamed."""
        restore()
        self.pause()
        self._flush()
        printed, self._printed = self._printed, ""  # the next answer may be the same
        if not self._live and text and text != printed:
            stdout().write(text if text.endswith("\n") else text + "\n")
            stdout().flush()

    def _answer_end(self) -> str:
        return self._markdown.pending[-_FOLLOWED:].rsplit("\n", 1)[-1] if self._markdown else ""

    def live_lines(self, rows: int) -> list[str]:
        """Return the lines above the input: the end of the streaming answer, and what the turn waits for."""
        awaited = self._awaited.line()
        tail = self._markdown.tail(rows - 1) if self._markdown else []
        if self._reasoning:
            tail = [f"  {row}" for row in rows_in(plain("".join(self._reasoning)), screen()[0] - 3)][-rows // 2 :]
        return [*tail, *self._awaited.printed(), *([awaited] if awaited else [])]

    def totals(self) -> None:
        """Print the tokens, cost and time of the turn that has ended."""
        self._last_printed = ""
        if self._on_terminal and (text := self._totals.line()):
            self._write(text, DIM)
        self._totals.begin()

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was printed in this turn yet, below the empty line that follows the prompt in chat."""
        return self._chat and not self._last_printed

    @property
    def totals_so_far(self) -> Totals:
        """What the conversation has taken since it was opened here."""
        return self._totals

    def show_change(self, text: str) -> None:
        """Print what would be done, and below an empty line the diff of it."""
        said, _, diff = text.partition("\n\n")
        self._write(said)
        self._write_rows(painted(preview_lines(diff, screen()[0], 10 * DIFF_LINES, "")))

    def note(self, text: str) -> None:
        """Print a remark, dim."""
        self._write(f"  {text}", DIM)

    def recall(self, exchanges: Sequence[tuple[str, str]]) -> None:
        """Show the last exchanges, prompt and answer, of a conversation that is resumed."""
        from .markdown import render

        if exchanges[:-RECALLED]:
            before = len(exchanges) - RECALLED
            self._write(f"… {before} exchange{'s' if before != 1 else ''} before; /tree shows them", DIM)
        for asked, answered in exchanges[-RECALLED:]:
            quote = f"> {asked}".split("\n")
            rest = [f"… +{len(quote) - OUTPUT_LINES:,} lines"] if len(quote) > OUTPUT_LINES + 1 else quote[OUTPUT_LINES:]
            self._write("\n" + "\n  ".join([*quote[:OUTPUT_LINES], *rest]), DIM)
            lines = render(answered, colour=self._colours).rstrip("\n").split("\n")
            cut = [f"… {len(lines) - RECALLED_LINES} lines before"] if len(lines) > RECALLED_LINES else []
            stderr().write("\n".join([*cut, *lines[-RECALLED_LINES:]]) + "\n")

    async def show_last(self) -> None:
        """Show the newest cut output whole; the next call shows the one before it."""
        call, output, stored = self._cut[-1] if self._cut else CutOutput("nothing was cut", "", "")
        self._cut.rotate()
        if stored and self.whole is not None:
            with suppress(MoryflowError):  # no longer stored: show what the model read of it
                output = await self.whole(stored)
        stderr().write(plain(f"• {call}\n{output}".rstrip("\n") + "\n"))

    def _flush(self) -> None:
        if self._markdown:
            self._print_answer(self._markdown.flush())

    def _print_answer(self, text: str) -> None:
        if text:
            self._clear()
            self._gap("answer")
            stdout().write(text)
            stdout().flush()

    def _clear(self) -> None:
        if self._spinner:
            self._spinner.clear()

    def _delta(self, event: Event) -> None:
        text = event.data.get("text", "")
        if event.type != "reasoning.delta" and self._is_ours(event):
            self._fold_reasoning()
        if event.type == "text.delta" and event.parent is None:
            if event.data["message_id"] != self._message:
                self._message = event.data["message_id"]
                self._pieces = []
            self._pieces.append(text)
        match event.type:
            case "message.end" if self._markdown and event.data["finish"] == "retried" and event.data["kind"] == "text":
                self._flush()
                self._write("(the answer above broke off; it is asked for again, and what follows replaces it)")
            case "message.end" if self._markdown and event.data["kind"] == "text" and self._is_ours(event):
                self._flush()
            case "reasoning.delta" if self._chat and self._is_ours(event):
                self._reasoned_since = self._reasoned_since if self._reasoning else time.monotonic()
                self._reasoning.append(text)
            case "tool.delta" if self._verbose and not self._quiet:
                self._write(text.rstrip("\n"))
            case "text.delta" if self._markdown and self._is_ours(event):
                self._print_answer(self._markdown.feed(text))
            case _:
                pass

    def _fold_reasoning(self) -> None:
        """Print one dim line in place of the reasoning that has ended; Ctrl-O shows all of it."""
        text, self._reasoning = "".join(self._reasoning).strip(), []
        if text:
            self._gap("call")
            took = f"thought for {max(time.monotonic() - self._reasoned_since, 1):.0f} s"
            self._cut.append(CutOutput(took, text, ""))
            self._write(f"∴ {took} · Ctrl-O shows it", DIM)

    def _gap(self, kind: str) -> None:
        """Leave an empty line between the calls and the answers of a turn."""
        if self._last_printed not in ("", kind):
            self._write("")
        self._last_printed = kind

    def _is_ours(self, event: Event) -> bool:
        return event.parent is None or event.session == self.session

    def _note(self, event: Event) -> None:
        waits = event.type == "session.status" and event.data["status"] == "retry"
        is_notice = (waits or event.type.endswith(".notice")) and not self._quiet
        if not (self._shows_remarks or is_notice) or (event.type == "tool.result" and not self.answers):
            return
        whose = f"[{event.agent}] " if event.parent and event.session != self.session else ""
        if self._on_terminal and event.type in ("tool.start", "tool.result"):
            self._note_call(event, whose)
        elif text := _remark(event, self._truncated):
            self._flush()
            self._write(f"{whose}{text}")

    def _note_call(self, event: Event, whose: str) -> None:
        """Show a call when it has ended, so that calls that run at once do not mix their lines."""
        data = event.data
        if event.type == "tool.start":
            self._running[event.session, data["call_id"]] = visible(f"{data['tool']} {brief(data['args'])}".rstrip())
            return
        self._flush()
        if data["tool"] == "ask_user" and self._chat and data["status"] == "ok":
            self._last_printed = "call"  # the question and its answer stand there already
            return
        self._gap("call")
        indent = "    " if whose else ""
        shown = self._running.pop((event.session, data["call_id"]), data["tool"])
        took = f" · {data['ms'] / 1000:.1f} s" if data.get("ms", 0) >= 100 else ""
        head = f"{indent}{whose}• "
        room = screen()[0] - 1 - len(head) - len(took)
        name, _, args = cut(shown, room).partition(" ")
        colour = RED if failed(data) else ""
        pieces = [[(head.removesuffix("• "), ""), ("• ", colour), (name, BOLD), (f" {args}".rstrip(), ""), (took, DIM)]]
        found = output_lines(data, screen()[0] - len(indent) - 3, self._hint(data))
        if data.get("diff") and data["status"] == "ok":
            pieces += ([(indent, ""), *row] for row in painted(line for line, _ in found.lines))
        else:
            pieces += ([(folded(plain(f"{indent}{line}")), style)] for line, style in found.lines)
        self._write_rows(pieces)
        if found.rest:
            self._cut.append(CutOutput(shown, found.rest, str(data.get("output_id") or "")))

    def _hint(self, data: Mapping[str, Any]) -> str:
        truncated = bool(data.get("truncated"))
        if self._chat:
            return f"{self._truncated} · Ctrl-O shows all" if truncated else "Ctrl-O shows all"
        return f"{self._truncated}: moryflow output show {data.get('output_id', '')}" if truncated else ""

    def _warn(self, event: Event) -> None:
        if self._quiet:
            return
        data = event.data
        if event.type == "error":
            who = f"{event.agent}: " if event.parent and event.session != self.session else ""
            self._write(f"moryflow: {who}{data.get('message', '')}")
            if data.get("next"):
                self._write(f"  next: {self.in_place(data['next'])}")
        elif event.type == "plugin.failed":
            place = f" ({data['file']}:{data.get('line', 1)})" if data.get("file") else ""
            text = " ".join(str(data["error"]).split())  # an error of a library may fill a page
            hint = data.get("hint") or f"moryflow plugin info {data['plugin']}"
            where = data.get("hook") or data.get("stage")
            self._write(f"moryflow: plugin {data['plugin']} failed in {where}{place}: {text}; {hint}")
        elif event.type == "compaction":
            self._write(f"moryflow: the older part of the conversation could not be summarised: {data.get('reason', '')}")
            self._write(f"  next: {self.in_place('moryflow session compact -m MODEL')}")
        else:
            self._write(f"moryflow: plugin {data['plugin']} is skipped in {data['hook']} for this session: {data['reason']}")

    def _write(self, text: str, style: str = "") -> None:
        self._write_rows([[(folded(plain(text)), style)]])

    def _write_rows(self, rows: Iterable[Sequence[tuple[str, str]]]) -> None:
        coloured = self._colours
        shown = (
            "".join(f"{style}{plain(text)}\x1b[0m" if text and style and coloured else plain(text) for text, style in pieces)
            for pieces in rows
        )
        stderr().write("".join(f"{row}\n" for row in shown))
        stderr().flush()


# How many characters of the streaming answer stand beside the spinner.
_FOLLOWED = 70


class CutOutput(NamedTuple):
    """A tool's output of which only a part was shown.

    :ivar stored: the id of the stored whole output if it was too long for the model, else empty.
    """

    call: str
    output: str
    stored: str


class Totals:
    """Tokens, cost and time of a turn; for the conversation its `cost`, and the tokens in its `context`."""

    def __init__(self) -> None:
        self.cost, self.context = 0.0, 0
        self.begin()

    def begin(self) -> None:
        """Count the next turn."""
        self._began = time.monotonic()
        self._input = self._output = 0
        self._cost: float | None = None

    def note(self, event: Event) -> None:
        if event.parent is not None:
            return
        if event.type == "turn.start":
            self._began = time.monotonic()
        elif event.type == "step.finish":
            self._input += event.data["usage"]["input"]
            self._output += event.data["usage"]["output"]
            self.context = event.data["usage"]["input"] + event.data["usage"]["output"]
        elif event.type == "turn.finish":
            self._cost = event.data.get("cost")
            self.cost += self._cost or 0.0

    def line(self) -> str:
        """Return the totals in one line; empty if no model was called."""
        if not self._input and not self._output:
            return ""
        cost = f" · ${self._cost:.4f}" if self._cost else ""
        return f"{self._input:,} tokens in, {self._output:,} out{cost} · {time.monotonic() - self._began:.1f} s"


def _remark(event: Event, truncated: str) -> str:
    data = event.data
    match event.type:
        case "tool.start" if data["state"] == "running":
            return visible(f"• {data['tool']} {brief(data['args'])}")
        case "tool.result" if data["status"] != "ok":
            return f"  {failure_line(data['status'], data['output'])}"
        case "tool.result" if data.get("diff"):
            return "\n".join(preview_lines(str(data["diff"]), screen()[0], DIFF_LINES, ""))
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
            lines = [f"  the conversation was shortened: {data.get('tokens_before')} → {data.get('tokens_after')} tokens"]
            return "\n  ".join([*lines, *data.get("remarks", ())])
        case _:
            return ""
