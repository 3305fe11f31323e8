"""What six reviewed MCP servers with 60 tools add to a one-shot run: nothing of them is started."""

from __future__ import annotations

from statistics import median
from typing import Any

from measuring import MODEL, Figure, ModelServer, command, place
from moryflow.testing.replies import text
from moryflow_builtins.mcp.definitions import tool_hash
from moryflow_builtins.mcp.lock import store_pin
from moryflow_builtins.mcp.review import Listing, accepted
from moryflow_sdk.support.settings import ServerSettings

SERVERS, TOOLS, RUNS = 6, 10, 50
IDENTITY: dict[str, Any] = {"command": "server", "name": "server", "version": "1"}


def definition(number: int) -> dict[str, Any]:
    """A tool as real servers have them: five arguments, one of them a list of objects."""
    field = {"type": "string", "description": "Where to look, as the service calls it", "minLength": 1}
    entry = {"type": "object", "properties": {"name": field, "value": {"type": ["string", "null"]}}, "required": ["name"]}
    properties = {
        "path": field,
        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
        "order": {"type": "string", "enum": ["created", "updated", "name"]},
        "entries": {"type": "array", "items": entry},
        "dry": {"type": "boolean", "default": False},
    }
    schema = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
    found = {"name": f"do_{number}", "description": "Does something with a service. " * 6, "inputSchema": schema}
    return {**found, "hash": tool_hash(found, IDENTITY)}


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as bare, place() as plain, place() as here, ModelServer(lambda _: text("ok")) as server:
        for each in (bare, plain, here):
            each.use(server)
        plain.configure(language="en")
        entries = {f"s{number}": {"command": "server", "args": [str(number)]} for number in range(SERVERS)}
        here.configure(mcp={"servers": entries})
        for name, entry in entries.items():
            said = {"name": "server", "version": "1", "protocol": "2026-07-28"}
            answer = {"identity": IDENTITY, "server": said, "tools": [definition(number) for number in range(TOOLS)]}
            listing = Listing({**answer, "prompts": [], "beyond": 0})
            store_pin(here.home, name, accepted(name, ServerSettings(**{**entry, "args": tuple(entry["args"])}), listing))
        run = (command(), "run", "-m", MODEL, "hello")
        for each in (bare, plain, here):
            each.run(*run)
        assert "mcp__s5__do_9" in here.run(command(), "tool", "list", "--json", "-q").output
        # Turn and turn about, so that whatever else the machine does meets all three.
        rounds = [(bare.run(*run), plain.run(*run), here.run(*run)) for _ in range(RUNS)]
        return [
            ("a configuration file adds to a start", median(two.ms - one.ms for one, two, _ in rounds), "ms", None),
            ("six MCP servers with 60 tools in it add", median(two.ms - one.ms for _, one, two in rounds), "ms", 5.0),
            ("of that processor time", median(two.cpu_ms - one.cpu_ms for _, one, two in rounds), "ms", 5.0),
        ]
