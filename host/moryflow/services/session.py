"""The services that concern a session: history, title and notes, rules, child sessions, a model call beside the turn."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from moryflow_sdk import (
    Agent,
    ChatParams,
    Finished,
    Message,
    ModelError,
    ModelRequest,
    MoryflowError,
    NodeView,
    PluginError,
    Rule,
    SessionView,
    SpawnResult,
    StoredCall,
    TextDelta,
    ToolError,
    Usage,
    thaw,
)
from moryflow_sdk.support.own_files import exists

from moryflow.base.events import now
from moryflow.kernel.turn_context import SpawnRequest
from moryflow.store import RunRow

if TYPE_CHECKING:
    from moryflow_sdk import ModelInfo, ModelProvider

    from moryflow.kernel.turn_context import Journal, Subagents, TurnContext
    from moryflow.store import CallRow, Node, SessionRow

V = TypeVar("V", NodeView, SessionView, StoredCall)


class HistoryService:
    """Reads stored sessions. The only change is :meth:`switch`, which takes effect at the turn's next pause."""

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope
        self._store = scope.around.store

    async def sessions(self, *, limit: int = 50) -> Sequence[SessionView]:
        return [view_of(SessionView, row) for row in await self._store.sessions(limit=limit)]

    async def path(self, session: str | None = None) -> Sequence[NodeView]:
        asked = session or self._scope.session
        nodes: Sequence[Node] = self._scope.live.hold.path if asked == self._scope.session else ()
        if not nodes or any(node.kind == "compaction" for node in nodes):  # covered nodes are only in the store
            nodes = await self._store.path(asked)
        return [view_of(NodeView, node) for node in nodes]

    async def calls(self, *, session: str | None = None, since: str | None = None) -> Sequence[StoredCall]:
        return [_call(row) for row in await self._store.calls(session=session, since=since)]

    async def spent(
        self, *, session: str | None = None, agent: str | None = None, folder: Path | None = None, since: str = ""
    ) -> float:
        scope = self._scope
        within = (session is None or session in scope.lineage) and (folder is None or scope.vault.is_relative_to(folder))
        session = scope.lineage[-1] if session in scope.lineage else session
        stored = await self._store.spent(session=session, agent=agent, folder=str(folder) if folder else None, since=since)
        budget = scope.budget
        while agent is None and budget.above is not None:  # what its sub-agents spend counts there at once
            budget = budget.above
        return stored + (budget.cost if within and agent in (None, scope.agent.id) else 0.0)

    async def switch(self, node: str | None) -> None:
        self._scope.live.inbox.append(lambda journal: journal.switch(node))


def view_of(kind: type[V], row: SessionRow | Node | CallRow, **other: Any) -> V:
    """Return a row of the store as plugins see it; fields in `other` are not taken from the row."""
    return kind(**{name: getattr(row, name) for name in kind.model_fields if name not in other}, **other)


def _call(row: CallRow) -> StoredCall:
    try:
        args = json.loads(row.args)
    except ValueError:
        args = {}
    return view_of(StoredCall, row, args=args if isinstance(args, dict) else {})


class Done:
    """The result of a call that is already complete: a plain function may ignore it, an async function may await it."""

    def __await__(self) -> Generator[None]:
        yield from ()


DONE = Done()


class InfoService:
    """Sets the title and appends notes. Both wait in the session's inbox until the turn pauses.

    The methods may be called from any thread: they only append to a list.
    """

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope

    def set_title(self, title: str, *, instead_of: str | None = None) -> Done:
        def change(journal: Journal) -> None:
            if instead_of is None or journal.title in ("", instead_of):
                journal.session(title=title[:200])
                journal.event("session.title", title=title[:200])

        self._scope.live.inbox.append(change)
        return DONE

    def note(self, text: str, *, title: str = "", go_on: bool = False) -> Done:
        live = self._scope.live

        def record(journal: Journal) -> None:
            journal.node("note", {"text": text, "title": title})
            live.goes_on = live.goes_on or go_on

        live.notes.append(record)
        return DONE


