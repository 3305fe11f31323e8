"""A temperature for each agent, also for those of others.

Your own agents set the temperature in their files; this plugin is for agents that a plugin or Moryflow brings.

Try it: ``moryflow hook fire chat.params '{"params": {"temperature": 1}}'``.
"""

from __future__ import annotations

from moryflow_sdk import ChatParams, Turn, hookimpl
from pydantic import BaseModel


class Settings(BaseModel, frozen=True):
    """What ``plugins.agent_temperature`` may say."""

    temperatures: dict[str, float] = {"plan": 0.7, "build": 0.1}


config_model = Settings


@hookimpl
def chat_params(params: ChatParams, turn: Turn) -> ChatParams | None:
    """Change the temperature, leave the rest."""
    wanted = turn.config.temperatures.get(turn.agent.id)
    return None if wanted is None else params.replace(temperature=wanted)
