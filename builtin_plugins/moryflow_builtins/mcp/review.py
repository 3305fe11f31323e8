"""The review of a server: the text that the user reads before accepting it, and the pin that is stored afterwards.

For a review the server is started, asked, and ended again.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from moryflow_sdk import CommandContext, ConfigError, ToolError, Turn, config_of
from moryflow_sdk.support.settings import ServerSettings, ServersSettings, wrong_name, wrong_values
from moryflow_sdk.support.texts import did_you_mean, visible

from .definitions import AT_THE_TOP, FIELDS, differences, hides, pinned_tool, problem_of
from .helper import Helper, spec_of
from .lock import Pin, Server, configured_as, servers_of
from .prompts import prompt_lines

# The longest difference that is shown.
MAX_LINES = 200


class Listing:
    """The answer of a server about itself: identity, tools and prompts as they are now."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.identity: Mapping[str, Any] = answer["identity"]
        self.server: Mapping[str, Any] = answer["server"]
        self.tools: Sequence[Mapping[str, Any]] = answer["tools"]
        self.prompts: Sequence[Mapping[str, Any]] = answer["prompts"]
        self.beyond: int = answer["beyond"]

    def changes(self, pin: Pin) -> dict[str, str]:
        """Return the differences from what was accepted: tool, or ``/prompt`` → why."""
        tools = differences(pin.by_name, self.tools)
        was, now = ({f"/{each.get('name')}": each for each in prompts} for prompts in (pin.prompts, self.prompts))
        fresh = {name: "new" if name not in was else "changed" for name in now if was.get(name) != now[name]}
        return {**tools, **fresh, **{name: "the server has it no longer" for name in was if name not in now}}


def server_text(name: str, server: ServerSettings) -> str:
    """Return the description of a server for people: its program or address, and what is passed to it."""
    if server.url is not None:
        sent = f"; sent along: {', '.join(sorted(server.headers))}" if server.headers else ""
        return visible(f"{name} is at {server.url}{sent}")
    runs = visible(shlex.join([server.command or "", *server.args]))
    given = [key if value == f"${{{key}}}" else f"{key}, as configured" for key, value in sorted(server.env.items())]
    variables = f"\n  variables: {visible(', '.join(given))}" if given else ""
    where = f"\n  folder: {visible(server.cwd)} of the vault" if server.cwd else ""
    return f"{name} runs: {runs}{variables}{where}\n  It runs as you, outside of the sandbox."


def accepted(name: str, server: ServerSettings, listing: Listing) -> Pin:
    """Return the pin that is stored if the user accepts `listing`."""
    return Pin(
        configured=configured_as(name, server),
        shown="",
        identity=listing.identity,
        server=listing.server,
        tools=tuple(pinned_tool(each, problem_of(each, listing.tools)) for each in listing.tools),
        prompts=tuple(listing.prompts),
        beyond=listing.beyond,
    )


def listing_text(listing: Listing) -> str:
    """Return the tools of a server for people, with every word that a model will read."""
    said = listing.server
    lines = [f"It says that it is {said.get('name')} {said.get('version')} (protocol {said.get('protocol')}), and has:"]
    for each in listing.tools:
        problem = problem_of(each, listing.tools)
        unseen = " [invisible characters, which are left out]" if hides(each) else ""
        about = f"withheld: {problem}" if problem else str(each.get("description") or each.get("title") or "").strip()
        said = "\n".join([about, *([] if problem else _arguments(each))]).replace("\n", "\n    ")
        lines.append(f"  {visible(str(each.get('name'))[:200])}{unseen}\n    {said}")
    if not listing.tools:
        lines = [f"{lines[0]} no tools"]
    if listing.beyond:
        lines.append(f"  and {listing.beyond} more tools, which are not offered: there are too many")
    if listing.prompts:
        lines += ["prompts, which you run as slash commands:", *prompt_lines(listing.prompts)]
    return "\n".join(lines)


