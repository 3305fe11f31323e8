"""Questions to a person at an editor: ``session/request_permission``, and the answers.

An answer counts only for the call that was shown: each option's id contains the question's id and the hash of the judged
call, and any answer that is not one of the offered options refuses the call. An MCP server that the editor names is not
started before the person has said yes to what was shown of it.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Event, MoryflowError, thaw
from moryflow_sdk.support.texts import in_words, visible

from moryflow.config import values
from moryflow.runtime.session_lease import read_only_scope

from .updates import Update, fenced, kind_of, places_of, preview_content, text_block, title_of

if TYPE_CHECKING:
    from moryflow.approvals.questions import ApprovalDesk
    from moryflow.runtime.host import Host
    from moryflow.store import SessionRow

    from .connection import EditorConnection


_BY = "client"
FULL_ACCESS = "full_access allows every tool what you may do yourself, without asking; explicit denies stay"


class PermissionAsker:
    """Forwards the questions of a session and its sub-agents to the editor, and the answers to the host.

    :param session: the id under which the editor knows the session.
    """

    def __init__(
        self, connection: EditorConnection, desk: ApprovalDesk, session: str, vault: Path, domain: Callable[[str], str]
    ):
        self._connection, self._desk, self._session, self._vault = connection, desk, session, vault
        self._domain = domain
        self._open: dict[str, asyncio.Task[None]] = {}
        self._refused: set[tuple[str, ...]] = set()

    def __call__(self, event: Event) -> None:
        match event.type:
            case "permission.asked":
                approval = event.data["approval_id"]
                task = asyncio.get_running_loop().create_task(self._ask(approval, thaw(event.data)))
                self._open[approval] = task
                task.add_done_callback(lambda done: self._question_done(approval, done))
            case "permission.replied" | "permission.expired":
                self.withdraw(event.data["approval_id"])
            case _:
                pass

    def _question_done(self, approval: str, done: asyncio.Task[None]) -> None:
        """Remove a finished question; if asking it failed, refuse the call."""
        self._open.pop(approval, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "a question failed", "exception": error})
            self._open[approval] = asyncio.create_task(self._reply(approval, "reject", f"it could not be asked: {error}"))

    def withdraw(self, approval: str | None = None) -> None:
        """Withdraw one question or all: it was answered elsewhere, or its turn has ended."""
        for name, task in [*self._open.items()]:
            if approval in (None, name):
                task.cancel()

    async def _ask(self, approval: str, data: Mapping[str, Any]) -> None:
        about = (data["tool"], *map(str, _patterns(data) or (data["hash"],)))
        if about in self._refused:
            await self._reply(approval, "reject", "the user refused this before and does not want to be asked again")
            return
        offered = options_of(approval, data)
        try:
            answer = await _answer(self._connection, self._session, self._call(data), offered)
        except MoryflowError as error:
            await self._reply(approval, "reject", f"the editor could not ask: {error}")
            return
        match answer:
            case "once" | "always" | "exact" | "preset":
                await self._reply(approval, answer)
            case "reject_once" | "reject_always":
                self._refused |= {about} if answer == "reject_always" else set()
                await self._reply(approval, "reject")
            case "cancelled":
                await self._reply(approval, "stop")
            case _:
                await self._reply(approval, "reject", "the editor gave an answer that was not offered")

    async def _reply(self, approval: str, reply: str, message: str = "") -> None:
        self._open.pop(approval, None)  # otherwise the event of this reply would cancel the task that runs it
        with suppress(MoryflowError):  # it was answered elsewhere, or its turn has ended
            await self._desk.reply(approval, reply, message=message, by=_BY)

    def _call(self, data: Mapping[str, Any]) -> Update:
        tool, args, targets = data["tool"], data["args"], data["targets"]
        places = places_of(targets, self._vault, args)
        return {
            "toolCallId": data["call_id"],
            "title": title_of(tool, args),
            "kind": kind_of(tool, self._domain(tool)),
            "status": "pending",
            "content": [*_said(data), *preview_content(str(data.get("preview") or ""), targets, self._vault)],
            "rawInput": args,
            **({"locations": places} if places else {}),
        }


async def _answer(connection: EditorConnection, session: str, call: Update, offered: Sequence[Mapping[str, str]]) -> str:
    """Ask the person about `call`; return what the id of the chosen option begins with, ``cancelled``, or "" for all else."""
    shown = {"sessionId": session, "toolCall": call, "options": offered}
    match await connection.ask("session/request_permission", shown):
        case {"outcome": {"outcome": "selected", "optionId": chosen}}:
            return next((one["optionId"].partition(":")[0] for one in offered if one["optionId"] == chosen), "")
        case {"outcome": {"outcome": "cancelled"}}:
            return "cancelled"
        case _:
            return ""


def _patterns(data: Mapping[str, Any]) -> tuple[Any, ...]:
    remember = data.get("remember") or ()
    return (remember,) if isinstance(remember, str) else tuple(remember)


def _said(data: Mapping[str, Any]) -> list[Update]:
    """Return what will run, then who asks and what is unusual; no value can forge a line: line breaks in it are escaped.

    A command is shown as it was written, in a block of its own.
    """
    named = [*map(str, data["targets"])]
    commands = [fenced(visible(in_words(one), keep="\n\t")) for one in named if one.startswith("shell:")]
    others = [visible(in_words(one)) for one in named if not one.startswith("shell:") and in_words(one) != data["tool"]]
    folder, unusual = str(data.get("folder") or "vault:/"), str(data.get("unusual", data["reason"]))
    where = f" in {in_words(folder)}" if folder != "vault:/" else ""
    lines = [f"{data.get('agent', '')} wants to use {data['tool']}{where}", *others, *([f"! {unusual}"] if unusual else [])]
    return [*commands, text_block("\n\n".join(map(visible, lines)))]


def options_of(approval: str, data: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the offered answers. *Always* names the rule that it would store, and is missing if there is none to store."""
    about = f"{approval}:{str(data['hash'])[:16]}"
    always, exact = (visible(str(data.get(name) or "")) for name in ("always", "exact"))
    such = (
        f"all of {', '.join(visible(in_words(str(one))) for one in _patterns(data))}" if _patterns(data) else "the same again"
    )
    preset = data.get("preset")
    named = [
        ("once", "allow_once", "Once"),
        *([("always", "allow_always", f"Always: {always}")] if always else []),
        *([("exact", "allow_always", f"Always, exactly: {exact}")] if exact else []),
        *([("preset", "allow_always", f"From now on {visible(str(preset['says']))}")] if preset else []),
        ("reject_once", "reject_once", "Refuse"),
        ("reject_always", "reject_always", f"Refuse, and {such} without asking, in this session"),
    ]
    return [{"optionId": f"{name}:{about}", "name": text, "kind": kind} for name, kind, text in named]


