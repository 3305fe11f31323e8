"""The agents that come with Moryflow: ``build``, ``plan``, ``general``, ``explore``, and the hidden ``title`` and ``summary``.

They are Markdown files beside this one, read by the same parser as the user's agents. ``build`` has no prompt of its own: it
uses the built-in prompt, or the user's (``moryflow config prompt``).
"""

from __future__ import annotations

from pathlib import Path

from moryflow_sdk import Agent, Diagnostic, hookimpl
from moryflow_sdk.support.agent_files import read_agent

name = "agents"
NAMES = ("build", "plan", "general", "explore", "title", "summary")


@hookimpl
def agents() -> list[Agent | Diagnostic]:
    """Read the files; problems are reported like those of the user's files."""
    read = [read_agent(Path(__file__).with_name(f"{name}.md"), reserved=frozenset()) for name in NAMES]
    return [item for agent, wrong in read for item in ([agent] if agent else []) + wrong]
