"""The pinned tools of all servers, and ``tool_search``, which is offered instead when they are many."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import (
    Ask,
    ConfigError,
    Denied,
    Diagnostic,
    PluginContext,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    Turn,
    config_of,
    mcp_target,
)
from moryflow_sdk.support.settings import ServersSettings
from moryflow_sdk.support.texts import visible
from moryflow_sdk.support.tool_schemas import RULES, CheckedSchema, plain_schema

from .definitions import cleaned, differences, model_names, schema_for_model, tokens
from .lock import CALL_SECONDS, CONTEXT, FILE, Server, note_withheld, usable_servers

if TYPE_CHECKING:
    from .helper import Helper

FOUND = "found"
BEST = 5


def tools_of(ctx: PluginContext, helper: Callable[[], Helper]) -> Iterator[Tool | Diagnostic]:
    """Yield the tools of all servers, and what there is to say about the others."""
    settings = config_of(ctx, ServersSettings)
    if ctx.safe_mode and settings.servers:
        yield Diagnostic(file=str(ctx.home / FILE), code="mcp_off", message="MCP servers are not used in safe mode")
        return
    try:
        usable = usable_servers(ctx)
    except ConfigError as error:
        yield Diagnostic(file=str(error.where), code="mcp_lock", message=error.message, next_step=error.next_step or "")
        return
    yield from _remarks(usable, ctx.home)
    yield from _tools(usable, settings.search_above, ctx, helper)
    if with_resources := [server for server in usable if server.has_resources]:
        from .results import resource_tool

        yield resource_tool(with_resources, ctx, helper)


def _remarks(servers: Sequence[Server], home: Path) -> Iterator[Diagnostic]:
    said = {
        "new": "not reviewed yet, so none of its tools is offered",
        "changed": "configured differently than when it was reviewed, so none of its tools is offered",
    }
    for state, text in said.items():
        names = [server.name for server in servers if server.state == state]
        if names:
            yield _remark(home, f"{', '.join(names)[:200]}: {text}", names[0])
    drifted = [server for server in servers if server.state == "reviewed" and server.pin and server.pin.withheld]
    if drifted:
        shown = ", ".join(f"{server.name} ({len(server.pin.withheld)} tools)" for server in drifted if server.pin)
        yield _remark(home, f"{shown[:200]}: changed since they were reviewed, and withheld", drifted[0].name)


def _remark(home: Path, text: str, name: str) -> Diagnostic:
    step = f"moryflow mcp review {name}"
    return Diagnostic(file=str(home / FILE), code="mcp_review", message=f"MCP servers: {text}", next_step=step)


_Run = Callable[[Server, str, dict[str, Any]], Awaitable[ToolResult]]


def _tools(servers: Sequence[Server], limit: int, ctx: PluginContext, helper: Callable[[], Helper]) -> Iterator[Tool]:
    pairs = [(server, each) for server in servers for each in server.offered]
    names = model_names([(server.name, each["name"]) for server, each in pairs])
    search = sum(server.tokens for server in servers) > limit
    to_find: list[Tool] = []
    folder, environ, home = ctx.data_dir, ctx.environ, ctx.home

    async def run(server: Server, own: str, arguments: dict[str, Any]) -> ToolResult:
        from .helper import spec_of

        context: ToolContext = arguments.pop(CONTEXT)
        spec = spec_of(server.name, server.settings, environ, context.vault, folder)
        return await _call(helper(), server, own, spec, arguments, context, home)

    for server, each in pairs:
        name = names[server.name, each["name"]]
        later = search and not server.settings.always_load
        made = _tool(name, server, each, run, to_be_found=later)
        to_find += [made] if later else []
        yield made
    if to_find:
        yield _search(to_find)


def _tool(name: str, server: Server, each: Mapping[str, Any], run: _Run, *, to_be_found: bool) -> Tool:
    own: str = each["name"]
    parameters = each.get("parameters") or each["inputSchema"]

    async def call(**arguments: Any) -> ToolResult:
        return await run(server, own, arguments)

    def place(turn: Turn) -> int:
        found = turn.session_state.get(FOUND, [])
        return found.index(name) + 1 if name in found else 0

    description = cleaned(each.get("description") or each.get("title") or "").strip()
    return Tool(
        name=name,
        description=description or f"The tool {own} of the MCP server {server.name}.",
        function=call,
        domain="mcp",
        targets=lambda _: mcp_target(server.name, own),
        timeout=server.settings.timeout or CALL_SECONDS,
        found_in=place if to_be_found else None,
        context_parameter=CONTEXT,
        schema=CheckedSchema(parameters) if each.get("checked") == RULES else parameters,
        source=f"mcp.servers.{server.name}",
        revision=each["hash"],
    )


async def _call(
    helper: Helper, server: Server, name: str, spec: dict[str, Any], args: Mapping[str, Any], ctx: ToolContext, home: Path
) -> ToolResult:
    """Call a tool of a server, as far as it is what was accepted."""
    from .results import result_of

    assert server.pin is not None
    pinned = {each["name"]: each["hash"] for each in server.pin.tools}
    message = {"do": "call", "server": spec, "tool": name, "args": args, "pinned": pinned}

    async def ask(question: Mapping[str, Any]) -> Mapping[str, Any]:
        return await answer_of(question, server.name, ctx)

    answer = await helper.request(message, progress=ctx.progress, ask=ask)
    if "drift" in answer:
        found = answer["drift"]["tools"]
        changes = differences(server.pin.by_name, found, [each["hash"] for each in found])
        with suppress(ConfigError):  # the next call finds it again; what this one did is not lost for it
            note_withheld(home, server.name, changes)
        if answer.get("refused"):
            why = changes.get(name, "changed")
            text = f"{server.name}/{name} is not what a person has reviewed: {visible(why)}; it was not called"
            raise ToolError(text, code="mcp_drift", next_step=f"a person runs: moryflow mcp review {server.name}")
    return await result_of(answer, f"{server.name}: {name}", ctx)


# ---------------------------------------------------------------- questions of a server


async def answer_of(question: Mapping[str, Any], server: str, ctx: ToolContext) -> Mapping[str, Any]:
    """Ask the person what a server asks, under its name, and return the answer for it.

    A yes sends what the server proposes as defaults; a form that needs more than that is declined.
    """
    message = visible(str(question.get("message", "")))[:2000]
    if question.get("mode") == "url":
        reason = f"the MCP server {server} wants you to open {visible(str(question.get('url')))}: {message}"
        content = None
    else:
        schema = question.get("requestedSchema") or {}
        content = {key: field["default"] for key, field in (schema.get("properties") or {}).items() if "default" in field}
        if missing := [key for key in schema.get("required", ()) if key not in content]:
            ctx.progress(f"{server} asks for {', '.join(missing)}, which cannot be given here: {message}")
            return {"action": "decline"}
        shown = f" It would be sent: {visible(json.dumps(content, ensure_ascii=False))[:1000]}" if content else ""
        reason = f"the MCP server {server} asks: {message}{shown}"
    try:
        await ctx.ask(Ask(reason, bypass="never"))
    except Denied:
        return {"action": "decline"}
    return {"action": "accept", **({"content": content} if content is not None else {})}


# ---------------------------------------------------------------- finding


def _search(tools: Sequence[Tool]) -> Tool:
    known = {each.name: each for each in tools}

    async def tool_search(**arguments: Any) -> str:
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
        description=_says(tools),
        function=tool_search,
        domain="read",
        context_parameter=CONTEXT,
        schema=CheckedSchema(type="object", properties={"query": query}, required=["query"], additionalProperties=False),
    )


def _says(tools: Sequence[Tool]) -> str:
    servers: dict[str, list[str]] = {}
    for each in tools:
        servers.setdefault(each.source.removeprefix("mcp.servers."), []).append(each.name.rpartition("__")[2])
    lines = [f"{name} ({len(names)}): {', '.join(names)}" for name, names in servers.items()]
    room = 2000 // len(lines)
    shown = "\n".join(line if len(line) <= room else f"{line[: room - 1].rpartition(',')[0]}, …" for line in lines)
    return f"Find tools of MCP servers by name or by words; those found can be called from then on. There are:\n{shown}"


def found(query: str, tools: Sequence[Tool]) -> list[Tool]:
    """Return the tool that is called `query`, else the best few by the words that they share with it."""
    wanted = query.strip().casefold()
    exact = [each for each in tools if wanted in (each.name.casefold(), each.name.rpartition("__")[2].casefold())]
    if exact:
        return exact[:BEST]
    words = set(_words(query))
    scores = [(_score(words, each), each) for each in tools]
    return [each for score, each in sorted(scores, key=lambda pair: (-pair[0], pair[1].name)) if score > 0][:BEST]


def _score(words: set[str], each: Tool) -> int:
    arguments = " ".join((each.schema or {}).get("properties", {}))
    fields = ((4, each.name), (2, each.description), (1, arguments))
    return sum(weight * len(words & set(_words(text))) for weight, text in fields)


def _words(text: str) -> list[str]:
    return [word.removesuffix("s") for word in re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())]


def pinned_tool(definition: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """Return what a pin keeps of a tool, made ready for a start; of one that is never offered, only that it is there."""
    kept = {"name": str(definition.get("name"))[:200], "hash": definition["hash"]}
    parameters = dict[str, Any]()
    if not problem:
        try:
            parameters = plain_schema(schema_for_model(definition["inputSchema"]))
        except ValueError as error:
            problem = f"the schema of its arguments cannot be used: {error}"
    if problem:
        return {**kept, "problem": problem}
    given = {} if parameters == definition["inputSchema"] else {"parameters": parameters}
    return {**definition, **given, "checked": RULES, "tokens": tokens(definition)}
