"""Titles of sessions: at once from the first words of the prompt, and then from a model, if one is configured for it.

Without ``agents.runtime.titles.model`` no request is made, and the first words stay the title. With it, the hidden agent
``title`` is asked during the first step. The turn does not wait for it, and a failure appears only in the run's record. The
hidden agent ``summary`` writes a summary when the user asks for one, and after each turn if ``summaryModel`` names a model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from moryflow_sdk import Command, Event, MoryflowError, NodeView, PluginContext, SlashResult, ToolError, Turn, hookimpl
from moryflow_sdk.support.settings import Settings


class TitleSettings(Settings):
    """How sessions get their titles.

    :ivar model: a cheap model that writes titles and ``session summary``, or ``session`` for the session's own model; by
        default a title is the first words of the prompt.
    :ivar enabled: if false, titles are the first words of the prompt.
    :ivar summary_model: a model that sums up the session after each turn, or ``session``; by default none. The summary is
        published as the event ``plugin.titles.summary``.
    """

    enabled: bool = True
    model: str | None = None
    summary_model: str | None = None


name = "titles"
services = ("complete", "emit", "history", "info")
config_model = TitleSettings
config_path = "agents.runtime.titles"


@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], Awaitable[None]]:
    """Cancel requests for titles when the host ends."""
    return cancel_writing


@hookimpl(events=("step.start", "turn.finish"), timeout=90.0)
async def event(event: Event, turn: Turn | None) -> None:
    """Set the title in the first step of the first turn; ask the model again in a later turn if no answer came in time.

    After a turn, write the summary if a model is named for it.
    """
    if turn is None or turn.purpose != "main":
        return
    if event.type == "turn.finish":
        if turn.config.summary_model:
            await _store_summary(turn)
    elif event.step == 1 and turn.config.enabled and turn.session_state.get("titled", "words") == "words":
        await name_session(turn)


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow session summary`` and ``/summary``."""
    return [Command("summary", "Have a model say in a few sentences what was done in a session.", summary_command, _slash)]


async def _slash(_: str, turn: Turn) -> SlashResult:
    return SlashResult(text=await summarize(turn))


# ---------------------------------------------------------------- Titles


# The requests for titles that are running, by session. Each ends within its deadline, and all end with the host.
WRITING: dict[str, asyncio.Task[None]] = {}

WORDS = 6
LETTERS = 60
# An answer with more words is a sentence and not a title, and its first six words would be no title either.
_TOO_MANY = 10

# Seconds to wait so that the turn sends its own request first; making a request takes some milliseconds.
_HEAD_START = 0.05

# How many characters of the prompt the model sees.
_SHOWN = 2000

# Marks of Markdown; an underscore within a name is not a mark.
_MARKS = re.compile(r"^\s*[#>]+\s|[`*\[\]]|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)")


async def name_session(turn: Turn) -> None:
    """Set the title from the first prompt, and ask the model for a better one if that is configured."""
    named = "titled" in turn.session_state
    if turn.session in WRITING or (named and not turn.config.model):
        return
    prompt = next((str(node.payload.get("text") or "") for node in await turn.history.path() if node.kind == "user"), "")
    title = title_from_prompt(prompt)
    turn.session_state["titled"] = "words"
    if title and not named:
        await turn.info.set_title(title, instead_of="")
    if turn.config.model and prompt.strip():
        task = WRITING[turn.session] = asyncio.create_task(_write(turn, prompt, title))
        task.add_done_callback(lambda _: WRITING.pop(turn.session, None))


async def cancel_writing() -> None:
    """Cancel the requests for titles in this event loop."""
    here = asyncio.get_running_loop()
    tasks = [task for task in WRITING.values() if task.get_loop() is here]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _write(turn: Turn, prompt: str, words: str) -> None:
    """Ask the model for a title, and set it in place of `words`; a failure changes nothing (it is in the run's record)."""
    model = None if turn.config.model == "session" else turn.config.model
    await asyncio.sleep(_HEAD_START)
    try:
        answer = await turn.complete(prompt[:_SHOWN], model=model, agent="title", timeout=30.0)
    except MoryflowError as error:
        turn.log.info("no title was written: %s", error)
        answer = ""
    title = clean_title(answer)
    turn.session_state["titled"] = "model" if title else "none"
    if title:
        await turn.info.set_title(title, instead_of=words)


