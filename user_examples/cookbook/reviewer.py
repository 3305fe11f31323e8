"""A sub-agent that reviews.

An agent is a bad judge of the code that it wrote. The reviewer has a separate context, only tools that read, and a low
temperature. Other agents start it with ``task``.

Try it: ``moryflow run "@reviewer Is there an error in main.py?"``.
"""

from __future__ import annotations

from moryflow_sdk import Agent, ModelSettings, Rule, hookimpl

PROMPT = """You review code and change nothing. Name each error with file and line, say what happens because of it, and how you
would check it. If there is none, say so in one sentence. Praise nothing."""


@hookimpl
def agents() -> list[Agent]:
    """Offer the agent."""
    return [
        Agent(
            id="reviewer",
            description="Reviews code that was written, and finds errors in it; changes nothing.",
            mode="subagent",
            prompt=PROMPT,
            tools=("read", "grep", "glob", "ls"),
            rules=(Rule(domain="read", pattern="**/.env*", decision="deny"),),
            settings=ModelSettings(temperature=0.1),
            max_steps=20,
        )
    ]
