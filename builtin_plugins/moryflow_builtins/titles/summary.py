"""``moryflow session summary`` and ``/summary``: what was done in a session, in a few sentences of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from moryflow_sdk import NodeView, ToolError, Turn

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
