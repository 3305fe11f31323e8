"""The user's own tools: Python files and programs in ``~/.moryflow/tools``.

A file is loaded once the user allowed it (``moryflow tool allow``), as long as its content is the one that was allowed.
With ``enabled`` set to true every file of the folder is loaded, and edits too; with false, none. That is the only consent:
loaded, they are ordinary tools, to which permission, truncation and every hook apply.
"""

from __future__ import annotations

from moryflow_sdk import Diagnostic, PluginContext, Tool, hookimpl

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
