"""The shell: ``bash``, in a sandbox where one works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import (
    Ask,
    PluginContext,
    Ruling,
    TargetRequest,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Turn,
    hookimpl,
    shell_target,
    tool,
)
from moryflow_sdk.field_types import Between

name = "shell"
services = ("files", "rules", "terminal")
TRIED = "sandbox"
"""A file of the plugin's that says which sandbox was tried; see :func:`moryflow_sdk.support.sandbox.find_sandbox`."""
WHOLE = 200
"""Characters up to which a command of one line is shown whole as the target of its call."""


def _targets(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (shell_target(args["command"], args.get("workdir")),)


def _preview(ctx: ToolContext) -> str:
    """Return a command of several lines line by line."""
    command = str(ctx.call.args["command"])
    return command if "\n" in command or len(command) > WHOLE else ""


@tool(domain="bash", targets=_targets, timeout=660, preview=_preview, remarks=("description",))
async def bash(
    command: Annotated[str, "the command, as typed into bash"],
    ctx: ToolContext,
    timeout: Annotated[int, Between(1, 600), "seconds until it is stopped"] = 120,
    workdir: Annotated[str | None, "a folder inside the working folder to run it in"] = None,
    description: Annotated[str, "what it is for, in five words"] = "",
) -> ToolResult:
    """Run a command with bash in the working folder.

    Standard input is empty. What it started ends with it, also in the background. Variables that look like keys or
    passwords are not passed on. In the sandbox only the working folder can be written and the network is off. Prefer the
    file and search tools for files.
    """
    from .run import run

    return await run(ctx, float(timeout), tuple(ctx.state.pop(_opened(ctx.call), ())))


def _opened(call: ToolCall) -> str:
    """Return the key in the turn's state of the files that a question named, from the decision to the start."""
    return f"opened {call.id}"


@hookimpl
def plugin_start(ctx: PluginContext) -> None:
    """Look after commands whose host was killed while they ran."""
    if any((ctx.data_dir / "running").glob("*.json")):
        from .confine import settle_leftovers

        settle_leftovers(ctx.data_dir, ctx.log)


@hookimpl
async def tool_before(call: ToolCall, turn: Turn) -> None:
    """Find the sandbox before the first command is judged: it may start a program, for which no gate waits."""
    if call.tool != bash.name:
        return
    import asyncio

    from moryflow_sdk.support.sandbox import find_sandbox, known_sandbox

    if known_sandbox() is None:
        await asyncio.to_thread(find_sandbox, turn.data_dir / TRIED)


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None:
    """Remember which files a question named: with an answer the sandbox leaves them open."""
    if call.tool != bash.name:
        return
    turn.state.pop(_opened(call), None)  # of a decision before a crash
    if ruling.decision == "allow":
        asks = (verdict for _, verdict in ruling.verdicts if isinstance(verdict, Ask))
        if paths := [path for ask in asks for path in ask.opens]:
            turn.state[_opened(call)] = paths


def doctor() -> Iterator[tuple[str, str, str]]:
    """Say for ``moryflow doctor`` whether commands are confined here."""
    from moryflow_sdk.support.sandbox import find_sandbox

    sandbox = find_sandbox()
    if sandbox is not None:
        yield ("ok", f"sandbox: {sandbox.program}; commands write only in the working folder", "")
    else:
        yield (
            "warning",
            "no sandbox: a command that you allow can do what you can",
            "install bubblewrap, or moryflow[sandbox]",
        )


@hookimpl
def tools() -> list[Tool]:
    """Offer ``bash``."""
    return [bash]