class RulesService:
    """Reads configured rules and session grants; appends to either and removes from either."""

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope

    def all(self) -> Sequence[Rule]:
        return (*self._scope.around.config.rules(self._scope.vault), *self._scope.live.grants)

    def problems(self) -> Sequence[str]:
        """Return the problems of rules that could not be read, and of files whose rules may therefore be missing."""
        problems = self._scope.around.config.problems
        return [str(one) for one in problems if one.fatal or one.code == "rule_invalid"]

    def commands(self, text: str) -> Sequence[str]:
        """Return the simple commands that a built-in plugin finds in `text`; without such a plugin, `text` itself."""
        plugins = self._scope.plugin_set.plugins.values()
        builtins: list[Any] = [plugin.object for plugin in plugins if plugin.tier == "builtin"]
        reader = next((one for one in builtins if hasattr(one, "simple_commands")), None)
        return reader.simple_commands(text) if reader else (text,)

    async def answered(self) -> tuple[str, Sequence[Rule]]:
        mine = [rule.replace(source="user", file=None, line=None, index=None) for rule in self.all() if rule.source == "user"]
        answers = await self._scope.around.store.approvals(state="replied")
        for row in sorted(answers, key=lambda row: row.replied_at or "", reverse=True):
            stored = row.request.get("rules", {}).get(row.reply, ())
            there = [rule for rule in map(Rule.model_validate, stored) if rule in mine]
            if there:
                return row.session, there
        return "", ()

    async def append(self, rule: Rule, *, scope: Literal["user", "session"]) -> str:
        granted = rule.replace(source="session")
        new = granted not in self._scope.live.grants
        if new:
            self._scope.live.grants.append(granted)
        if scope == "session":
            if new:
                await self._tell("stored", granted, "session")
            return ""
        from moryflow.config import values

        file = self._scope.around.config.path
        conditions = {key: thaw(value) for key in ("folder", "contents") if (value := getattr(rule, key))}
        entry = {"domain": rule.domain, "pattern": rule.pattern, "decision": rule.decision, **conditions}
        try:
            stored = await asyncio.to_thread(values.append_rule, file, entry)
        except MoryflowError:
            if new:
                await self._tell("stored", granted, "session")
            raise
        if stored:
            await self._tell("stored", rule, "user")
        return f"{file}:{await asyncio.to_thread(values.line_of_rule, file, entry)}"

    async def remove(self, rule: Rule) -> None:
        if rule.source == "session":
            self._scope.live.grants.remove(rule)
            grants = [one.model_dump(exclude_defaults=True) for one in self._scope.live.grants]
            self._scope.live.inbox.append(lambda journal: journal.session(grants=grants))
            await self._tell("removed", rule, "session")
            return
        from moryflow.config import values

        await asyncio.to_thread(values.remove_rule, self._scope.around.config.path, rule)
        await self._tell("removed", rule, "user")

    async def _tell(self, change: str, rule: Rule, scope: str) -> None:
        """Tell observers that a rule was stored or removed; the event itself is not stored."""
        said = rule.model_dump(include={"domain", "pattern", "decision", "folder", "contents"}, exclude_defaults=True)
        event = self._scope.event("permission.rule", change=change, scope=scope, **said)
        self._scope.around.bus.publish(event)
        await self._scope.around.dispatcher.observe(self._scope, event)


class SpawnService:
    """Starts child sessions for one plugin, which cannot choose the parent, the permissions or the recorded starter."""

    def __init__(self, scope: TurnContext, plugin: str) -> None:
        self._scope = scope
        self._plugin = plugin

    async def __call__(
        self,
        agent: str | Agent,
        prompt: str,
        *,
        session: str | None = None,
        rules: Sequence[Rule] = (),
        metadata: Mapping[str, Any] | None = None,
        title: str = "",
        background: bool = False,
    ) -> SpawnResult:
        wish = SpawnRequest(agent, prompt, session, tuple(rules), metadata or {}, title[:200], background)
        return await self._children.run(self._scope, self._plugin, wish)

    def agents(self) -> Sequence[Agent]:
        known = (agent for agent in self._children.agents(self._scope).values() if agent.mode in ("subagent", "all"))
        there = self._scope.vault
        return [agent for agent in known if not agent.hidden and (not agent.needs or exists(there / agent.needs))]

    async def depth(self) -> int:
        return await self._children.depth(self._scope)

    def running(self) -> Sequence[SessionView]:
        return [view_of(SessionView, row) for row in self._children.rows()]

    @property
    def _children(self) -> Subagents:
        if self._scope.children is None:
            raise PluginError(f"plugin {self._plugin!r} cannot start an agent here: this turn runs nothing")
        return self._scope.children


