"""Titles of sessions: at once from the words of the first prompt, and from a model where one is configured for it.

No request is made that nobody asked for: without ``agents.runtime.titles.model`` the words are the title. With it the hidden
agent ``title`` is asked beside the first step. The turn does not wait; what goes wrong is seen in the run's record only.
A summary is written when a person asks for one, by the hidden agent ``summary``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from moryflow_sdk import Command, Event, PluginContext, SlashResult, Turn, hookimpl
from moryflow_sdk.support.settings import Settings


class TitleSettings(Settings):
    """How sessions get their titles.

    :ivar model: a cheap model that writes them, ``session`` for the session's own; without one, the prompt's first words.
        It writes the summaries that a person asks for, too; without one, the session's own does.
    """

    enabled: bool = True
    model: str | None = None


name = "titles"
services = ("complete", "history", "info")
config_model = TitleSettings
config_path = "agents.runtime.titles"


@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], Awaitable[None]]:
    """Let no title outlive the host."""
    from .title import cancel_writing

    return cancel_writing


@hookimpl(events="step.start")
async def event(event: Event, turn: Turn | None) -> None:
    """Name a session when its first turn takes its first step; ask again in a later one if no answer came in time."""
    if event.type != "step.start" or event.step != 1 or turn is None or turn.purpose != "main":
        return
    if turn.config.enabled and turn.session_state.get("titled", "words") == "words":
        from .title import name_session

        await name_session(turn)


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow session summary`` and ``/summary``."""
    return [Command("summary", "Have a model say in a few sentences what was done in a session.", _cli, _slash)]


def _cli() -> object:
    from .summary import summary

    return summary


async def _slash(_: str, turn: Turn) -> SlashResult:
    from .summary import summarize

    return SlashResult(text=await summarize(turn))
