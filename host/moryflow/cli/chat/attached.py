"""The turns of a conversation in a running server, through its HTTP operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from moryflow_sdk import Event, MoryflowError, SlashResult

from moryflow.cli.attached import BETWEEN, AttachedServer, AttachedSession, session_of, turn_body
from moryflow.compaction.measure import Report
from moryflow.plugins.reload_report import ReloadReport
from moryflow.runtime.documents import SessionTree
from moryflow.runtime.selection import mode_of
from moryflow.runtime.session_commands import Label
from moryflow.store import ApprovalRow, Node, RunRow, SessionRow

from . import AgentChoice, PluginLine, TurnPrompt

if TYPE_CHECKING:
    from moryflow.cli.options import Flags, RunFlags
    from moryflow.runtime.turn_result import TurnResult

T = TypeVar("T")
# A limit that is high enough for all nodes of a path.
EVERY = 1_000_000


class AttachedChatHost:
    """Does over a server what :class:`~moryflow.cli.chat.local.LocalChatHost` does in this process."""

    def __init__(self, server: AttachedServer, row: dict[str, Any]) -> None:
        self._server = server
        self._listeners: list[Callable[[Event], None]] = [self._note]
        self._tasks: set[asyncio.Task[None]] = set()
        self._reload_lock = asyncio.Lock()
        self._agents: dict[str, AgentChoice] = {}
        self._commands: dict[str, str] = {}
        self._tell_reload: Callable[[list[str]], None] = lambda _: None
        self._follows = False
        self._unfollow: Callable[[], None] = lambda: None
        self._open(row)

    @classmethod
    async def opened(cls, url: str, flags: Flags, chosen: RunFlags) -> AttachedChatHost:
        """Begin a session in the server, or find the one to continue.

        :raises MoryflowError: the server refuses, or does not answer.
        """
        server = await AttachedServer.found(url)
        found = cls(server, await session_of(server, flags, chosen))
        await found._fetch_lists()
        return found

    def _open(self, row: dict[str, Any]) -> None:
        """Make `row` the open session; follow its events if :meth:`start` was called."""
        self._unfollow()
        self._session = AttachedSession(self._server, row)
        self._session.subscribers = self._listeners
        if self._follows:
            self._unfollow = self._session.follow()

    async def _fetch_lists(self) -> None:
        agents = [one for one in await self._server.agents() if one["mode"] != "subagent"]
        self._agents = {
            one["id"]: AgentChoice(one["description"] or one["name"], one["mode"] == "primary") for one in agents
        }  # fmt: skip
        self._commands = {one["name"]: one["help"] for one in await self._server.commands()}

    def _note(self, event: Event) -> None:
        if event.type == "reload":
            self._in_background(lambda: self._show_reload(ReloadReport.of_event(event.data).lines(brief=True)))
        elif event.type in BETWEEN and event.session == self._session.id:
            self._in_background(self._fetch_row)

    async def _show_reload(self, lines: list[str]) -> None:
        """Show a reload after fetching its agents and commands: whoever reads of one may type it at once."""
        async with self._reload_lock:  # reloads are shown in their order
            with suppress(MoryflowError):  # the server is away, but the report is true all the same
                await self._fetch_lists()
            self._tell_reload(lines)

    def _in_background(self, work: Callable[[], Any]) -> None:
        async def done() -> None:
            with suppress(MoryflowError):  # the server does not answer: the next request says so
                await work()

        self._tasks.add(task := asyncio.create_task(done()))
        task.add_done_callback(self._tasks.discard)

    async def _fetch_row(self) -> None:
        self._session.row |= await self._server.session(self._session.id, limit=1)

    # ------------------------------------------------------------ the open session

    @property
    def row(self) -> SessionRow:
        return _row_of(SessionRow, self._session.row)

    @property
    def agent(self) -> str:
        return self.row.agent

    @property
    def mode(self) -> str:
        return self.row.mode

    notifies = True

    @property
    def busy(self) -> bool:
        return self._session.turn is not None

    @property
    def home(self) -> Path:
        return Path(self._server.home)

    @property
    def language(self) -> str:
        return self._server.language

    @property
    def place(self) -> str:
        return f"attached to {self._server.url}"

    @property
    def agents(self) -> Mapping[str, AgentChoice]:
        return self._agents

    @property
    def commands(self) -> Mapping[str, str]:
        return self._commands

    async def start(self, tell: Callable[[list[str]], None]) -> None:
        self._tell_reload, self._follows = tell, True
        self._unfollow = self._session.follow()

    async def aclose(self) -> None:
        self._unfollow()
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """Do nothing: before a turn the server itself waits until saved files are loaded."""

    def waiting(self) -> Sequence[str]:
        """Return nothing: the report about new code names the command that gives consent."""
        return ()

    async def give(self, item: str) -> None:
        """Do nothing: see :meth:`waiting`."""

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    async def turn(self, prompt: TurnPrompt, chosen: RunFlags) -> TurnResult:
        body = turn_body(chosen, prompt.on_ask, background="leave" if prompt.stays else "wait")
        if prompt.text is not None:
            body |= {"files": prompt.files, "images": prompt.images, "typed": prompt.typed}
        try:
            return await self._session.run(prompt.text, body)
        finally:
            with suppress(MoryflowError):  # the failure was shown already
                await self._fetch_row()

    def cancel(self) -> None:
        self._session.cancel()

    async def stop_children(self) -> int:
        return int((await self._server.cancel(self._session.id))["sub_agents"])

    # ------------------------------------------------------------ to look at

    async def model(self) -> tuple[str, int]:
        return str((await self._server.init(self._session.id))["model"]), 0

    async def session(self, name: str) -> SessionRow:
        return _row_of(SessionRow, await self._server.session(name, limit=1))

    async def sessions(self, limit: int) -> Sequence[SessionRow]:
        rows = await self._server.sessions(limit=limit, vault=self.row.vault)
        return [_row_of(SessionRow, row) for row in rows]

    async def path(self, session: str) -> Sequence[Node]:
        nodes = (await self._server.nodes(session, limit=EVERY))["nodes"]
        return [_row_of(Node, node) for node in nodes]

    async def tree(self) -> SessionTree:
        await self._fetch_row()
        return SessionTree.of_json(self.row, await self._server.tree(self._session.id))

    async def runs(self) -> Sequence[RunRow]:
        return [_row_of(RunRow, run) for run in (await self._server.session(self._session.id, limit=1))["turns"]]

    async def labels(self) -> Mapping[str, str]:
        return (await self._server.session(self._session.id, limit=1))["labels"]

    async def context(self) -> Report:
        return Report.of_json(await self._server.context(self._session.id))

    async def export(self) -> AsyncIterator[str]:
        for line in (await self._server.export(self._session.id)).splitlines():
            yield line

    async def whole_output(self, output: str) -> str:
        return await self._server.artifact(output)

    async def approvals(self) -> Sequence[ApprovalRow]:
        rows = await self._server.approvals(state="pending")
        return [_row_of(ApprovalRow, row) for row in rows]

    async def approval(self, approval: str) -> ApprovalRow:
        return _row_of(ApprovalRow, await self._server.approval(approval))

    async def models(self) -> Sequence[Mapping[str, Any]]:
        return await self._server.models()

    async def tools(self) -> Sequence[str]:
        return [one["name"] for one in await self._server.tools()]

    async def plugins(self) -> Sequence[PluginLine]:
        return [PluginLine(**{"error": "", **one}) for one in (await self._server.init(self._session.id))["plugins"]]

    # ------------------------------------------------------------ to change

    async def new(self, *, agent: str | None, model: str | None) -> None:
        row = await self._server.new_session(vault=self.row.vault, agent=agent, model=model)
        self._open(row)

    async def open(self, name: str, model: str | None) -> None:
        row = await self._server.session(name, limit=1)
        self._open(row)
        if model is not None and row["model"] != model:
            await self.change(model=model)

    async def change(self, **changes: str) -> None:
        if "mode" in changes:
            changes["mode"] = mode_of(changes["mode"])
        confirmed = {"confirm": True} if changes.get("mode") == "full_access" else {}
        self._session.row |= await self._server.change_session(self._session.id, **changes, **confirmed)

    async def switch(self, node: str | None) -> str | None:
        return (await self._server.switch(self._session.id, node))["active"]

    async def fork(self, node: str | None, model: str | None) -> str:
        copy = await self._server.fork(self._session.id, node=node)
        self._open(copy)
        return str(copy["remark"])

    async def label(self, text: str, *, remove: bool) -> Label:
        found = await self._server.label(self._session.id, text, remove=remove)
        return Label(found["label"], found["node"], found["was"])

    async def compact(self, focus: str) -> Mapping[str, object]:
        return await self._server.compact(self._session.id, focus=focus)

    async def command(self, name: str, text: str) -> SlashResult:
        done = await self._server.command(self._session.id, name, text=text)
        return SlashResult(done["text"], done["prompt"], done["foreign"])

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        row = await self._session.reply(approval_id, reply, message=message, by=by)
        return _row_of(ApprovalRow, row)

    async def nobody_left(self) -> None:
        await self._session.nobody_left()


def _row_of(kind: type[T], found: Mapping[str, Any]) -> T:
    row: Any = kind
    return row(**{name: found[name] for name in row._fields if name in found})