def _arguments(definition: Mapping[str, Any]) -> Iterator[str]:
    schema: Mapping[str, Any] = definition["inputSchema"]
    properties = schema.get("properties")
    for name, each in properties.items() if isinstance(properties, Mapping) else ():
        yield f"- {visible(name)}: {json.dumps(each, ensure_ascii=False)}"
    for key in AT_THE_TOP:
        if key not in ("type", "properties") and schema.get(key):
            yield f"- of all arguments, {key}: {json.dumps(schema[key], ensure_ascii=False)}"


def difference_text(pin: Pin | None, listing: Listing) -> str:
    """Return the differences between `listing` and what was accepted, line by line."""
    lines = list(_difference(pin, listing)) if pin is not None else []
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"  … {len(lines) - MAX_LINES} more lines"]
    return "\n".join(["What is different:", *lines]) if lines else ""


def _difference(pin: Pin, listing: Listing) -> Iterator[str]:
    for key in sorted({*pin.identity, *listing.identity}):
        if pin.identity.get(key) != listing.identity.get(key):
            yield f"  the server's {key}: {pin.identity.get(key)!r} is now {listing.identity.get(key)!r}"
    now = {str(each.get("name")): each for each in listing.tools} | {f"/{each['name']}": each for each in listing.prompts}
    old = pin.by_name | {f"/{each['name']}": each for each in pin.prompts}
    for name, why in sorted(listing.changes(pin).items()):
        yield f"  {visible(name)}: {visible(why)}"
        was, new = _definition_lines(old.get(name)), _definition_lines(now.get(name))
        if was and new:
            changed = difflib.unified_diff(was, new, lineterm="", n=0)
            yield from (f"    {line[:300]}" for line in changed if not line.startswith(("---", "+++", "@@")))


def _definition_lines(definition: Mapping[str, Any] | None) -> list[str]:
    if definition is None:
        return []
    kept = {name: definition[name] for name in (*FIELDS, "arguments") if name in definition}
    return json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True).splitlines()


# ---------------------------------------------------------------- the configured servers, and requests to them


# How long a server may take to start; the first time, its program may have to be downloaded.
CONNECT_SECONDS = 120.0
# How long a server may take to answer after it is connected.
LIST_SECONDS = 30.0
Show = Callable[[str], None]


async def settings_now(turn: Turn) -> ServersSettings:
    return config_of(turn, ServersSettings)


async def servers_now(turn: Turn) -> list[Server]:
    return servers_of(config_of(turn, ServersSettings), turn.home)


def find_server(context: CommandContext, name: str) -> Server:
    """Return the configured server with this name.

    :raises ConfigError: there is no such server.
    """
    servers = {server.name: server for server in context.run(servers_now)}
    if name not in servers:
        hint = did_you_mean(name, servers)
        raise ConfigError(f"there is no MCP server {name!r}{hint}", next_step="moryflow mcp list")
    return servers[name]


def ask_server(
    context: CommandContext,
    name: str,
    server: ServerSettings,
    request: Mapping[str, Any],
    more: Mapping[str, Any] = {"connect_seconds": CONNECT_SECONDS},
    show: Show = lambda _: None,
) -> Any:
    """Start a server, send it a request, and return the answer.

    :param more: what the helper is told of the server beside its configuration.
    :param show: called with the address that the user opens to log in.
    :raises ConfigError: the request failed.
    """

    async def work(turn: Turn) -> Any:
        helper = Helper(turn.data_dir, os.environ)
        try:
            spec = {**spec_of(name, server, os.environ, turn.vault, turn.data_dir), **more}
            async with asyncio.timeout(more["connect_seconds"] + LIST_SECONDS):
                return await helper.request({**request, "server": spec}, show=show)
        except TimeoutError:
            raise ToolError("it did not answer in time", code="timeout") from None
        finally:
            await helper.close()

    try:
        return context.run(work)
    except ToolError as error:
        step = error.next_step.removeprefix("the user runs: ") or f"moryflow mcp test {name}"
        raise ConfigError(f"{name}: {error.message}", next_step=step) from error


def fault_of(name: str, entry: Mapping[str, Any]) -> str:
    """Return the first mistake in the configuration of a server; empty if there is none."""
    return next(filter(None, (wrong_name(name), *(fault for _, fault in wrong_values(entry)))), "")