class CompleteService:
    """Asks the turn's model, or another model, beside the conversation.

    Chat hooks are not called. The cost counts towards the turn, and each call is recorded as a run of its own.
    """

    def __init__(self, scope: TurnContext, plugin: str) -> None:
        self._scope = scope
        self._plugin = plugin
        self._busy = False

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        model: str | None = None,
        system: str = "",
        params: ChatParams | None = None,
        agent: str | None = None,
        timeout: float = 60.0,
    ) -> str:
        """Return the answer's text; see :class:`moryflow_sdk.services.Complete`.

        :raises ModelError: the call failed or took longer than `timeout` seconds.
        :raises PluginError: the plugin is already waiting for another answer.
        :raises ToolError: there is no such agent.
        """
        if self._busy:
            raise PluginError(f"plugin {self._plugin!r} asked a model while it was asking one; complete() does not nest")
        self._busy = True
        begun, usage, reason = now(), Usage(), "model_error"
        chosen = self._agent(agent)
        wish = model or (chosen.model if chosen else None)
        asked = wish or ""
        try:
            provider, info = self._model(wish)
            asked = info.id
            async with asyncio.timeout(timeout):
                answer, usage = await _answer(provider, self._request(messages, info, system, params, chosen))
            self._scope.extra_usage.append((usage, info.cost(usage)))
            reason = "completed"
            return answer
        except TimeoutError as error:
            raise ModelError(f"the model did not answer within {timeout:g} s", code="timeout") from error
        except asyncio.CancelledError:
            reason = "interrupted"
            raise
        finally:
            self._busy = False
            self._record(chosen, asked, reason, usage, begun)

    def _agent(self, name: str | None) -> Agent | None:
        if name is None:
            return None
        found = self._scope.plugin_set.agents.get(name)
        if found is None:
            raise ToolError(f"there is no agent {name!r}", code="unknown_agent")
        return found

    def _model(self, wish: str | None) -> tuple[ModelProvider, ModelInfo]:
        scope = self._scope
        current = scope.model.id if scope.model else scope.live.row.model or None  # the turn of a command has no model
        try:
            return scope.around.models(scope.plugin_set).choose(wish, current)
        except MoryflowError as error:
            raise ModelError(error.message, code="not_found", next_step=error.next_step) from error

    def _request(
        self,
        messages: str | Sequence[Message],
        info: ModelInfo,
        system: str,
        params: ChatParams | None,
        agent: Agent | None,
    ) -> ModelRequest:
        turns = [Message(role="user", text=messages)] if isinstance(messages, str) else list(messages)
        prompt = system or (agent.prompt if agent else "")
        head = [Message(role="system", text=prompt)] if prompt else []
        own = ChatParams(**agent.settings.model_dump()) if agent else ChatParams()
        purpose = "title" if agent is not None and agent.id == "title" else "complete"  # the id "title" is reserved
        return ModelRequest(
            model=info, messages=(*head, *turns), params=params or own, purpose=purpose, session=self._scope.session
        )

    def _record(self, agent: Agent | None, model: str, reason: str, usage: Usage, begun: str) -> None:
        """Record a run of purpose ``complete`` for the trace; it is stored at the turn's next pause."""
        scope = self._scope
        row = RunRow(
            id=f"c_{secrets.token_hex(6)}",
            session=scope.session,
            purpose="complete",
            agent=agent.id if agent else self._plugin,
            model=model,
            plugin_set=scope.plugin_set.id,
            state="ended",
            end_reason=reason,
            usage=usage.model_dump(),
            steps=1,
            started=begun,
            ended=now(),
        )
        scope.live.inbox.append(lambda journal: journal.run(row))


async def _answer(provider: ModelProvider, request: ModelRequest) -> tuple[str, Usage]:
    parts: list[str] = []
    usage = Usage()
    async for event in provider.stream(request):
        if isinstance(event, TextDelta):
            parts.append(event.text)
        elif isinstance(event, Finished):
            usage = event.usage
    return "".join(parts), usage
