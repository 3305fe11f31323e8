"""Tools and prompts of MCP servers, which the user has configured and reviewed.

The file ``mcp.lock`` describes all tools that are offered, so that no server has to run before one of its tools is called. All
servers are connected to one helper process: if a server brings that down, only the running calls fail, not the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Command, ConfigError, Diagnostic, PluginContext, Tool, config_of, hookimpl
from moryflow_sdk.support.settings import ServersSettings

if TYPE_CHECKING:
    from .helper import Helper

name = "mcp"
services = ("artifacts", "emit")
config_path = "mcp"
config_model = ServersSettings


class _Helpers:
    """The helper process of each home. All generations share it; it ends with the last of them."""

    def __init__(self) -> None:
        self._users: dict[Path, int] = {}
        self._helpers: dict[Path, Helper] = {}

    def enter(self, home: Path) -> Callable[[], Any]:
        """Count a new generation; return the function to call when it ends."""
        self._users[home] = self._users.get(home, 0) + 1

        async def leave() -> None:
            self._users[home] -= 1
            helper = self._helpers.pop(home, None) if not self._users[home] else None
            if helper is not None:
                await helper.close()

        return leave

    def of(self, ctx: PluginContext) -> Callable[[], Helper]:
        """Return a function that returns the helper of a home; neither starts a process."""
        home, folder, environ = ctx.home, ctx.data_dir, ctx.environ

        def find() -> Helper:
            from .helper import Helper

            return self._helpers.setdefault(home, Helper(folder, environ))

        return find


_helpers = _Helpers()


@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], Any]:
    """Watch ``mcp.lock`` for reviews by other processes; end the helper process with the last generation."""
    if config_of(ctx, ServersSettings).servers:
        from .lock import FILE

        ctx.watch(ctx.home / FILE, lambda _: ctx.invalidate())
    return _helpers.enter(ctx.home)


@hookimpl
def tools(ctx: PluginContext) -> Sequence[Tool | Diagnostic]:
    """Offer the tools in ``mcp.lock``."""
    if not config_of(ctx, ServersSettings).servers:
        return []
    from .catalog import tools_of

    return list(tools_of(ctx, _helpers.of(ctx)))


@hookimpl
def commands(ctx: PluginContext) -> Sequence[Command]:
    """Add ``moryflow mcp``, and the prompts of servers as ``/server:prompt``."""
    own = Command(name="mcp", help="Add, review and test MCP servers.", cli=_group)
    if not config_of(ctx, ServersSettings).servers:
        return [own]
    from .lock import usable_servers

    try:
        servers = [server for server in usable_servers(ctx) if server.pin and server.pin.prompts]
    except ConfigError:
        servers = []  # the hook `tools` reports the error
    if not servers:
        return [own]
    from .prompts import commands_of

    return [own, *commands_of(servers, ctx, _helpers.of(ctx))]


def _group() -> Any:
    from .cli import group

    return group
