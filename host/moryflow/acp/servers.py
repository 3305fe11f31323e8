"""MCP servers that an editor names: a person is asked about each, and nothing of it runs before a yes to what was shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from moryflow_sdk import MoryflowError
from moryflow_sdk.support.texts import visible

from moryflow.config import values
from moryflow.runtime.session_lease import read_only_scope

from .permissions import outcome_in
from .updates import fenced

if TYPE_CHECKING:
    from moryflow.runtime.host import Host

    from .connection import EditorConnection
    from .sessions import EditorSession

MOST_SERVERS = 32
"""That are asked about in one session."""
MOST_SHOWN = 60_000
"""Characters of a question."""


class EditorServers:
    """Asks about the servers of each session; what a person never wants to be asked about again is remembered."""

    def __init__(self, connection: EditorConnection, host: Host) -> None:
        self._connection, self._host = connection, host
        self._refused: set[str] = set()

    async def offer(self, opened: EditorSession, servers: Sequence[Any]) -> None:
        """Ask about the servers that were named for a session, one after the other."""
        for server in servers[:MOST_SERVERS]:
            if isinstance(server, Mapping):
                try:
                    said = await self._offer(opened, server)
                except MoryflowError as error:
                    said = str(error)
                if said:
                    opened.notice(visible(said))

    async def _offer(self, opened: EditorSession, server: Mapping[str, Any]) -> str:
        name, entry = str(server.get("name"))[:100], _entry(server)
        built_in = [one for one in self._host.plugin_set.plugins.values() if one.tier == "builtin"]
        plugin = next((one for one in built_in if hasattr(one.object, "offer_server")), None)
        if plugin is None or entry is None:
            return f"{_left_out(server)}. Next: {_adding(server)}"
        key = _hash(repr((name, sorted(entry.items()))))
        if key in self._refused:
            return ""
        never: list[bool] = []

        async def ask(title: str, text: str) -> bool:
            return await self._ask(opened, title, text, never)

        turn = read_only_scope(self._host, opened.row, None).view(plugin.name)
        path = self._host.config.path
        said = await plugin.object.offer_server(
            name, entry, turn, ask, lambda setting, value: values.set_value(path, setting, value)
        )
        self._refused |= {key} if never else set()
        return f"{said}. Next: {_adding(server)}" if said.endswith("is left out") else said

    async def _ask(self, opened: EditorSession, title: str, text: str, never: list[bool]) -> bool:
        """Ask one question. A yes counts for the text that was shown, and anything but an option that was offered is a no."""
        if len(text) > MOST_SHOWN:
            opened.notice(f"{title}: that is too long to be asked here")
            return False
        about = _hash(f"{title}\n{text}")
        offered = {
            "allow_once": "Yes",
            "reject_once": "No",
            "reject_always": "No, and do not ask again until the editor restarts",
        }
        call = {"toolCallId": f"mcp:{about}", "title": visible(title), "kind": "execute", "status": "pending"}
        shown = {
            "sessionId": opened.id,
            "toolCall": {**call, "content": [fenced(text)]},
            "options": [{"optionId": f"{kind}:{about}", "name": name, "kind": kind} for kind, name in offered.items()],
        }
        outcome = outcome_in(await self._connection.ask("session/request_permission", shown))
        chosen = outcome.get("optionId") if outcome.get("outcome") == "selected" else ""
        never += [True] if chosen == f"reject_always:{about}" else []
        return chosen == f"allow_once:{about}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _entry(server: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a server as a configuration has it; ``None`` for what is not understood."""
    args = server.get("args") or []
    if not all(isinstance(server.get(key) or [], list) for key in ("headers", "env")):
        return None
    match server:
        case {"type": "http", "url": str(url)}:
            return {"url": url, **_pairs("headers", server.get("headers"))}
        case {"command": str(command)} if "type" not in server and isinstance(args, list):
            return {"command": command, "args": [str(one) for one in args], **_pairs("env", server.get("env"))}
        case _:
            return None


def _pairs(name: str, given: Any) -> dict[str, dict[str, str]]:
    found = {str(one.get("name")): str(one.get("value")) for one in given or () if isinstance(one, Mapping)}
    return {name: found} if found else {}


def _left_out(server: Mapping[str, Any]) -> str:
    return f"the MCP server {str(server.get('name'))[:100]} is left out"


def _adding(server: Mapping[str, Any]) -> str:
    """Return the command that adds a server; what its environment and its headers hold is not repeated."""
    name, args = str(server.get("name"))[:100], server.get("args")
    words = [str(server.get("command")), *map(str, args if isinstance(args, list) else ())]
    how = ["--url", str(server["url"])] if "url" in server else ["--", *words]
    return shlex.join(("moryflow", "mcp", "add", name, *how))[:1_000]
