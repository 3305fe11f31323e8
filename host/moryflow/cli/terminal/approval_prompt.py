"""Questions to the user at a terminal: once, always, refuse, stop, or why not; and those of `ask_user`, with choices."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from moryflow_sdk import Event, MoryflowError
from moryflow_sdk.support.texts import visible

from moryflow.approvals import OFFERED, WORDS, Answers, ApprovalReply, answer_of

from . import folded, plain, use_colour
from .diffs import painted
from .question_text import QuestionText, question
from .render import TerminalView
from .stdin import LETTERS, discard_typed, keys_at_once, read_key
from .streams import stderr

_VIEW = ("v", "view", "show")
# Keys that change what *always* stores, and whether it is then exactly what is asked about.
_CHANGES = {"e": True, "w": False}
_SAID = {"reject": "refuse", "preset": "from now on"}
WHY = "  why not? Enter sends it > "
HELP = (
    "  once allows this call; always also stores what is shown above; refuse lets the agent go on without it; any other "
    "text refuses it for that reason; stop ends the turn; view shows all of the question"
)


class TerminalAsker:
    """Answers ``permission.asked`` by asking at the terminal, on standard error, one question at a time.

    A question that was answered elsewhere, or whose call or turn has ended, is withdrawn.

    :param view: shows the turn, and gets its events from here. Events during a question are shown after it, because they
        could push the question off the screen.
    :ivar read: shows the answers on offer and returns the letter of one as soon as it is pressed alone, or else the next line,
        with its end; empty at the end of input. A conversation sets its own.
    """

    def __init__(self, answers: Answers, view: TerminalView) -> None:
        self._answers = answers
        self._view = view
        self._later: deque[Callable[[], None]] = deque()
        self.read: Callable[[str], Awaitable[str]] = read_answer
        self._turn = asyncio.Lock()
        self._open: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, Event] = {}
        self.numbers: dict[str, int] = {}
        """The numbers by which the user calls the questions of this conversation."""
        self._only_shows = False
        self._on_screen = ""

    def __call__(self, event: Event) -> None:
        match event.type:
            case "permission.asked":
                self._asked[event.data["approval_id"]] = event
                self.numbers[event.data["approval_id"]] = len(self.numbers) + 1
                self._present(event)
            case "permission.replied" | "permission.expired":
                self._withdraw(event.data["approval_id"])
            case "tool.result":
                self._withdraw_of(event, event.data["call_id"])
            case "turn.finish":
                self._withdraw_of(event)
        self.tell(partial(self._view, event))

    @property
    def waiting(self) -> list[str]:
        """The ids of the questions that wait for an answer."""
        return [*self._asked]

    def tell(self, say: Callable[[], None]) -> None:
        """Call `say` now, or as soon as no question is on the screen."""
        self._later.append(say)
        self._catch_up()

    def _catch_up(self) -> None:
        while self._later and not self._on_screen:
            self._later.popleft()()

    def pause_asking(self) -> None:
        """From now on, show questions without reading an answer: the user may be typing. Open ones are shown again."""
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
            name = f"{self.numbers[approval]} " if len(self._asked) > 1 else ""  # which one, is clear where there is only one
            how = f"  answer with /reply {name}{OFFERED}, or why not"
            shown = _question(event)
            stderr().write(f"{shown.text}{folded(how + (f'; /show {name}shows all' if shown.cut else ''))}\n")
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
            questions = event.data.get("questions")
            above = "" if self._view.is_fresh else "\n"
            answer = await (answer_choices(questions, self.read, above) if questions else _answer(event, self.read, above))
            self._on_screen = ""
            try:
                if answer is None:
                    await self._answers.nobody_left()  # first: the terminal may be gone, so that writing fails
                    stderr().write("\nmoryflow: standard input has ended, so nobody can be asked\n")
                else:
                    # The input erases the answers on offer and what was typed; choices were said one by one.
                    if self.read is not read_answer and not (questions and answer.reply == "once"):
                        said = f"  → {_SAID.get(answer.reply, answer.reply)}{f': {answer.message}' if answer.message else ''}"
                        stderr().write(f"{folded(plain(said))}\n")
                    await self._answers.reply(event.data["approval_id"], answer.reply, message=answer.message)
            except MoryflowError as error:
                stderr().write(f"{folded(plain(f'moryflow: {self._view.in_place(str(error))}'))}\n")
            self._catch_up()


def _question(event: Event, exact: bool = False) -> QuestionText:
    return question(event.data, f"{event.agent}: " if event.parent else "", exact=exact)


def _coloured(text: str, event: Event) -> str:
    rows = text.split("\n")
    pieces = painted(rows, str((*event.data["targets"], "")[0]))
    bold = [row.startswith("    ") and not row.startswith("      ") for row in rows]
    shown = ([(row, "\x1b[1m")] if is_bold else one for row, is_bold, one in zip(rows, bold, pieces, strict=True))
    return "\n".join("".join(f"{style}{piece}\x1b[0m" if style else piece for piece, style in one) for one in shown)


async def read_answer(keys: str) -> str:
    """Show `keys`, the answers on offer, and return the letter of one or a line, as :attr:`TerminalAsker.read` does."""
    with keys_at_once() if LETTERS.search(keys) else nullcontext():
        stderr().write(keys)
        stderr().flush()
        return await read_key("".join(LETTERS.findall(keys)))


async def _answer(event: Event, read: Callable[[str], Awaitable[str]], above: str) -> ApprovalReply | None:
    """Ask until an answer is given, and return it; ``None`` at the end of an input that is not a terminal.

    :param above: what separates the question from what stands above it.
    """
    exact = False

    discard_typed()
    text = above + _question(event).text.removeprefix("\n")
    stderr().write(_coloured(text, event) if use_colour(sys.stderr) else text)
    stderr().flush()
    while True:
        line = await read(_question(event, exact).keys)
        if not line and not sys.stdin.isatty():
            return None
        if not line:  # Ctrl-D ends no line
            stderr().write("\n")
            return ApprovalReply("stop")
        asked = _question(event, exact)  # the terminal's size may have changed
        word = line.strip().lower().removeprefix("/")
        if word in _VIEW:
            stderr().write(asked.whole)
        elif word in _CHANGES and asked.other:
            exact = _CHANGES[word]
            stderr().write(f"{_question(event, exact).always}\n")
        elif line == "r":
            return ApprovalReply("reject", (await read(WHY)).strip())
        elif answer := _answer_in(line.strip(), word, asked, exact=exact):
            return answer
        else:
            nothing = word in ("a", "always") and not asked.always
            stderr().write(f"{folded('  always stores nothing for this call; once allows it' if nothing else HELP)}\n")


def _answer_in(typed: str, word: str, asked: QuestionText, *, exact: bool) -> ApprovalReply | None:
    answer = answer_of({"f": "preset"}.get(word, word) if word in (*WORDS, "f") else typed)
    if answer is None or typed == "?" or (word not in (*WORDS, "f") and typed.startswith("/")):
        return None
    if answer.reply in ("always", "exact"):
        return ApprovalReply("exact" if exact else answer.reply) if asked.always else None
    return answer if answer.reply != "preset" or asked.preset else None


async def answer_choices(
    questions: Sequence[Mapping[str, Any]], read: Callable[[str], Awaitable[str]], above: str
) -> ApprovalReply | None:
    """Ask one question after the other, and return the answers as the reply; ``None`` at the end of a pipe.

    :param above: what separates the first from what stands above it.
    """
    answers: dict[str, str | list[str]] = {}
    for number, asked in enumerate(questions, 1):
        labels = [str(option["label"]) for option in asked["options"]]
        several = bool(asked.get("multiSelect"))
        stderr().write(
            (above if number == 1 else "\n") + _shown(asked, f" ({number} of {len(questions)})" if len(questions) > 1 else "")
        )
        offered = "numbers with commas, " if several else "".join(f"[{place}] " for place, _ in enumerate(labels, 1))
        answer: str | list[str] = ""
        while not answer:
            line = await read(f"  {offered}or your own words > ")
            if not line:
                return ApprovalReply("stop") if sys.stdin.isatty() else None
            answer = _chosen(line.strip(), labels, several=several)
        said = ", ".join(answer) if isinstance(answer, list) else answer
        stderr().write(f"{folded(f'  → {visible(said)}')}\n")
        answers[str(asked["question"])] = answer
    return ApprovalReply("once", json.dumps(answers, ensure_ascii=False))


def _shown(question: Mapping[str, Any], place: str) -> str:
    bold, dim, end = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if use_colour(sys.stderr) else ("", "", "")
    header = f"{visible(str(question.get('header') or ''))}{place}".strip()
    asked = folded(f"  {visible(str(question['question']))}")
    lines = [*([f"{dim}? {header}{end}"] if header else []), f"{bold}{asked}{end}"]
    for number, option in enumerate(question["options"], 1):
        about = visible(str(option.get("description") or ""))
        lines.append(folded(f"  {number}  {visible(str(option['label']))}"))
        lines += [f"{dim}{folded(f'     {about}')}{end}"] if about else []
    return "\n".join(lines) + "\n"


def _chosen(typed: str, labels: Sequence[str], *, several: bool) -> str | list[str]:
    numbers = typed.replace(",", " ").split()
    if numbers and all(one.isdecimal() and 0 < int(one) <= len(labels) for one in numbers) and (several or len(numbers) == 1):
        chosen = [labels[int(one) - 1] for one in numbers]
        return chosen if several else chosen[0]
    return typed
