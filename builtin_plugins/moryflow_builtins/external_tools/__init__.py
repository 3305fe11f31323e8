"""The user's own tools: Python files and programs in ``~/.moryflow/tools``.

A file is loaded once the user allowed it (``moryflow tool allow``), as long as its content is the one that was allowed.
With ``enabled`` set to true every file of the folder is loaded, and edits too; with false, none. That is the only consent:
loaded, they are ordinary tools, to which permission, truncation and every hook apply. A file with dependencies runs in a
separate process and environment, so that it cannot break the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import Diagnostic, PluginContext, Tool, hookimpl

if TYPE_CHECKING:
    from .environment import Environment


name = "external_tools"
services = ("artifacts", "code_loader", "complete", "emit", "files", "info")
config_path = "agents.runtime.tools.external"


@hookimpl
async def tools(ctx: PluginContext) -> list[Tool | Diagnostic]:
    """Load every file separately; a file that is wrong is left out and reported."""
    enabled = ctx.config.get("enabled")
    if enabled is False:
        return []
    folder = ctx.home / "tools"
    why = "under the profile remote" if ctx.profile == "remote" else "in safe mode" if ctx.safe_mode else ""
    if why:
        note = Diagnostic(file=str(folder), code="external_tools_off", message=f"external tools are not loaded {why}")
        return [note] if enabled else []
    from .loader import load_all

    return await load_all(ctx, folder, only_allowed=not enabled)


def tool_environment(file: Path, data_dir: Path) -> Environment | None:
    """Return the environment that `file` needs, or ``None``; for ``moryflow tool install``.

    :raises ToolError: the file cannot be read, or its block with dependencies is not valid.
    """
    from .environment import environment_of

    return environment_of(file, data_dir)
