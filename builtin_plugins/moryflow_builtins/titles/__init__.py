"""Titles of sessions: at once from the words of the first prompt, and from a model where one is configured for it.

No request is made that nobody asked for: without ``agents.runtime.titles.model`` the words are the title. With it the hidden
agent ``title`` is asked beside the first step. The turn does not wait; what goes wrong is seen in the run's record only.
A summary is written when a person asks for one, by the hidden agent ``summary``.
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

    :ivar model: a cheap model that writes titles, or ``session`` for the session's own model; by default a title is the first
        words of the prompt. The model also writes ``session summary``; by default the session's own model does.
    :ivar enabled: false: titles are the first words of the prompt.
    """

    enabled: bool = True
    model: str | None = None


name = "titles"
services = ("complete", "history", "info")
config_model = TitleSettings
config_path = "agents.runtime.titles"


@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], Awaitable[None]]:
    """Cancel the titles that are being written when the host ends."""
    return cancel_writing


@hookimpl(events="step.start")
async def event(event: Event, turn: Turn | None) -> None:
    """Name a session when its first turn takes its first step; ask again in a later one if no answer came in time."""
    if event.type != "step.start" or event.step != 1 or turn is None or turn.purpose != "main":
        return
    if turn.config.enabled and turn.session_state.get("titled", "words") == "words":
        await name_session(turn)


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow session summary`` and ``/summary``."""
    return [Command("summary", "Have a model say in a few sentences what was done in a session.", summary_command, _slash)]


async def _slash(_: str, turn: Turn) -> SlashResult:
    return SlashResult(text=await summarize(turn))


# ---------------------------------------------------------------- Titles


WRITING: dict[str, asyncio.Task[None]] = {}
"""Titles being written, by session. Each ends within its deadline, and all of them with the host."""

WORDS = 6
LETTERS = 60
_TOO_MANY = 10
"""An answer of more words is a sentence, not a title: its first six would be a torn one."""

_BEHIND = 0.05
"""Seconds that the turn has to send its own request first; making one costs some milliseconds, then both only wait."""

_SHOWN = 2000
"""Characters of the prompt that the model is shown."""

_MARKS = re.compile(r"^\s*[#>]+\s|[`*\[\]]|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)")
"""Marks of Markdown; an underscore within a name is not a mark."""


async def name_session(turn: Turn) -> None:
    """Set the title from the first prompt, and ask the model for a better one where that is configured."""
    named = "titled" in turn.session_state
    if turn.session in WRITING or (named and not turn.config.model):
        return
    prompt = next((str(node.payload.get("text") or "") for node in await turn.history.path() if node.kind == "user"), "")
    title = title_from_prompt(prompt)
    turn.session_state["titled"] = "words"
    if title and not named:
        await turn.info.set_title(title)
    if turn.config.model and prompt.strip():
        task = WRITING[turn.session] = asyncio.create_task(_write(turn, prompt))
        task.add_done_callback(lambda _: WRITING.pop(turn.session, None))


async def cancel_writing() -> None:
    """Cancel the titles that are being written in this event loop."""
    here = asyncio.get_running_loop()
    tasks = [task for task in WRITING.values() if task.get_loop() is here]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _write(turn: Turn, prompt: str) -> None:
    """Ask for a title; one that is not a title is not taken, and a failure changes nothing (it is in the run's record)."""
    model = None if turn.config.model == "session" else turn.config.model
    await asyncio.sleep(_BEHIND)
    try:
        answer = await turn.complete(prompt[:_SHOWN], model=model, agent="title", timeout=30.0)
    except MoryflowError as error:
        turn.log.info("no title was written: %s", error)
        answer = ""
    title = clean_title(answer)
    turn.session_state["titled"] = "model" if title else "none"
    if title:
        await turn.info.set_title(title)


def title_from_prompt(prompt: str) -> str:
    """Return the first words of a prompt: of its first line that says something, without marks of Markdown."""
    line = next((line for line in prompt.splitlines() if re.search(r"\w", line)), "")
    return _short(_MARKS.sub("", line), cut="…")


def clean_title(answer: str) -> str:
    """Return a model's title: one line of at most six words, without quotes and full stop; empty where it wrote none.

    Small models answer the message instead of naming it; what they say is a sentence, and the prompt's own words are better.
    """
    lines = [line for line in answer.strip().splitlines() if re.search(r"\w", line)]
    if len(lines) != 1 or len(lines[0].split()) > _TOO_MANY:
        return ""
    text = re.sub(r"^(title|titel)\s*:\s*", "", lines[0].strip(), flags=re.IGNORECASE)
    return _short(text.strip("\"'“”«»` .*#"), cut="")


def _short(text: str, *, cut: str) -> str:
    """Return at most six words; texts without blanks between words are cut by letters."""
    words = text.split()
    kept = " ".join(words[:WORDS])
    if len(kept) > LETTERS:
        return kept[: LETTERS - 1].rstrip() + "…"
    return kept.rstrip(" ,;:.") + cut if len(words) > WORDS else kept


# ---------------------------------------------------------------- Summaries


LONGEST = 12_000
"""Characters of a conversation that the model is shown: its first prompt, then as much of its end as fits."""

_OF_A_LINE = 1500


async def summarize(turn: Turn) -> str:
    """Return what the hidden agent ``summary`` says of the turn's session.

    :raises ToolError: nothing was said in it, or no answer came.
    :raises ModelError: the model failed; the run's record says so too.
    """
    text = transcript(await turn.history.path())
    if not text:
        raise ToolError("nothing was said in this session yet", code="empty", next_step="give a prompt first")
    model = None if turn.config.model == "session" else turn.config.model
    asked = f"<conversation>\n{text}\n</conversation>"
    answer = await turn.complete(asked, model=model, agent="summary", timeout=60.0)
    if not answer.strip():
        raise ToolError("the model had nothing to say", code="empty", next_step="moryflow session show")
    return answer.strip()


def transcript(path: Sequence[NodeView]) -> str:
    """Return a conversation as text, cut in the middle where it is long."""
    lines = [line for node in path for line in _lines(node)]
    if not lines:
        return ""
    kept: list[str] = []
    room = LONGEST - len(lines[0])
    for line in reversed(lines[1:]):
        room -= len(line) + 1
        if room < 0:
            kept.append("…")
            break
        kept.append(line)
    return "\n".join([lines[0], *reversed(kept)])


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
    """Return ``moryflow session summary``. Only commands load click: a host in another program never does."""
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
