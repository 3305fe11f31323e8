"""``moryflow run --until COMMAND``: turn after turn, until a command of the user's succeeds.

The command is the user's own words, so it is run as typed, without a question, in the folder of the session. What it prints
goes to the model. One budget is for all rounds. A run that was killed goes on with ``moryflow run -c --until …``: the session
has it all.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from moryflow.cli.terminal import say

if TYPE_CHECKING:
    from moryflow.kernel.outcome import RunOptions
    from moryflow.runtime.session import Session
    from moryflow.runtime.turn_result import TurnResult

ROUNDS = 8
# Seconds after which the command is stopped, and counts as failed.
TIMEOUT = 1800.0
# Characters of the end of its output that the model reads.
MAX_OUTPUT = 16_000


class Goal(NamedTuple):
    """The command that must succeed, and how many turns may be spent on it."""

    command: str
    rounds: int = ROUNDS


async def until(
    goal: Goal, session: Session, options: RunOptions, result: TurnResult, show: Callable[[TurnResult], None]
) -> TurnResult:
    """Go on after the first turn until the command succeeds; return the last turn's result.

    :param show: shows the result of a turn that is not the last.
    """
    spent = result.cost or 0.0
    for number in range(1, goal.rounds + 1):
        if result.exit_code not in (0, 4):  # stopped, out of budget, no model: another turn would end the same way
            return result
        code, output = await run_command(goal.command, session.row.vault)
        said = "succeeded" if code == 0 else f"failed with exit code {code}"
        say(f"moryflow: round {number} of {goal.rounds}: {goal.command} {said}")
        if code == 0:
            return result
        if number == goal.rounds:
            break
        if options.max_cost is not None:
            if spent >= options.max_cost:
                return result._replace(end_reason="budget", unmet="")
            options = options._replace(max_cost=options.max_cost - spent)
        show(result)
        text = f"The command `{goal.command}` {said}. The end of what it printed:\n\n{output}\n\nGo on until it succeeds."
        result = await session.prompt(text, options=options, typed=0)
        spent = result.cost or 0.0
    return result._replace(unmet=f"{goal.command} still fails after {goal.rounds} rounds")


async def run_command(command: str, folder: str) -> tuple[int, str]:
    """Run a command of the user's in a shell; return its exit code and the end of its output. Cancelling ends it."""
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            printed, _ = await process.communicate()
    except TimeoutError:
        return 124, f"it was stopped after {TIMEOUT:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode or 0, printed.decode("utf-8", "replace")[-MAX_OUTPUT:]
