"""Read the text of an agent file, as the host reads the file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from moryflow_sdk import Agent, Diagnostic
from moryflow_sdk.support.agent_files import read_agent


def agent_of(data: bytes, name: str) -> tuple[Agent | None, list[Diagnostic]]:
    """The agent in a file with this name and content, and the problems in it."""
    with TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(data)
        agent, problems = read_agent(file)
    return agent and agent.replace(source=name), [problem.replace(file=name) for problem in problems]
