"""The methods that an editor can call, and the sessions that it has open."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, Event, MoryflowError
from moryflow_sdk.support.texts import visible

from moryflow import __version__
from moryflow.base.paths import readable_vault
from moryflow.plugins.consent import consent_command
from moryflow.runtime.documents import known_models, with_title

from .connection import AUTH_REQUIRED, INVALID_PARAMS, INVALID_REQUEST, NOT_FOUND, EditorConnection, Params, RpcError
from .files import EditorTexts
from .sessions import EditorSession, prompt_of

if TYPE_CHECKING:
    from moryflow_sdk import ModelInfo

    from moryflow.plugins.reload_report import ReloadReport
    from moryflow.runtime.host import Host
    from moryflow.runtime.selection import NewSession
    from moryflow.runtime.session import Session
    from moryflow.store import SessionRow

# The version of the protocol.
VERSION = 1
# How many sessions one answer lists.
PAGE = 50
# The id of the authentication method, and the flag of `moryflow acp` that it runs.
SETUP = "setup"


class EditorAgent:
    """Serves one host to one editor."""

    def __init__(self, host: Host, options: NewSession) -> None:
        self._host, self._options = host, options
        self._sessions: dict[str, EditorSession] = {}
        self._client: Mapping[str, Any] | None = None
        self._models: tuple[ModelInfo, ...] = ()
        self._learning: asyncio.Task[None] | None = None
        self._introductions: set[asyncio.Task[None]] = set()
        requests = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/prompt": self._prompt,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
        }
        self._connection = EditorConnection(requests, {"session/cancel": self._cancel})

    async def run(self, read_from: int, write_to: int, stopping: asyncio.Event) -> None:
        """Serve the client until it disconnects, or until `stopping` is set."""
        from moryflow.plugins.reload import Reloader

        host, connection = self._host, self._connection
        host.approvals.attach(asyncio.get_running_loop())
        self._reloader = Reloader(host, self._reloaded)
        self._reloader.start()
        unsubscribe = host.bus.subscribe(self._on_event)
        connection.start(read_from, write_to)
        ends = [asyncio.create_task(event.wait()) for event in (connection.ended, stopping)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*ends, *self._introductions, *([self._learning] if self._learning else [])):
                task.cancel()
            for session in self._sessions.values():
                session.break_off()
            await connection.aclose()
            unsubscribe()
            await self._reloader.aclose()

    # ---------------------------------------------------------------- initialization

    async def _initialize(self, params: Params) -> dict[str, Any]:
        if not isinstance(params.get("protocolVersion"), int) or isinstance(params["protocolVersion"], bool):
            raise RpcError(INVALID_PARAMS, "protocolVersion is a whole number")
        given = params.get("clientCapabilities")
        self._client = given if isinstance(given, dict) else {}
        texts = EditorTexts(self._connection, self._client.get("fs"), lambda name: name in self._sessions)
        self._host.services["files"] = texts.files
        capabilities = {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": False, "sse": False},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
        }
        return {
            "protocolVersion": VERSION,
            "agentInfo": {"name": "moryflow", "title": "Moryflow", "version": __version__},
            "agentCapabilities": capabilities,
            "authMethods": [SETUP_METHOD] if self._capability("auth", "terminal") is True else [],
        }

    def _capability(self, *names: str) -> Any:
        found: Any = self._client
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    async def _authenticate(self, params: Params) -> dict[str, Any]:
        if params.get("methodId") != SETUP:
            raise RpcError(INVALID_PARAMS, "there is no such method of authentication", "moryflow acp --setup, in a terminal")
        await self._host.refresh()
        self._require_model()
        return {}

    def _require_model(self) -> None:
        if self._client is None:
            raise RpcError(INVALID_REQUEST, "the connection is not initialized", "send initialize first")
        host, wish = self._host, self._options.model or self._host.config.get("model")
        models = host.models(host.plugin_set)
        if not (wish or host.agent(self._options.agent).model or models.default()):
            try:
                models.choose()
            except ConfigError as error:
                raise RpcError(AUTH_REQUIRED, error.message, error.next_step, "no_model") from error

    # ---------------------------------------------------------------- sessions

    async def _new(self, params: Params) -> dict[str, Any]:
        await self._host.refresh_if_changed()
        self._require_model()
        vault = self._folder(params)
        options = self._options
        session = await self._host.new_session(vault, agent=options.agent, model=options.model, mode=options.mode)
        return {"sessionId": session.id, **self._opened_answer(self._open(session), params)}

    async def _load(self, params: Params) -> dict[str, Any]:
        opened = await self._open_stored(params)
        await opened.replay()
        return self._opened_answer(opened, params)

    async def _resume(self, params: Params) -> dict[str, Any]:
        return self._opened_answer(await self._open_stored(params), params)

    async def _open_stored(self, params: Params) -> EditorSession:
        """Open a stored session; the client must name the folder that it belongs to."""
        self._require_model()
        name, vault = _text(params, "sessionId"), self._folder(params)
        row = await self._row(name)
        if Path(row.vault) != vault:
            raise RpcError(INVALID_PARAMS, f"the session belongs to {row.vault}", "open it there")
        known = self._sessions.get(row.id)
        if known is not None and known.working:
            raise RpcError(INVALID_REQUEST, "the session is working on a prompt", "wait until it ends, or cancel it", "busy")
        if known is not None:
            await known.close()
        session = await self._host.resume(row.vault, row.id)
        opened = self._open(session)
        await opened.count_cost()
        return opened

    async def _row(self, name: str) -> SessionRow:
        try:
            row = await self._host.store.session(name)
        except MoryflowError as error:
            raise RpcError(NOT_FOUND, error.message, "session/list", "not_found") from error
        if row.id != name or row.purpose != "main" or row.parent is not None:
            raise RpcError(NOT_FOUND, f"there is no session {name[:100]!r}", "session/list", "not_found")
        return row

    def _open(self, session: Session) -> EditorSession:
        notices = self._capability("session", "notices") is not None
        opened = EditorSession(self._connection, self._host, session, lambda: self._models, notices)
        self._sessions[session.id] = opened
        for record in self._host.plugin_set.records:
            if record.status == "failed":
                opened.notice(f"plugin {record.name} failed: {record.error}. Next: moryflow plugin check {record.name}")
        return opened

    def _opened_answer(self, opened: EditorSession, params: Params) -> dict[str, Any]:
        """Return the answer for an opened session; its commands, the models and a notice are sent later."""
        servers = params.get("mcpServers")
        work = self._introduce(opened, servers if isinstance(servers, list) else [])
        task = asyncio.create_task(work)  # it begins when the answer has been sent
        self._introductions.add(task)
        task.add_done_callback(self._introductions.discard)
        return opened.state()

    async def _introduce(self, opened: EditorSession, servers: Sequence[Any]) -> None:
        opened.tell_commands()
        if self._learning is None:
            self._learning = asyncio.create_task(self._learn_models())
        known = self._host.config.section("mcp.servers")
        named = [str(server.get("name"))[:100] for server in servers if isinstance(server, Mapping)]
        if left_out := ", ".join(name for name in named if name not in known):
            opened.notice(visible(f"MCP servers of the editor are not used: {left_out[:1_000]}. Next: moryflow mcp add"))

    async def _learn_models(self) -> None:
        """Load the list of models and send it; it may need requests to services, so no answer waits for it."""
        self._models = tuple(await known_models(self._host))
        for opened in self._sessions.values():
            opened.tell_options()

    def _folder(self, params: Params) -> Path:
        folder = _text(params, "cwd")
        if not Path(folder).is_absolute():
            raise RpcError(INVALID_PARAMS, "cwd is an absolute path")
        if params.get("additionalDirectories"):
            raise RpcError(INVALID_PARAMS, "a session has one folder", "leave additionalDirectories out")
        try:
            return readable_vault(folder)
        except ConfigError as error:
            raise RpcError(INVALID_PARAMS, f"{error.where}: {error.message}", "open another folder") from error

    async def _list(self, params: Params) -> dict[str, Any]:
        cwd, cursor = params.get("cwd"), params.get("cursor")
        if cursor is not None and not (isinstance(cursor, str) and cursor.isdecimal() and len(cursor) < 7):
            raise RpcError(INVALID_PARAMS, "this cursor is unknown")
        vault = str(self._folder({"cwd": cwd})) if cwd is not None else None
        store, first = self._host.store, int(cursor or 0)
        rows = await store.sessions(first + PAGE + 1, vault=vault)
        shown = [await with_title(store, row) for row in rows[first : first + PAGE]]
        more = {"nextCursor": str(first + PAGE)} if len(rows) > first + PAGE else {}
        found = [{"sessionId": row.id, "cwd": row.vault, "title": row.title, "updatedAt": row.updated} for row in shown]
        return {"sessions": found, **more}

    def _session(self, params: Params) -> EditorSession:
        name = _text(params, "sessionId")
        if name not in self._sessions:
            raise RpcError(NOT_FOUND, f"there is no open session {name[:100]!r}", "session/new or session/load", "not_found")
        return self._sessions[name]

    async def _close(self, params: Params) -> dict[str, Any]:
        opened = self._session(params)
        await opened.close()
        self._sessions = {name: one for name, one in self._sessions.items() if one is not opened}
        return {}

    async def _prompt(self, params: Params) -> dict[str, Any]:
        opened = self._session(params)
        return await opened.prompt(prompt_of(params.get("prompt"), opened.vault))

    def _cancel(self, params: Params) -> None:
        opened = self._sessions.get(str(params.get("sessionId")))
        if opened is not None:
            opened.cancel()

    async def _set_mode(self, params: Params) -> dict[str, Any]:
        await self._session(params).set_mode(_text(params, "modeId"))
        return {}

    async def _set_option(self, params: Params) -> dict[str, Any]:
        opened = self._session(params)
        await opened.choose(_text(params, "configId"), params.get("value"))
        return {"configOptions": opened.options()}

    # ---------------------------------------------------------------- reloads

    def _reloaded(self, report: ReloadReport) -> None:
        """Report a reload on standard error, which editors log; send every session its commands and options anew."""
        sys.stderr.write("".join(f"{line}\n" for line in report.lines()))
        self._ask_about_code()
        for opened in self._sessions.values():
            opened.tell_commands()
            opened.tell_options()

    def _ask_about_code(self) -> None:
        """Show a notice for new code that waits for the user's consent, because an agent may have written it."""
        waiting, self._reloader.asking = self._reloader.asking, []
        for item in waiting:
            for opened in self._sessions.values():
                opened.notice(f"{item} is new code and waits for you: {consent_command(item)}")

    def _on_event(self, event: Event) -> None:
        if event.type == "turn.finish":
            self._ask_about_code()


SETUP_METHOD = {
    "type": "terminal",
    "id": SETUP,
    "name": "Set up a model",
    "description": "Says which model answers, or offers one that needs no key",
    "args": [f"--{SETUP}"],
}


def _text(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RpcError(INVALID_PARAMS, f"{name} is missing, or is not text")
    return value
