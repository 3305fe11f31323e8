"""The shell: the tool ``bash``, in a sandbox if one works here."""

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
services = ("files", "rules")
NAMESPACES = (
    "ask who runs this machine or container to allow user namespaces to everybody: sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"
)


def _targets(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (shell_target(args["command"], args.get("workdir")),)


@tool(domain="bash", targets=_targets, timeout=660, remarks=("description",))
async def bash(
    command: Annotated[str, "the command, as typed into bash"],
    ctx: ToolContext,
    timeout: Annotated[int, Between(1, 600), "seconds until it is stopped"] = 120,
    workdir: Annotated[str | None, "a folder inside the working folder to run it in"] = None,
    description: Annotated[str, "what it is for, in five words"] = "",
) -> ToolResult:
    """Run a command with bash in the working folder.

    Standard input is empty, and no editor can be opened. What it started ends with it, also in the background. Variables
    that look like keys or passwords are not passed on. In the sandbox only the working folder can be written and the network
    is off. Prefer the file and search tools for files.
    """
    from .run import run

    return await run(ctx, float(timeout), tuple(ctx.state.pop(_opened(ctx.call), ())))


def _opened(call: ToolCall) -> str:
    """Return the key in the turn's state under which the files that a question named are kept until the call starts."""
    return f"opened {call.id}"


@hookimpl
def plugin_start(ctx: PluginContext) -> None:
    """Settle commands whose host was killed while they ran."""
    if any((ctx.data_dir / "running").glob("*.json")):
        from .confine import settle_leftovers

        settle_leftovers(ctx.data_dir, ctx.log)


@hookimpl
async def tool_before(call: ToolCall, turn: Turn) -> None:
    """Find the sandbox before the first command is judged: this may start a program, and a gate must not wait for one."""
    if call.tool != bash.name:
        return
    import asyncio

    from moryflow_sdk.support.sandbox import find_sandbox, known_sandbox

    if known_sandbox() is None:
        await asyncio.to_thread(find_sandbox)


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None:
    """Keep the files that a question named; if the user allows the call, the sandbox leaves them open."""
    if call.tool != bash.name:
        return
    turn.state.pop(_opened(call), None)  # left by a decision before a crash
    if ruling.decision == "allow":
        asks = (verdict for _, verdict in ruling.verdicts if isinstance(verdict, Ask))
        if paths := [path for ask in asks for path in ask.opens]:
            turn.state[_opened(call)] = paths


def doctor() -> Iterator[tuple[str, str, str]]:
    """Yield a finding for ``moryflow doctor``: whether commands run in a sandbox here."""
    from moryflow_sdk.support.sandbox import find_sandbox, why_none_starts

    sandbox = find_sandbox()
    if sandbox is not None:
        yield ("ok", f"sandbox: {sandbox.program}; commands write only in the working folder", "")
        return
    text = "no sandbox: a command that you allow can do what you can"
    if reason := why_none_starts():
        yield "warning", f"{text}. {reason}", NAMESPACES
    else:
        yield "warning", text, "install bubblewrap, or moryflow[sandbox]"


@hookimpl
def tools() -> list[Tool]:
    """Offer ``bash``."""
    return [bash]
