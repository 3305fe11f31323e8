"""A server that somebody else names, such as an editor: shown and asked about like one that is added by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from moryflow_sdk import ToolError, Turn, config_of
from moryflow_sdk.support.settings import ServerSettings, ServersSettings, wrong_name, wrong_values

from .lock import Server, configured_as, store_pin
from .queries import list_server, servers_now
from .review import Listing, accepted, listing_text, server_text

Ask = Callable[[str, str], Awaitable[bool]]
"""Asks a person: the title of a question and all that is shown → whether they said yes to just that."""
Configure = Callable[[Sequence[str], Any], Any]


async def offer(name: str, entry: Mapping[str, Any], turn: Turn, ask: Ask, configure: Configure) -> str:
    """Have a person asked whether a server is started, then whether its tools are offered; it is stored after both.

    :returns: what became of it; empty where it is known already.
    """
    faults = [text for text in (wrong_name(name), *(fault for _, fault in wrong_values(entry))) if text]
    if "${" in json.dumps(entry):  # whoever wrote it would choose which of the person's variables a server is given
        faults.append("it names a variable of your environment, which you can give it only by yourself")
    if faults:
        return f"MCP server {name!r}: {faults[0]}; it is left out"
    entry = {**entry, **_by_name(entry)}
    server = ServerSettings.model_validate({**entry, "args": tuple(entry.get("args", ()))})
    if name in config_of(turn, ServersSettings).servers:
        return await _known(turn, name, server)
    left_out = f"the MCP server {name} is left out"
    written = f"{server_text(name, server)}\nValues of variables and headers are written into your configuration."
    if not await ask(f"Start the MCP server {name}", f"{written}\nAdd it, and start it once to see its tools?"):
        return left_out
    try:
        listing = await list_server(turn, name, server)
    except ToolError as error:
        if error.code == "mcp_login":
            configure(("mcp", "servers", name), entry)
        step = error.next_step.removeprefix("a person runs: ")
        return f"{left_out}: {error.message}{f'. Next: {step}' if step else ''}"
    if not await ask(f"Offer the tools of {name}", f"{listing_text(listing)}\nOffer these tools?"):
        return left_out
    return _stored(turn, name, entry, server, listing, configure)


def _stored(
    turn: Turn, name: str, entry: Mapping[str, Any], server: ServerSettings, listing: Listing, configure: Configure
) -> str:
    pin = accepted(name, server, listing)
    store_pin(turn.home, name, pin)
    configure(("mcp", "servers", name), dict(entry))
    return f"the MCP server {name} is added: {len(Server(name, server, pin).offered)} tools, from the next prompt on"


async def _known(turn: Turn, name: str, server: ServerSettings) -> str:
    """Say of a name that is taken whether it is this very server."""
    there = next(each for each in await servers_now(turn) if each.name == name)
    if configured_as(name, there.settings) != configured_as(name, server):
        return f"the MCP server {name} is configured otherwise already, and used like that. Next: moryflow mcp show {name}"
    return (
        ""
        if there.state in ("reviewed", "off")
        else f"the MCP server {name} is {there.state}. Next: moryflow mcp review {name}"
    )


def _by_name(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of an entry, by name where this process has the same value: then the value is not copied."""
    given: Mapping[str, str] = entry.get("env") or {}
    return (
        {"env": {key: f"${{{key}}}" if os.environ.get(key) == value else value for key, value in given.items()}}
        if given
        else {}
    )
