"""Questions to a person at a terminal: once, always, reject, stop, or why not."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from moryflow_sdk import Event, MoryflowError

from moryflow.approvals import OFFERED, WORDS, Answers, ApprovalReply, answer_of

from . import folded, plain, use_colour
from .question_text import QuestionText, question, show_whole
from .render import TerminalView
from .stdin import discard_typed, read_line
from .streams import stderr

_VIEW = ("v", "view", "show")
HELP = (
    "  once allows this call; always also stores what is shown above; reject refuses it and the agent continues; any other "
    "text refuses it for that reason; stop ends the turn; view shows all of the question"
)


class TerminalAsker:
    """Answers ``permission.asked`` by asking at the terminal, on standard error, one question at a time.

    A question that was answered elsewhere, or whose call or turn has ended, is withdrawn.

    :param view: shows the turn, and gets its events from here. Events during a question are shown after it, because they
        could push the question off the screen.
    :ivar read: shows the answers on offer and returns the next line, empty at the end of input; a conversation sets its own.
    :ivar show_whole: shows a text that is longer than the screen.
    """

    def __init__(self, answers: Answers, view: TerminalView) -> None:
        self._answers = answers
        self._view = view
        self._later: deque[Callable[[], None]] = deque()
        self.read: Callable[[str], Awaitable[str]] = read_answer
        self.show_whole: Callable[[str], Awaitable[None]] = show_whole
        self._turn = asyncio.Lock()
        self._open: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, Event] = {}
        self._only_shows = False
        self._on_screen = ""

    def __call__(self, event: Event) -> None:
        match event.type:
            case "permission.asked":
                self._asked[event.data["approval_id"]] = event
                self._present(event)
            case "permission.replied" | "permission.expired":
                self._withdraw(event.data["approval_id"])
            case "tool.result":
                self._withdraw_of(event, event.data["call_id"])
            case "turn.finish":
                self._withdraw_of(event)
        self.tell(partial(self._view, event))

    def tell(self, say: Callable[[], None]) -> None:
        """Call `say` now, or as soon as no question is on the screen."""
        self._later.append(say)
        self._catch_up()

    def _catch_up(self) -> None:
        while self._later and not self._on_screen:
            self._later.popleft()()

    def pause_asking(self) -> None:
        """From now on, show questions without reading an answer: the person may be typing. Open ones are shown again."""
        self._only_shows = True
        shown = list(self._open)
        for approval in shown:
            self._open.pop(approval).cancel()
            self._leave_line(approval)
        self._catch_up()
        for approval in shown:
            self._present(self._asked[approval])

    def resume_asking(self) -> None:
        """From now on, read answers to questions, also to those that were only shown meanwhile."""
        self._only_shows = False
        for approval, event in self._asked.items():
            if approval not in self._open:
                self._present(event)

    def _present(self, event: Event) -> None:
        approval = event.data["approval_id"]
        if self._only_shows:
            how = f"  answer with /reply {approval} {OFFERED}, or why not"
            shown = _question(event)
            stderr().write(f"{shown.text}{folded(how + (f'; /show {approval} shows all' if shown.cut else ''))}\n")
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
            self._leave_line(approval)

    def _leave_line(self, approval: str) -> None:
        """Begin a new line if the question was on the screen, so that no output follows it on its line."""
        if self._on_screen == approval:
            self._on_screen = ""
            stderr().write("\n")

    async def _ask(self, event: Event) -> None:
        async with self._turn:
            if sys.stdin.isatty() and not sys.stderr.isatty():  # it would be answered unseen
                stderr().write("moryflow: standard error is not a terminal, so nobody can see a question\n")
                await self._answers.nobody_left()
                return
            self._view.pause()
            self._on_screen = event.data["approval_id"]
            answer = await _answer(event, self.read, self.show_whole)
            self._on_screen = ""
            try:
                if answer is None:
                    await self._answers.nobody_left()  # first: the terminal may be gone, so that writing fails
                    stderr().write("\nmoryflow: standard input has ended, so nobody can be asked\n")
                else:
                    if self.read is not read_answer:  # the input erases the answers on offer and what was typed
                        said = f"  → {answer.reply}{f': {answer.message}' if answer.message else ''}"
                        stderr().write(f"{folded(plain(said))}\n")
                    await self._answers.reply(event.data["approval_id"], answer.reply, message=answer.message)
            except MoryflowError as error:
                stderr().write(f"{folded(plain(f'moryflow: {self._view.in_place(str(error))}'))}\n")
            self._catch_up()


def _question(event: Event) -> QuestionText:
    whose = f"{event.agent} {event.session}: " if event.parent else ""
    return question(event.data, event.data["approval_id"], whose)


async def read_answer(keys: str) -> str:
    """Show `keys` and return the line that is typed behind them, empty at the end of input."""
    stderr().write(keys)
    stderr().flush()
    return await read_line()


async def _answer(
    event: Event, read: Callable[[str], Awaitable[str]], show_all: Callable[[str], Awaitable[None]]
) -> ApprovalReply | None:
    """Ask until a line is an answer, and return it; ``None`` at the end of an input that is not a terminal."""

    def show() -> None:
        discard_typed()
        text = _question(event).text
        stderr().write(_coloured(text) if use_colour(sys.stderr) else text)
        stderr().flush()

    def show_again() -> None:
        show()
        if read is read_answer:
            stderr().write(_question(event).keys)
            stderr().flush()

    with _when_resumed(show_again):
        show()
        while True:
            line = await read(_question(event).keys)
            if not line and not sys.stdin.isatty():
                return None
            if not line:  # Ctrl-D ends no line
                stderr().write("\n")
                return ApprovalReply("stop")
            asked = _question(event)  # the terminal's size may have changed
            word = line.strip().lower().removeprefix("/")
            typed = word if word in WORDS else line.strip()
            answer = answer_of(typed)
            if word in _VIEW:
                await show_all(asked.whole)
            elif answer is None or typed == "?" or typed.startswith("/"):
                stderr().write(f"{folded(HELP)}\n")
            elif answer.reply == "always" and not asked.always:
                stderr().write(f"{folded('  always stores nothing for this call; once allows it')}\n")
            else:
                return answer


_STYLES = (("? ", "\x1b[1m"), ("  │ +", "\x1b[32m"), ("  │ -", "\x1b[31m"), ("  because: ", "\x1b[2m"))


def _coloured(text: str) -> str:
    """Return a question with colours for its head and its diff; the text is as clear without them."""
    lines, style = [], ""
    for line in text.split("\n"):
        if not line.startswith(("      ", "  ┊")):  # else the line continues the one before
            style = next((style for mark, style in _STYLES if line.startswith(mark)), "")
        lines.append(f"{style}{line}\x1b[0m" if style else line)
    return "\n".join(lines)


@contextmanager
def _when_resumed(show: Callable[[], None]) -> Iterator[None]:
    """Call `show` when the program resumes after Ctrl-Z: other output may have pushed the question up meanwhile."""
    if not sys.stdin.isatty():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCONT, show)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
