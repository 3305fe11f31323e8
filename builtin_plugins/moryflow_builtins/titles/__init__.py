"""Titles of sessions (S4.16): at once from the words of the first prompt, and from a model where one is configured for it.

No request is made that nobody asked for: without ``agents.runtime.titles.model`` the words are the title. With it the hidden
agent ``title`` is asked beside the first step. The turn does not wait; what goes wrong is seen in the run's record only.
"""

from __future__ import annotations

from moryflow_sdk import Event, Turn, hookimpl

from .settings import TitleSettings

name = "titles"
services = ("complete", "history", "info")
config_model = TitleSettings
config_path = "agents.runtime.titles"


@hookimpl(events="step.start")
async def event(event: Event, turn: Turn | None) -> None:
    """Name a session when its first turn takes its first step."""
    if event.type != "step.start" or event.step != 1 or turn is None or turn.purpose != "main":
        return
    if turn.config.enabled and "titled" not in turn.session_state:
        from .naming import name_session

        await name_session(turn)