async def full_access_confirmed(connection: EditorConnection, session: str) -> bool:
    """Ask the person to confirm full access; only an explicit yes counts."""
    options = [
        {"optionId": "confirm:full_access", "name": "Turn full access on", "kind": "allow_once"},
        {"optionId": "leave:full_access", "name": "Keep asking", "kind": "reject_once"},
    ]
    call = {"toolCallId": "mode:full_access", "title": "Full access", "kind": "switch_mode", "status": "pending"}
    try:
        return await _answer(connection, session, {**call, "content": [text_block(FULL_ACCESS)]}, options) == "confirm"
    except MoryflowError:
        return False


MOST_SERVERS = 32
"""How many servers a session asks about at most."""
MOST_SHOWN = 60_000
"""The most characters of a question."""


class EditorServers:
    """Asks about the MCP servers that the editor names, and remembers those about which the person wants no more questions."""

    def __init__(self, connection: EditorConnection, host: Host) -> None:
        self._connection, self._host = connection, host
        self._refused: set[str] = set()

    async def offer(self, row: Callable[[], SessionRow], notice: Callable[[str], None], servers: Sequence[Any]) -> None:
        """Ask about the servers that the editor named for a session, one after the other.

        :param row: returns the session's current row, which a person may change between two questions.
        :param notice: shows a text to the person.
        """
        for server in servers[:MOST_SERVERS]:
            if isinstance(server, Mapping):
                try:
                    said = await self._offer(row(), notice, server)
                except MoryflowError as error:
                    said = str(error)
                if said:
                    notice(visible(said))

    async def _offer(self, row: SessionRow, notice: Callable[[str], None], server: Mapping[str, Any]) -> str:
        name, entry = str(server.get("name"))[:100], _entry(server)
        built_in = [one for one in self._host.plugin_set.plugins.values() if one.tier == "builtin"]
        plugin = next((one for one in built_in if hasattr(one.object, "offer_server")), None)
        if plugin is None or entry is None:
            return f"the MCP server {name} is left out. Next: {_adding(server)}"
        key = _hash(repr((name, sorted(entry.items()))))
        if key in self._refused:
            return ""
        never: list[bool] = []

        async def ask(title: str, text: str) -> bool:
            if len(text) > MOST_SHOWN:
                notice(f"{title}: that is too long to be asked here")
                return False
            return await self._ask(row.id, title, text, never)

        turn = read_only_scope(self._host, row, None).view(plugin.name)
        path = self._host.config.path
        said = await plugin.object.offer_server(
            name, entry, turn, ask, lambda setting, value: values.set_value(path, setting, value)
        )
        self._refused |= {key} if never else set()
        return f"{said}. Next: {_adding(server)}" if said.endswith("is left out") else said

    async def _ask(self, session: str, title: str, text: str, never: list[bool]) -> bool:
        """Ask one question. A yes counts only for the shown text; any answer that was not offered is a no."""
        about = _hash(f"{title}\n{text}")
        names = {
            "allow_once": "Yes",
            "reject_once": "No",
            "reject_always": "No, and do not ask again until the editor restarts",
        }
        offered = [{"optionId": f"{kind}:{about}", "name": name, "kind": kind} for kind, name in names.items()]
        call = {"toolCallId": f"mcp:{about}", "title": visible(title), "kind": "execute", "status": "pending"}
        answer = await _answer(self._connection, session, {**call, "content": [fenced(text)]}, offered)
        never += [True] if answer == "reject_always" else []
        return answer == "allow_once"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _entry(server: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a server in the form of the configuration, or ``None`` if its form is not supported."""
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


def _adding(server: Mapping[str, Any]) -> str:
    """Return the command that adds a server, without its environment and headers, which may hold secrets."""
    name, args = str(server.get("name"))[:100], server.get("args")
    words = [str(server.get("command")), *map(str, args if isinstance(args, list) else ())]
    how = ["--url", str(server["url"])] if "url" in server else ["--", *words]
    return shlex.join(("moryflow", "mcp", "add", name, *how))[:1_000]
