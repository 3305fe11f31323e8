"""What the commands ask of the configuration and of servers: one is started for a question, and ended with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from moryflow_sdk import CommandContext, ConfigError, ToolError, Turn, config_of
from moryflow_sdk.support.settings import ServerSettings, ServersSettings
from moryflow_sdk.support.texts import did_you_mean

from .helper import Helper, spec_of
from .lock import Server, servers_of
from .review import Listing

CONNECT_SECONDS = 120.0
Show = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


async def settings_now(turn: Turn) -> ServersSettings:
    """Return the settings of the servers."""
    return config_of(turn, ServersSettings)


async def servers_now(turn: Turn) -> list[Server]:
    """Return the servers that are configured."""
    return servers_of(config_of(turn, ServersSettings), turn.home)


def find_server(context: CommandContext, name: str) -> Server:
    """Return the server of a name.

    :raises ConfigError: there is none.
    """
    servers = {server.name: server for server in context.run(servers_now)}
    if name not in servers:
        hint = did_you_mean(name, servers)
        raise ConfigError(f"there is no MCP server {name!r}{hint}", next_step="moryflow mcp list")
    return servers[name]


async def query_server(
    turn: Turn,
    name: str,
    server: ServerSettings,
    request: Mapping[str, Any],
    more: Mapping[str, Any] = {"connect_seconds": CONNECT_SECONDS},
    show: Show | None = None,
) -> Any:
    """Start a server and return what it answers.

    :raises ToolError: it does not work.
    """
    from asyncio import timeout

    helper = Helper(turn.data_dir, _environ())
    try:
        spec = {**spec_of(name, server, _environ(), turn.vault, turn.data_dir), **more}
        async with timeout(more["connect_seconds"] + 30):
            return await helper.request({**request, "server": spec}, ask=show)
    except TimeoutError:
        raise ToolError(f"{name} did not answer within {more['connect_seconds']:g} s", code="timeout") from None
    finally:
        await helper.close()


async def list_server(turn: Turn, name: str, server: ServerSettings) -> Listing:
    """Start a server and return what it says of itself."""
    return Listing(await query_server(turn, name, server, {"do": "list"}))


def ask_server(context: CommandContext, name: str, server: ServerSettings, request: Mapping[str, Any], *more: Any) -> Any:
    """Return what a server answers.

    :raises ConfigError: it does not work.
    """
    try:
        return context.run(lambda turn: query_server(turn, name, server, request, *more))
    except ToolError as error:
        step = error.next_step.removeprefix("a person runs: ") or f"moryflow mcp test {name}"
        raise ConfigError(f"{name}: {error.message}", next_step=step) from error


def _environ() -> Mapping[str, str]:
    import os

    return os.environ