def title_from_prompt(prompt: str) -> str:
    """Return the first words of a prompt, from its first line with a letter or digit, without Markdown marks."""
    line = next((line for line in prompt.splitlines() if re.search(r"\w", line)), "")
    return _short(_MARKS.sub("", line), cut="…")


def clean_title(answer: str) -> str:
    """Return the title in a model's answer: one line of two to six words, without quotes and full stop; empty if it is none.

    Small models answer the message instead of naming it, with a sentence; the words of the prompt are then a better title.
    """
    lines = [line for line in answer.strip().splitlines() if re.search(r"\w", line)]
    if len(lines) != 1 or len(lines[0].split()) > _TOO_MANY:
        return ""
    text = re.sub(r"^(title|titel)\s*:\s*", "", lines[0].strip(), flags=re.IGNORECASE)
    title = _short(text.strip("\"'“”«»` .*#"), cut="")
    return "" if title.isascii() and len(title.split()) < 2 else title


def _short(text: str, *, cut: str) -> str:
    """Return at most six words of `text`; a text without blanks is cut by letters."""
    words = text.split()
    kept = " ".join(words[:WORDS])
    if len(kept) > LETTERS:
        return kept[: LETTERS - 1].rstrip() + "…"
    return kept.rstrip(" ,;:.") + cut if len(words) > WORDS else kept


# ---------------------------------------------------------------- Summaries


# How many characters of a conversation the model sees: its first prompt, then as much of its end as fits.
LONGEST = 12_000

_OF_A_LINE = 1500


async def _store_summary(turn: Turn) -> None:
    """Sum up the session after a turn; a failure changes nothing (it is in the run's record)."""
    try:
        text = await summarize(turn, turn.config.summary_model)
    except MoryflowError as error:
        turn.log.info("no summary was written: %s", error)
        return
    turn.session_state["summary"] = text
    turn.emit("summary", text=text)


async def summarize(turn: Turn, model: str | None = None) -> str:
    """Return a summary of the turn's session by the hidden agent ``summary``.

    :param model: by default the one that writes titles.
    :raises ToolError: the session has no messages, or the answer is empty.
    :raises ModelError: the model failed; the run's record has that too.
    """
    text = transcript(await turn.history.path())
    if not text:
        raise ToolError("nothing was said in this session yet", code="empty", next_step="give a prompt first")
    model = model or turn.config.model
    model = None if model == "session" else model
    asked = f"<conversation>\n{text}\n</conversation>"
    answer = await turn.complete(asked, model=model, agent="summary", timeout=60.0)
    if not answer.strip():
        raise ToolError("the model's answer was empty", code="empty", next_step="moryflow session show")
    return answer.strip()


def transcript(path: Sequence[NodeView]) -> str:
    """Return a conversation as text; if it is long, the first prompt and as much of its end as fits."""
    lines = [line for node in path for line in _lines(node)]
    text = "\n".join(lines)
    return text if len(text) <= LONGEST else f"{lines[0]}\n…\n{text[len(lines[0]) - LONGEST :]}"


def _lines(node: NodeView) -> Iterator[str]:
    said = " ".join(str(node.payload.get("text") or "").split())[:_OF_A_LINE]
    if node.kind == "user" and said:
        yield f"person: {said}"
    elif node.kind == "assistant":
        calls = [str(call.get("name")) for call in node.payload.get("calls") or ()]
        if said:
            yield f"agent: {said}"
        if calls:
            yield f"agent used: {', '.join(calls)}"
    elif node.kind == "tool" and node.payload.get("status") != "ok":
        yield f"{node.payload.get('tool')}: {node.payload.get('status')}"
    elif node.kind == "tool" and (title := str(node.payload.get("title") or "")):
        yield f"{node.payload.get('tool')}: {title[:200]}"


def summary_command() -> Any:
    """Return the command ``moryflow session summary``. click is imported only here, so that other programs never load it."""
    import click

    @click.command("summary")
    @click.argument("session", required=False)
    @click.pass_obj
    def summary(context: Any, session: str | None) -> None:
        """Ask a model to say in a few sentences what was done in a session (default: the last one).

        The model of agents.runtime.titles.model is asked, or the session's own. The conversation stays as it is.
        """

        async def work(turn: Turn) -> tuple[str, str]:
            return turn.session, await summarize(turn)

        name, text = context.change(work, session=session)
        context.print({"v": 1, "type": "session.summary", "session": name, "text": text}, text=text)

    return summary
