"""The pinned tools of all servers; if they are many, the model is offered ``tool_search`` instead, to find them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, Diagnostic, PluginContext, Tool, ToolContext, ToolResult, config_of, mcp_target
from moryflow_sdk.support.settings import ServersSettings
from moryflow_sdk.support.texts import without_unseen
from moryflow_sdk.support.tool_schemas import RULES, CheckedSchema

from .lock import CALL_SECONDS, CONTEXT, FILE, Server, digest, usable_servers

if TYPE_CHECKING:
    from .helper import Helper

# The key in `session_state` for the names of the tools that the session has found, in that order.
FOUND = "found"


def tools_of(ctx: PluginContext, helper: Callable[[], Helper]) -> Iterator[Tool | Diagnostic]:
    """Yield the tools of all servers, and a diagnostic for servers and tools that are not offered."""
    settings = config_of(ctx, ServersSettings)
    if ctx.safe_mode and settings.servers:
        yield Diagnostic(file=str(ctx.home / FILE), code="mcp_off", message="MCP servers are not used in safe mode")
        return
    try:
        usable = usable_servers(ctx)
    except ConfigError as error:
        yield Diagnostic(file=str(error.where), code="mcp_lock", message=error.message, next_step=error.next_step or "")
        return
    said = {
        "new": "not reviewed yet, so none of its tools is offered",
        "changed": "configured differently than when it was reviewed, so none of its tools is offered",
    }
    for state, text in said.items():
        names = [server.name for server in usable if server.state == state]
        if names:
            yield _remark(ctx.home, f"{', '.join(names)[:200]}: {text}", names[0])
    drifted = [server for server in usable if server.state == "reviewed" and server.pin and server.pin.withheld]
    if drifted:
        shown = ", ".join(f"{server.name} ({len(server.pin.withheld)} tools)" for server in drifted if server.pin)
        yield _remark(ctx.home, f"{shown[:200]}: changed since they were reviewed, and withheld", drifted[0].name)
    yield from _tools(usable, settings.search_above, ctx, helper)


def _remark(home: Path, text: str, name: str) -> Diagnostic:
    step = f"moryflow mcp review {name}"
    return Diagnostic(file=str(home / FILE), code="mcp_review", message=f"MCP servers: {text}", next_step=step)


def _tools(servers: Sequence[Server], limit: int, ctx: PluginContext, helper: Callable[[], Helper]) -> Iterator[Tool]:
    pairs = [(server, each) for server in servers for each in server.offered]
    names = model_names([(server.name, each["name"]) for server, each in pairs])
    search = sum(server.tokens for server in servers) > limit
    to_find: list[Tool] = []
    for server, each in pairs:
        later = search and not server.settings.always_load
        made = _tool(names[server.name, each["name"]], server, each, ctx, helper, to_be_found=later)
        to_find += [made] if later else []
        yield made
    if to_find:
        yield _search(to_find)


def _tool(
    name: str, server: Server, each: Mapping[str, Any], ctx: PluginContext, helper: Callable[[], Helper], *, to_be_found: bool
) -> Tool:
    own: str = each["name"]
    parameters = each.get("parameters") or each["inputSchema"]

    async def run(**arguments: Any) -> ToolResult:
        from .calls import call

        return await call(helper(), server, own, arguments, ctx)

    description = without_unseen(each.get("description") or each.get("title") or "").strip()
    return Tool(
        name=name,
        description=description or f"The tool {own} of the MCP server {server.name}.",
        function=run,
        domain="mcp",
        targets=lambda _: mcp_target(server.name, own),
        timeout=server.settings.timeout or CALL_SECONDS,
        more_time=_more_time(server.name),
        found_in=(lambda turn: turn.session_state.get(FOUND, ())) if to_be_found else None,
        context_parameter=CONTEXT,
        schema=CheckedSchema(parameters) if each.get("checked") == RULES else parameters,
        source=f"mcp.servers.{server.name}",
        revision=each["hash"],
    )


def _more_time(server: str) -> str:
    if "." in server:  # the command would split the name at the dot
        return f'to allow more time, set "timeout": SECONDS in the entry "{server}" of mcp.servers in config.jsonc'
    return f"to allow more time: moryflow config set mcp.servers.{server}.timeout SECONDS"


def _search(tools: Sequence[Tool]) -> Tool:
    known = {each.name: each for each in tools}

    async def tool_search(**arguments: Any) -> str:
        from .calls import found

        ctx: ToolContext = arguments[CONTEXT]
        best = found(arguments["query"], tools)
        if not best:
            return "no tool fits; the names are in the description of tool_search"
        earlier: list[str] = ctx.session_state.get(FOUND, [])
        fresh = [each.name for each in best if each.name not in earlier]
        ctx.session_state[FOUND] = [*(name for name in earlier if name in known), *fresh]
        shown = "\n\n".join(f"{each.name}: {each.description}" for each in best)
        return f"These tools can be called from now on:\n\n{shown}"

    query = {"type": "string", "description": "the name of a tool, or words for what it shall do"}
    return Tool(
        name="tool_search",
        description=_search_description(tools),
        function=tool_search,
        domain="read",
        context_parameter=CONTEXT,
        schema=CheckedSchema(type="object", properties={"query": query}, required=["query"], additionalProperties=False),
    )


def _search_description(tools: Sequence[Tool]) -> str:
    servers: dict[str, list[str]] = {}
    for each in tools:
        servers.setdefault(each.source.removeprefix("mcp.servers."), []).append(each.name.rpartition("__")[2])
    lines = [f"{name} ({len(names)}): {', '.join(names)}" for name, names in servers.items()]
    room = 2000 // len(lines)
    shown = "\n".join(line if len(line) <= room else f"{line[: room - 1].rpartition(',')[0]}, …" for line in lines)
    return f"Find tools of MCP servers by name or by words; those found can be called from then on. There are:\n{shown}"


def model_names(tools: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the name of each tool for the model, by server and tool: ``mcp__server__tool``.

    Because of the prefix, a server's tool cannot replace another tool. Names that would be too long, or equal, end in a hash.
    """
    plain = {pair: f"mcp__{_plain_name(pair[0])}__{_plain_name(pair[1])}" for pair in tools}
    counts = Counter(name.casefold() for name in plain.values())
    return {
        pair: name if len(name) <= 64 and counts[name.casefold()] == 1 else f"{name[:55]}_{digest(pair)[:8]}"
        for pair, name in plain.items()
    }


def _plain_name(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else re.sub(r"[^A-Za-z0-9_-]", "_", name)
