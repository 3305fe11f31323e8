"""The operations of a server as methods; made from its table by tests/packaging/refresh_docs.py."""

# fmt: off
# ruff: noqa: E501

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote


class Operations:
    """What may be asked of a server; every method raises :class:`ClientError` when the server says no."""

    @abstractmethod
    async def _call(
        self, method: str, path: str, given: Mapping[str, Any], *, raw: bool = False, headers: Mapping[str, str] | None = None
    ) -> Any: ...

    async def exchange_code(self, code: str) -> Any:
        """Exchange the one-time code of a link for a token of this browser's own; one that has a valid token keeps it."""
        return await self._call("POST", "/code", {"code": code})

    async def new_code(self) -> Any:
        """Make another one-time link, for another browser or a phone."""
        return await self._call("POST", "/codes", {})

    async def tokens(self) -> Any:
        """List the tokens of browsers, and those that `serve tokens add` made; never the tokens themselves."""
        return await self._call("GET", "/tokens", {})

    async def revoke_token(self, id: str) -> Any:
        """Make a token invalid at once; its event streams end."""
        return await self._call("DELETE", f"/tokens/{quote(id, safe='')}", {})

    async def health(self) -> Any:
        """Say which Moryflow this is."""
        return await self._call("GET", "/health", {})

    async def metrics(self) -> Any:
        """Give figures of this server for a monitoring program."""
        return await self._call("GET", "/metrics", {}, raw=True)

    async def approvals(self, *, state: str | None = None, session: str | None = None) -> Any:
        """List questions, of this process and of others."""
        return await self._call("GET", "/approvals", {"state": state, "session": session})

    async def approval(self, id: str) -> Any:
        """Show a question."""
        return await self._call("GET", f"/approvals/{quote(id, safe='')}", {})

    async def reply(
        self, id: str, *, reply: str | None = None, remember: str | None = None, message: str = "", hash: str | None = None
    ) -> Any:
        """Answer a question; the first answer stands. Its hash names the call that is answered."""
        given: dict[str, Any] = {"reply": reply, "remember": remember, "message": message, "hash": hash}
        return await self._call("POST", f"/approvals/{quote(id, safe='')}", given)

    async def output(self, id: str, *, offset: int = 0, limit: int = 65536) -> Any:
        """Read a part of an output that was too long for the model."""
        return await self._call("GET", f"/outputs/{quote(id, safe='')}", {"offset": offset, "limit": limit})

    async def artifact(self, id: str) -> Any:
        """Download a stored output whole."""
        return await self._call("GET", f"/artifacts/{quote(id, safe='')}", {}, raw=True)

    async def agents(self, *, all: bool = False) -> Any:
        """List the agents."""
        return await self._call("GET", "/agents", {"all": all})

    async def tools(self) -> Any:
        """List the tools."""
        return await self._call("GET", "/tools", {})

    async def models(self) -> Any:
        """List the models."""
        return await self._call("GET", "/models", {})

    async def plugins(self) -> Any:
        """List the plugins."""
        return await self._call("GET", "/plugins", {})

    async def commands(self) -> Any:
        """List the slash commands that a prompt may be."""
        return await self._call("GET", "/commands", {})

    async def files(self, *, vault: str | None = None, q: str = "", limit: int = 50) -> Any:
        """Find files of a folder by name, without those that git ignores."""
        return await self._call("GET", "/files", {"vault": vault, "q": q, "limit": limit})

    async def stats(self, *, limit: int = 20) -> Any:
        """Count what happened in the last sessions."""
        return await self._call("GET", "/stats", {"limit": limit})

    async def config(self, *, all: bool = False) -> Any:
        """Show the settings."""
        return await self._call("GET", "/config", {"all": all})

    async def explain(self, domain: str, input: str, *, session: str | None = None, mode: str | None = None) -> Any:
        """Say what would happen to an input, and why."""
        given: dict[str, Any] = {"domain": domain, "input": input, "session": session, "mode": mode}
        return await self._call("GET", "/permissions/explain", given)

    async def prompt_settings(self) -> Any:
        """Show the base of the system prompt and the model's parameters."""
        return await self._call("GET", "/settings/prompt", {})

    async def change_prompt_settings(
        self,
        mode: str,
        *,
        text: str | None = None,
        temperature: float | None = None,
        topP: float | None = None,
        maxTokens: int | None = None,
    ) -> Any:
        """Replace the base of the system prompt and the parameters, or go back to the default."""
        given: dict[str, Any] = {"mode": mode, "text": text, "temperature": temperature, "topP": topP, "maxTokens": maxTokens}
        return await self._call("PUT", "/settings/prompt", given)

    async def compaction_settings(self) -> Any:
        """Show whether conversations are compacted automatically."""
        return await self._call("GET", "/settings/compaction", {})

    async def change_compaction_settings(self, enabled: bool) -> Any:
        """Switch automatic compaction on or off."""
        return await self._call("PUT", "/settings/compaction", {"enabled": enabled})

    async def sessions(self, *, limit: int = 50, vault: str | None = None, all: bool = False) -> Any:
        """List sessions, last used first."""
        return await self._call("GET", "/sessions", {"limit": limit, "vault": vault, "all": all})

    async def new_session(
        self,
        *,
        vault: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        mode: str | None = None,
        confirm: bool = False,
        title: str = "",
    ) -> Any:
        """Begin a session."""
        given: dict[str, Any] = {"vault": vault, "agent": agent, "model": model, "mode": mode, "confirm": confirm, "title": title}
        return await self._call("POST", "/sessions", given)

    async def search(self, q: str, *, limit: int = 20) -> Any:
        """Search all sessions for what was said or read."""
        return await self._call("GET", "/search", {"q": q, "limit": limit})

    async def session(self, id: str, *, limit: int = 200) -> Any:
        """Show a session, and from which event on to follow it."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}", {"limit": limit})

    async def change_session(
        self,
        id: str,
        *,
        mode: str | None = None,
        confirm: bool = False,
        agent: str | None = None,
        model: str | None = None,
        title: str | None = None,
    ) -> Any:
        """Change the mode, the agent, the model or the title, from the next step on."""
        given: dict[str, Any] = {"mode": mode, "confirm": confirm, "agent": agent, "model": model, "title": title}
        return await self._call("PATCH", f"/sessions/{quote(id, safe='')}", given)

    async def remove_session(self, id: str) -> Any:
        """Delete a session with its outputs and its sub-agents. Audit files stay."""
        return await self._call("DELETE", f"/sessions/{quote(id, safe='')}", {})

    async def nodes(
        self, id: str, *, before: int | None = None, after: int | None = None, parent: str = "", limit: int = 200
    ) -> Any:
        """Show nodes of the active path, oldest first: the last ones before a place, or those after one."""
        given: dict[str, Any] = {"before": before, "after": after, "parent": parent, "limit": limit}
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/nodes", given)

    async def messages(self, id: str) -> Any:
        """Show what the model is sent of a session."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/messages", {})

    async def context(self, id: str) -> Any:
        """Show what fills the window of the model, by source."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/context", {})

    async def tree(self, id: str) -> Any:
        """Show all branches of a session and its sub-agents."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/tree", {})

    async def ledger(self, id: str, *, turn: str | None = None) -> Any:
        """Show what each plugin did in a session, or in one of its turns."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/ledger", {"turn": turn})

    async def outcomes(self, id: str) -> Any:
        """Say how long calls and turns took, and what turns failed with."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/outcomes", {})

    async def session_stats(self, id: str) -> Any:
        """Count what happened in a session and its sub-agents."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/stats", {})

    async def export(self, id: str) -> Any:
        """Write a session and its sub-agents as JSON Lines, without loss."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/export", {}, raw=True)

    async def compact(self, id: str, *, focus: str = "") -> Any:
        """Replace the older part of a conversation by a summary, in the model's view only."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/compact", {"focus": focus})

    async def undo_compaction(self, id: str) -> Any:
        """Let the model see again what the last compaction replaced."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/undo-compaction", {})

    async def switch(self, id: str, node: str | None) -> Any:
        """Go on from another node; nothing is lost."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/switch", {"node": node})

    async def fork(self, id: str, *, node: str | None = None, title: str = "") -> Any:
        """Copy the path to a node into a new session; the old one stays as it is."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/fork", {"node": node, "title": title})

    async def label(self, id: str, label: str, *, node: str | None = None, remove: bool = False) -> Any:
        """Name a node, or take the name away."""
        given: dict[str, Any] = {"label": label, "node": node, "remove": remove}
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/label", given)

    async def undo(self, id: str, *, how: str = "yes") -> Any:
        """Take back the last turn, its messages and its changes to files; `step yes`."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/undo", {"how": how})

    async def redo(self, id: str, *, how: str = "yes") -> Any:
        """Do again what the last undo took back."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/redo", {"how": how})

    async def command(self, id: str, name: str, *, text: str = "", confirm: bool = False) -> Any:
        """Run a slash command: help, mode, model, agent, compact, share, or one that a plugin brings."""
        given: dict[str, Any] = {"name": name, "text": text, "confirm": confirm}
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/command", given)

    async def prompt(
        self,
        id: str,
        text: str,
        *,
        files: Sequence[Any] = (),
        images: Sequence[Any] = (),
        agent: str | None = None,
        model: str | None = None,
        queue: bool = False,
        on_ask: str = "prompt",
        max_steps: int | None = None,
        max_cost: float | None = None,
        effort: str | None = None,
        schema: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        background: str = "wait",
        typed: int | None = None,
        key: str = "",
    ) -> Any:
        """Begin a turn. Sent again with the same Idempotency-Key, a prompt begins no second turn."""
        given: dict[str, Any] = {"text": text, "files": files, "images": images, "agent": agent, "model": model, "queue": queue, "on_ask": on_ask, "max_steps": max_steps, "max_cost": max_cost, "effort": effort, "schema": schema, "environment": environment, "background": background, "typed": typed}
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/prompt", given, headers={"Idempotency-Key": key} if key else None)

    async def resume(
        self,
        id: str,
        *,
        on_ask: str = "prompt",
        max_steps: int | None = None,
        max_cost: float | None = None,
        effort: str | None = None,
        schema: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        background: str = "wait",
    ) -> Any:
        """Continue a turn that was interrupted or waits for an answer."""
        given: dict[str, Any] = {"on_ask": on_ask, "max_steps": max_steps, "max_cost": max_cost, "effort": effort, "schema": schema, "environment": environment, "background": background}
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/resume", given)

    async def turn_result(self, id: str, turn: str) -> Any:
        """Give the result of a turn; the end of one that began in this server is waited for."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/turns/{quote(turn, safe='')}", {})

    async def trace(self, id: str, *, turn: str = "", plugin: str | None = None) -> Any:
        """Show what each plugin did in a session and its sub-agents, and what it cost."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/trace", {"turn": turn, "plugin": plugin})

    async def init(self, id: str) -> Any:
        """Say who would answer where, with which plugins."""
        return await self._call("GET", f"/sessions/{quote(id, safe='')}/init", {})

    async def nobody_left(self, id: str) -> Any:
        """Refuse the open questions of the turn that runs, and all later ones: nobody is left to answer."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/nobody-left", {})

    async def cancel(self, id: str) -> Any:
        """Stop the turn that runs, and its sub-agents; what they have is kept."""
        return await self._call("POST", f"/sessions/{quote(id, safe='')}/cancel", {})

    async def openapi(self, *, version: str = "3.2") -> Any:
        """Describe the operations as OpenAPI."""
        return await self._call("GET", "/openapi.json", {"version": version})
