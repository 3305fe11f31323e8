"""Titles of sessions: at once from the words of the first prompt, and from a model where one is configured for it.

No request is made that nobody asked for: without ``agents.runtime.titles.model`` the words are the title. With it the hidden
agent ``title`` is asked beside the first step. The turn does not wait; what goes wrong is seen in the run's record only.
A summary is written when a person asks for one, by the hidden agent ``summary``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from moryflow_sdk import Command, Event, PluginContext, SlashResult, Turn, hookimpl

from .settings import TitleSettings

name = "titles"
services = ("complete", "history", "info")
config_model = TitleSettings
config_path = "agents.runtime.titles"

WRITING: dict[str, asyncio.Task[None]] = {}
"""Titles being written, by session. Each ends within its deadline, and all of them with the host."""


@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], Awaitable[None]]:
    """Let no title outlive the host."""
    return _stop


async def _stop() -> None:
    here = asyncio.get_running_loop()
    tasks = [task for task in WRITING.values() if task.get_loop() is here]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


@hookimpl(events="step.start")
async def event(event: Event, turn: Turn | None) -> None:
    """Name a session when its first turn takes its first step; ask again in a later one if no answer came in time."""
    if event.type != "step.start" or event.step != 1 or turn is None or turn.purpose != "main":
        return
    if turn.config.enabled and turn.session_state.get("titled", "words") == "words":
        from .naming import name_session

        await name_session(turn)


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow session summary`` and ``/summary``."""
    return [Command("summary", "Have a model say in a few sentences what was done in a session.", _cli, _slash)]


def _cli() -> object:
    from .cli import summary

    return summary


async def _slash(_: str, turn: Turn) -> SlashResult:
    from .summing import summed_up

    return SlashResult(text=await summed_up(turn))
