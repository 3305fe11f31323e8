"""The configured servers, each with what was accepted of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from moryflow_sdk import PluginContext, config_of
from moryflow_sdk.support.settings import ServerSettings, ServersSettings

from .lock import Pin, configured_as, read_lock

CONTEXT = "moryflow_context"
"""The keyword under which a call is given its context."""
CALL_SECONDS = 300.0


class Server:
    """A server that is configured, with what was accepted of it."""

    def __init__(self, name: str, settings: ServerSettings, pin: Pin | None) -> None:
        self.name, self.settings, self.pin = name, settings, pin

    @cached_property
    def state(self) -> str:
        """``off``, ``new``, ``changed`` (it is configured otherwise than it was reviewed) or ``reviewed``."""
        if not self.settings.enabled:
            return "off"
        if self.pin is None:
            return "new"
        return "reviewed" if self.pin.configured == configured_as(self.name, self.settings) else "changed"

    @property
    def offered(self) -> list[Mapping[str, Any]]:
        """The tools that may be offered."""
        if self.pin is None or self.state != "reviewed":
            return []
        return [each for each in self.pin.tools if not self.pin.why_withheld(each)]

    @property
    def has_resources(self) -> bool:
        """Whether it said at its review that it has any."""
        return self.pin is not None and self.state == "reviewed" and bool(self.pin.server.get("resources"))

    @property
    def tokens(self) -> int:
        """About how many tokens its tools cost when the model is told of all."""
        return sum(each.get("tokens", 0) for each in self.offered)


def servers_of(settings: ServersSettings, home: Path) -> list[Server]:
    """Return the configured servers.

    :raises ConfigError: the pins cannot be read.
    """
    pins = read_lock(home) if settings.servers else {}
    return [Server(name, server, pins.get(name)) for name, server in settings.servers.items()]


def usable_servers(ctx: PluginContext) -> list[Server]:
    """Return the servers that may be used here: none in safe mode, and in the profile `remote` those with an address.

    :raises ConfigError: the pins cannot be read.
    """
    if ctx.safe_mode:
        return []
    servers = servers_of(config_of(ctx, ServersSettings), ctx.home)
    return [server for server in servers if ctx.profile != "remote" or server.settings.url is not None]
