"""An agent that reads and never writes.

Copy it to ``~/.moryflow/plugins/my_agents.py``; then ``moryflow run --agent critic``.
"""

from __future__ import annotations

from moryflow_sdk import Agent, ModelSettings, PluginContext, hookimpl

CRITIC = Agent(
    id="critic",
    description="Finds what is wrong with a text, and changes nothing.",
    prompt="You review texts. Name the three worst problems, with their places. Never rewrite.",
    settings=ModelSettings(temperature=0.1),
    tools=("read", "grep", "ls"),
)


@hookimpl
def agents(ctx: PluginContext) -> list[Agent]:
    """It is listed by ``moryflow agent list`` beside the user's own."""
    return [CRITIC]
