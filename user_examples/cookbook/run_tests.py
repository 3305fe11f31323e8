"""A slash command that runs the tests, and lets the agent fix what fails.

Green tests cost no model call: only a failure is sent to the agent.

Try it: ``/run-tests`` in ``moryflow chat``. Words after the name are passed to the test command, for example ``/run-tests -x``.
"""

from __future__ import annotations

import asyncio
import shlex

from moryflow_sdk import Command, SlashResult, Turn, hookimpl
from pydantic import BaseModel


class Settings(BaseModel, frozen=True):
    """What ``plugins.run_tests`` may say."""

    command: list[str] = ["python3", "-m", "pytest", "-q"]


config_model = Settings


async def run_tests(text: str, turn: Turn) -> SlashResult:
    """Run the command in the vault; show what passed, send what failed."""
    command = [*turn.config.command, *shlex.split(text)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=turn.vault, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    printed = (await process.communicate())[0].decode("utf-8", "replace")
    if process.returncode == 0:
        return SlashResult(text=printed.strip().rpartition("\n")[2])
    return SlashResult(prompt=f"`{shlex.join(command)}` fails. Find out why and fix it:\n\n{printed[-4000:]}")


@hookimpl
def commands() -> list[Command]:
    """Offer it in ``chat`` only."""
    return [Command(name="run-tests", help="Run the tests; the agent fixes what fails.", slash=run_tests)]
