"""``moryflow session summary``."""

from __future__ import annotations

from typing import Any

import click
from moryflow_sdk import Turn

from .summing import summed_up


@click.command("summary")
@click.argument("session", required=False)
@click.pass_obj
def summary(context: Any, session: str | None) -> None:
    """Ask a model to say in a few sentences what was done in a session (default: the last one).

    The model of agents.runtime.titles.model is asked, or the session's own. The conversation stays as it is.
    """

    async def work(turn: Turn) -> tuple[str, str]:
        return turn.session, await summed_up(turn)

    name, text = context.change(work, session=session)
    context.print({"v": 1, "type": "session.summary", "session": name, "text": text}, text=text)
