"""The shell: ``bash``, in a sandbox where one works (S0.36)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import TargetRequest, Tool, ToolContext, ToolResult, file_target, hookimpl, shell_target, tool
from pydantic import Field

name = "shell"
services = ("files", "rules")


def _targets(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    workdir = args.get("workdir")
    return (shell_target(args["command"]), *([file_target(workdir)] if workdir else []))


@tool(domain="bash", targets=_targets, timeout=660)
async def bash(
    command: Annotated[str, "the command, as typed into bash"],
    ctx: ToolContext,
    timeout: Annotated[int, Field(ge=1, le=600, description="seconds until it is stopped")] = 120,
    workdir: Annotated[str | None, "a folder inside the working folder to run it in"] = None,
    description: Annotated[str, "what it is for, in five words"] = "",
) -> ToolResult:
    """Run a command with bash in the working folder.

    Standard input is empty. What it started ends with it, also in the background. Variables that look like keys or
    passwords are not passed on. In the sandbox only the working folder can be written and the network is off. Prefer the
    file and search tools for files.
    """
    from .running import run

    return await run(ctx, command, float(timeout))


def doctor() -> Iterator[tuple[str, str, str]]:
    """Say for ``moryflow doctor`` whether commands are confined here."""
    from moryflow_sdk.sandbox import find_sandbox

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
