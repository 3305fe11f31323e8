"""Resources of MCP servers: a person attaches one as ``@server:uri``, a model reads one with ``mcp_resource``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moryflow_sdk import PluginContext, Tool, ToolContext, ToolError, ToolResult, mcp_target
from moryflow_sdk.support.texts import visible

from .helper import Helper, spec_of
from .lock import CALL_SECONDS, CONTEXT, Server
from .results import resource_result

NAME = "mcp_resource"
MOST_URI = 2048
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")
_MENTION = re.compile(r'(?<!\S)@(?:"([A-Za-z0-9][\w.@-]{0,63}):([^"\n]+)"|([A-Za-z0-9][\w.@-]{0,63}):(\S+))', re.ASCII)
_AFTER = ".,;:!?)]}»\"'"
"""Signs behind an address that belong to the sentence."""


def resource_tool(servers: Sequence[Server], ctx: PluginContext, helper: Callable[[], Helper]) -> Tool | None:
    """Return the tool that reads resources of all `servers` that have some."""
    known = {server.name: server for server in servers if server.has_resources}
    if not known:
        return None
    folder, environ = ctx.data_dir, ctx.environ

    async def read(**arguments: Any) -> ToolResult:
        context: ToolContext = arguments.pop(CONTEXT)
        name, uri = arguments["server"], arguments["uri"]
        server = known.get(name)
        if server is None:
            raise ToolError(f"{visible(str(name)[:64])!r} has no resources; there are: {', '.join(known)}", code="not_found")
        if len(uri) > MOST_URI or not _URI.fullmatch(uri):
            raise ToolError(f"{visible(uri[:200])!r} is no address of a resource", code="not_found")
        spec = spec_of(name, server.settings, environ, context.vault, folder)
        assert server.pin is not None
        message = {"do": "resource", "server": spec, "uri": uri, "identity": server.pin.identity}
        answer = await helper().request(message, progress=context.progress)
        if answer.get("refused"):
            text = f"the MCP server {name} is not the one that a person has reviewed; nothing was read"
            raise ToolError(text, code="mcp_drift", next_step=f"a person runs: moryflow mcp review {name}")
        return await resource_result(answer, name, uri, context)

    def mentions(typed: str) -> list[Mapping[str, str]]:
        return mentioned(typed, known)

    longest = max((server.settings.timeout or CALL_SECONDS for server in known.values()), default=CALL_SECONDS)
    properties = {
        "server": {"type": "string", "enum": list(known)},
        "uri": {"type": "string", "description": "the address of the resource, as the server gives it"},
    }
    return Tool(
        name=NAME,
        description="Read a resource of an MCP server, such as one that a result of its tools names.",
        function=read,
        domain="mcp",
        targets=lambda args: mcp_target(str(args["server"]), f"resource:{args['uri']}"),
        timeout=longest,
        mentions=mentions,
        context_parameter=CONTEXT,
        schema={"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False},
        source="mcp",
    )


def mentioned(typed: str, servers: Mapping[str, object]) -> list[Mapping[str, str]]:
    """Return the resources that stand behind an @ in what a person typed, each once."""
    found = [(quoted or bare, inner or word.rstrip(_AFTER)) for quoted, inner, bare, word in _MENTION.findall(typed)]
    pairs = dict.fromkeys(pair for pair in found if pair[0] in servers and _URI.fullmatch(pair[1]))
    return [{"server": server, "uri": uri} for server, uri in pairs]
