"""The shell: the tool ``bash``, in a sandbox if one works here."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import (
    Ask,
    Command,
    Event,
    PluginContext,
    Ruling,
    SlashResult,
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
services = ("files", "info", "rules", "spawn")
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
    background: Annotated[bool, "return at once, without a time limit; bash_output shows what it prints"] = False,
) -> ToolResult:
    """Run a command with bash in the working folder.

    Standard input is empty, and no editor can be opened. What it started ends with it, also after `&`. Variables
    that look like keys or passwords are not passed on. In the sandbox only the working folder can be written and the network
    is off. Prefer the file and search tools for files.
    """
    opened = tuple(ctx.state.pop(_opened(ctx.call), ()))
    if background:
        from .background import begin

        return begin(ctx, opened)
    from .run import run

    return await run(ctx, float(timeout), opened)


def _background() -> Any:
    """Return the module of commands in the background, ``None`` while none was started: most sessions never need it."""
    return sys.modules.get(f"{__name__}.background")


def _has_background(turn: Turn) -> bool:
    module = _background()
    return module is not None and bool(module.commands_of(turn.session))


@tool(domain="read", timeout=660, offered_in=_has_background)
async def bash_output(
    id: Annotated[str, "the command in the background, such as bg_1a2b"],
    ctx: ToolContext,
    wait: Annotated[int, Between(0, 600), "seconds to wait for output, if there is none yet"] = 0,
    stop: Annotated[bool, "end the command first"] = False,
) -> str:
    """Show what a command in the background printed since the last look, and whether it still runs; or stop it."""
    from .background import look

    return await look(ctx.session, id, wait=wait, stop=stop)


@hookimpl(events=("session.deleted", "turn.finish"), timeout=30.0)
async def event(event: Event, turn: Turn | None) -> None:
    """End the commands of a session that is deleted, and of a sub-agent that has answered."""
    if (module := _background()) is None:
        return
    if event.type == "session.deleted":
        await module.end_of_sessions(*event.data.get("sessions", ()))
    elif turn is not None and turn.purpose == "child":
        await module.end_of_sessions(turn.session)


def _opened(call: ToolCall) -> str:
    """Return the key in the turn's state under which the files that a question named are kept until the call starts."""
    return f"opened {call.id}"


@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], Awaitable[None]]:
    """Settle commands whose host was killed while they ran; at the end, end those in the background."""
    if any((ctx.data_dir / "background").glob("*")):
        from .background import end_leftovers

        end_leftovers(ctx.data_dir / "background")
    if any((ctx.data_dir / "running").glob("*.json")):
        from .confine import settle_leftovers

        settle_leftovers(ctx.data_dir, ctx.log)

    async def close() -> None:
        if module := _background():
            await module.end_of_host(ctx.data_dir / "background")

    return close


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
    """Offer ``bash``, and ``bash_output`` while something runs in the background."""
    return [bash, bash_output]


@hookimpl
def commands() -> list[Command]:
    """Add ``/jobs``."""
    return [Command(name="jobs", help="list commands and sub-agents at work; /jobs ID stops a command", slash=_jobs)]


async def _jobs(rest: str, turn: Turn) -> SlashResult:
    from .background import commands_of, look

    if rest:
        return SlashResult(text=await look(turn.session, rest.strip(), wait=0, stop=True))
    rows = [f"{one.id}  {one.state}  {one.command}" for one in commands_of(turn.session)]
    rows += [f"{one.id}  the agent {one.agent} works  {one.title}" for one in turn.spawn.running()]
    return SlashResult(text="\n".join(rows) or "nothing runs in the background")
