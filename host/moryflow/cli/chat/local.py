"""The turns of a conversation in a host of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow.cli.findings import say_about_agent
from moryflow.kernel.outcome import RunOptions
from moryflow.plugins.reload import Reloader
from moryflow.runtime.documents import (
    context_report,
    fork_session,
    models_json,
    node_id_of,
    requested_label,
    tree_of,
    whole_output,
    with_title,
)
from moryflow.runtime.session_commands import compact_now, record_label, run_slash
from moryflow.runtime.subagents import with_background

from . import AgentChoice, PluginLine, TurnPrompt

if TYPE_CHECKING:
    from moryflow_sdk import Event, SlashResult

    from moryflow.cli.options import RunFlags
    from moryflow.compaction.measure import Report
    from moryflow.runtime.documents import SessionTree
    from moryflow.runtime.host import Host
    from moryflow.runtime.session import Session
    from moryflow.runtime.session_commands import Label
    from moryflow.runtime.turn_result import TurnResult
    from moryflow.store import ApprovalRow, Node, RunRow, SessionRow


class LocalChatHost:
    """Runs the turns of a conversation in a host of this process; `session` is the open session, which must be held.

    :param quiet: whether nothing is said about the file of an agent that is chosen.
    """

    place = ""

    def __init__(self, host: Host, session: Session, *, quiet: bool = False) -> None:
        self._host, self._session, self._quiet = host, session, quiet
        self._reloader: Reloader | None = None

    @property
    def row(self) -> SessionRow:
        return self._session.row

    @property
    def agent(self) -> str:
        return self._session.agent.id

    @property
    def mode(self) -> str:
        return self._session.mode

    @property
    def busy(self) -> bool:
        return self._session.busy

    @property
    def home(self) -> Path:
        return self._host.home

    @property
    def language(self) -> str:
        return str(self._host.config.get("language") or "en")

    @property
    def notifies(self) -> bool:
        return bool(self._host.config.get("chat.notify", True))

    @property
    def agents(self) -> Mapping[str, AgentChoice]:
        shown = (agent for agent in self._host.agents.values() if agent.mode != "subagent" and not agent.hidden)
        return {agent.id: AgentChoice(agent.description or agent.name, agent.mode == "primary") for agent in shown}

    @property
    def commands(self) -> Mapping[str, str]:
        return {one.name: one.help for one in self._host.plugin_set.commands.values() if one.slash is not None}

    async def start(self, tell: Callable[[list[str]], None]) -> None:
        self._reloader = Reloader(self._host, lambda report: tell(report.lines(brief=True)))
        self._reloader.start()

    async def aclose(self) -> None:
        if self._reloader is not None:
            await self._reloader.aclose()

    async def settled(self) -> None:
        if self._reloader is not None:
            await self._reloader.settled()

    def waiting(self) -> Sequence[str]:
        if self._reloader is None:
            return ()
        found, self._reloader.asking = self._reloader.asking, []
        return found

    async def give(self, item: str) -> None:
        if self._reloader is not None:
            await self._reloader.give(item)

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._host.bus.subscribe(listener)

    async def turn(self, prompt: TurnPrompt, chosen: RunFlags) -> TurnResult:
        on_ask: Any = prompt.on_ask
        effort: Any = chosen.effort
        options = RunOptions(on_ask=on_ask, max_steps=chosen.max_steps, max_cost=chosen.max_cost, effort=effort)
        session = self._session
        if prompt.text is None:
            result = await session.resume(options)
        else:
            given = {"files": prompt.files, "images": prompt.images, "typed": prompt.typed}
            result = await session.prompt(prompt.text, options=options, **given)
        return result if prompt.stays else await with_background(session, result, options)

    def cancel(self) -> None:
        self._session.cancel()

    async def stop_children(self) -> int:
        running = self._session.children.running
        self._session.cancel()
        await self._session.children.settled()
        return len(running)

    # ------------------------------------------------------------ to look at

    async def model(self) -> tuple[str, int]:
        """Return the model that answers next, and the tokens of its window; 0 if that is not known."""
        found = self._host.choose_model(self._session)[1]
        return found.id, found.context_window or 0

    async def session(self, name: str) -> SessionRow:
        return await with_title(self._host.store, await self._host.store.session(name))

    async def sessions(self, limit: int) -> Sequence[SessionRow]:
        """Return the sessions of this folder in which a model has answered, and the open one; last used first."""
        store = self._host.store
        rows = await store.sessions(limit, vault=self.row.vault)
        failed = {row.id for row in rows if all(run.end_reason == "model_error" for run in await store.runs(row.id))}
        return [await with_title(store, row) for row in rows if row.id not in failed or row.id == self.row.id]

    async def path(self, session: str) -> Sequence[Node]:
        return await self._host.store.path(session)

    async def tree(self) -> SessionTree:
        return await tree_of(self._host.store, self.row)

    async def runs(self) -> Sequence[RunRow]:
        return await self._host.store.runs(self.row.id)

    async def labels(self) -> Mapping[str, str]:
        return await self._host.store.labels(self.row.id)

    async def context(self) -> Report:
        return await context_report(self._host, self._session, None)

    def export(self) -> AsyncIterator[str]:
        return self._host.store.export(self.row.id)

    async def whole_output(self, output: str) -> str:
        return await whole_output(self._host, self._session, output)

    async def approvals(self) -> Sequence[ApprovalRow]:
        return await self._host.store.approvals(state="pending")

    async def approval(self, approval: str) -> ApprovalRow:
        return await self._host.store.approval(approval)

    async def models(self) -> Sequence[Mapping[str, Any]]:
        return await models_json(self._host)

    async def tools(self) -> Sequence[str]:
        return sorted(self._host.tools)

    async def plugins(self) -> Sequence[PluginLine]:
        records = self._host.plugin_set.records
        return [PluginLine(one.name, one.version, one.tier, one.status, one.error) for one in records]

    # ------------------------------------------------------------ to change

    async def new(self, *, agent: str | None, model: str | None) -> None:
        await self._exchange(await self._host.new_session(self.row.vault, agent=agent, model=model))

    async def open(self, name: str, model: str | None) -> None:
        await self._exchange(await self._host.resume(self.row.vault, name, model=model))

    async def _exchange(self, session: Session) -> None:
        if session is not self._session:
            await session.keep()
            self._session.release()
            self._session = session

    async def change(self, **changes: str) -> None:
        session = self._session
        if "mode" in changes:
            await session.set_mode(changes["mode"])
        if model := changes.get("model"):
            await session.set_model(model)
        if agent := changes.get("agent"):
            await session.set_agent(agent)
            say_about_agent(self._host, session.agent.source, quiet=self._quiet)

    async def switch(self, node: str | None) -> str | None:
        target = node and await node_id_of(self._host.store, self.row.id, node)
        await self._session.note(lambda journal: journal.switch(target))
        return target

    async def fork(self, node: str | None, model: str | None) -> str:
        copy, remark = await fork_session(self._host.store, self.row, node)
        await self.open(copy.id, model)
        return remark

    async def label(self, text: str, *, remove: bool) -> Label:
        label = await requested_label(self._host.store, self.row, text, None, remove=remove)
        await record_label(self._session, label)
        return label

    async def compact(self, focus: str) -> Mapping[str, object]:
        return await compact_now(self._host, self._session, focus)

    async def command(self, name: str, text: str) -> SlashResult:
        return await run_slash(self._host, self._session, name, text)

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        return await self._host.approvals.reply(approval_id, reply, message=message, by=by)

    async def nobody_left(self) -> None:
        await self._host.approvals.nobody_left()
