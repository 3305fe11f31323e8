"""Tools of the person's own: Python files in ``~/.moryflow/tools``, off until they are switched on.

They are ordinary tools: permission, truncation and every hook apply. The first call of each asks, and says which file it
is. A file that names dependencies runs in a process and an environment of its own, so that it cannot break the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import Ask, Diagnostic, PluginContext, Ruling, Tool, ToolCall, Turn, hookimpl

if TYPE_CHECKING:
    from .environment import Environment

name = "external_tools"
services = ("artifacts", "code_loader", "complete", "emit", "files", "info", "rules")
config_path = "agents.runtime.tools.external"


@hookimpl(timeout=30)
async def tools(ctx: PluginContext) -> list[Tool | Diagnostic]:
    """Load every file by itself; one that is wrong is left out and named."""
    if ctx.config.get("enabled") is not True:
        return []
    folder = ctx.home / "tools"
    for off, why in ((ctx.profile == "remote", "under the profile remote"), (ctx.safe_mode, "in safe mode")):
        if off:
            return [Diagnostic(file=str(folder), code="external_tools_off", message=f"external tools are not loaded {why}")]
    from .loading import load_all

    return await load_all(ctx, folder)


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Ask | None:
    """Ask before the first call of a tool, and show the file it comes from."""
    if not _is_ours(call, turn):
        return None
    from .first_use import question

    return question(call, turn)


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None:
    """Remember that a person let a tool run, so that nobody is asked again."""
    if ruling.by == "user" and ruling.decision == "allow" and _is_ours(call, turn):
        from .first_use import remember

        remember(call, turn)


def _is_ours(call: ToolCall, turn: Turn) -> bool:
    return bool(call.source) and Path(call.source).parent == turn.home / "tools"


def tool_environment(file: Path, data_dir: Path) -> Environment | None:
    """For ``moryflow tool install``: return the environment that `file` needs, ``None`` when it needs none.

    :raises ToolError: what the file says about it cannot be read.
    """
    from .environment import environment_of

    return environment_of(file, data_dir)
