"""The context of a turn: its generation, session, records and journal, and the ports to the rooms above the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moryflow_sdk import (
    Agent,
    Artifact,
    Ask,
    Event,
    ModelInfo,
    ModelProvider,
    Rule,
    Ruling,
    Spawned,
    SpawnResult,
    Target,
    Tool,
    ToolCall,
    ToolContext,
    ToolSchema,
    Turn,
    Usage,
    freeze,
)

from moryflow.base.events import later, now
from moryflow.base.foreign_errors import describe, plugin_error
from moryflow.hooks.ledger import Ledger, Quarantine
from moryflow.hooks.plugin_set import HookFailure
from moryflow.store import ROOT, ApprovalRow, CallRow, Commit, NewNode, RunRow, StoreError
from moryflow.store.messages import ContextBuilder

from .outcome import Budget, ChildUsage, SessionPermissions, TurnUsage

if TYPE_CHECKING:
    from moryflow_sdk.models import Purpose
    from moryflow_sdk.services import Files

    from moryflow.base.events import Bus
    from moryflow.config import Config
    from moryflow.hooks.dispatcher import Dispatcher
    from moryflow.hooks.plugin_set import PluginSet, RegisteredTool
    from moryflow.store import SessionLock, SessionRow, Store

    from .outcome import EndReason, OnAsk

# The name under which the host keeps its own state of a session, beside those of the plugins.
HOST_STATE = "moryflow"
_as_text = json.JSONEncoder(sort_keys=True, default=str).encode
# Error codes after which nothing of a commit is on the disk, and a later commit may succeed.
_NOTHING_STORED = ("no_space", "locked", "readonly")


@dataclass(eq=False, repr=False)
class TurnContext:
    """One turn: its generation, session, model and records. It is the scope that the dispatcher is called with.

    :ivar started: the parent turn, if this turn is a sub-agent's; `children` starts this turn's own sub-agents.
    :ivar schema: the JSON Schema that the answer must fit.
    :ivar offered: the tools the model may call, fixed once they are first asked for. Tools in `findable` are added
        when the session has found them.
    :ivar spent: usage of children that is not yet on this turn's account; `ending` is why this turn must end with its step;
        `over`, whether it has ended.
    """

    around: TurnDependencies
    live: SessionHandle
    plugin_set: PluginSet
    turn: str
    agent: Agent
    model: ModelInfo | None
    purpose: Purpose
    headless: bool
    children: Subagents | None = None
    started: ParentTurn | None = None
    schema: Mapping[str, Any] | None = None
    budget: Budget = field(default_factory=Budget)
    usage: TurnUsage = field(default_factory=TurnUsage)
    spent: list[ChildUsage] = field(default_factory=list[ChildUsage])
    ending: EndReason | None = None
    over: bool = False
    step: int = 0
    node: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    failures: list[HookFailure] = field(default_factory=list)
    notices: list[Event] = field(default_factory=list)
    extra_usage: list[tuple[Usage, float | None]] = field(default_factory=list)
    files: Files | None = None
    offered: Mapping[str, RegisteredTool] | None = None
    findable: Mapping[str, RegisteredTool] = field(default_factory=dict[str, "RegisteredTool"])
    artifacts: list[Artifact] = field(default_factory=list)
    _views: dict[str, Turn] = field(default_factory=dict)
    _saved: dict[tuple[str, str], str] = field(default_factory=dict)
    _refused: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    session: str = field(init=False)

    def __post_init__(self) -> None:
        self.session = self.live.row.id
        self.ledger.keeps_inputs = self.around.keeps_inputs

    @property
    def lineage(self) -> tuple[str, ...]:
        """The id of this session, then of its parent sessions, nearest first."""
        return (self.session, *(self.started.scope.lineage if self.started else ()))

    @property
    def quarantine(self) -> Quarantine:
        return self.live.quarantine

    @cached_property
    def vault(self) -> Path:
        return self.around.config.place(self.live.row.vault)

    def view(self, plugin: str) -> Turn:
        """Return the :class:`Turn` that `plugin` sees; one object per plugin and turn."""
        view = self._views.get(plugin)
        if view is None:
            view = self._views[plugin] = self.around.view(self, plugin)
        return view

    def event(self, kind: str, /, **data: Any) -> Event:
        """Return an event with the ids of this session, agent, turn and step."""
        return Event.model_construct(
            type=kind,
            session=self.session,
            ts=now(),
            parent=self.live.row.parent,
            agent=self.agent.id,
            turn=self.turn,
            step=self.step or None,
            data=freeze(data),
        )

    def report(self, failure: HookFailure) -> None:
        """Keep a failed hook call; the journal publishes it with the next commit."""
        self.failures.append(failure)
        kind = "plugin.quarantined" if failure.quarantined else "plugin.failed"
        self.notices.append(self.event(kind, **failure.as_event()))

    def state_of(self, plugin: str, lasting: bool) -> dict[str, Any]:
        """Return the state `plugin` may change: that of the session if `lasting`, else that of the turn."""
        place = self.live.state if lasting else self.live.turn_states
        key = (plugin, "session" if lasting else f"turn:{self.turn}")
        found = place.setdefault(plugin, {})
        if key not in self._saved:
            self._saved[key] = _as_text(found)
        return found

    def changed_state(self) -> dict[tuple[str, str], Any]:
        """Return the plugin states that changed since the last commit, and count them as committed."""
        changed = self.state_changes()
        self._saved.update(changed)
        return {key: json.loads(after) for key, after in changed.items()}

    def state_changes(self) -> dict[tuple[str, str], str]:
        """Return the plugin states that changed since the last commit, as JSON text by plugin and place."""
        found: dict[tuple[str, str], str] = {}
        for key, before in self._saved.items():
            place = self.live.state if key[1] == "session" else self.live.turn_states
            try:
                after = _as_text(place[key[0]])
            except BaseException as error:  # the plugin's own values: it loses this state, but the commit succeeds
                self._report_unstorable(key, plugin_error(error))
                continue
            if after != before:
                found[key] = after
        return found

    def _report_unstorable(self, key: tuple[str, str], error: Exception) -> None:
        """Report, once a turn, that a plugin's state is not JSON."""
        plugin, name = key[0], "turn.session_state" if key[1] == "session" else "turn.state"
        if key in self._refused:
            return
        self._refused.add(key)
        loaded = self.plugin_set.plugins.get(plugin)
        text = f"{name} cannot be stored as JSON, so the previously stored value is kept: {describe(error)[0]}"
        tier, hint = loaded.tier if loaded else "user", f"moryflow plugin info {plugin}"
        self.report(HookFailure(plugin, tier, name, "failed", text[:2000], hint=hint, action="ignored"))


class Journal:
    """Collects what a turn writes. Nobody sees it before :meth:`commit`; a failed commit publishes nothing."""

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope
        self._next = Commit()
        self._hurry = asyncio.Event()

    def node(self, kind: str, payload: dict[str, Any], node_id: str = "") -> None:
        """Append a node to the active path."""
        self._next.nodes.append(NewNode(kind=kind, payload=payload, id=node_id))

    def call(self, row: CallRow) -> None:
        """Record where a tool call stands."""
        self._next.calls.append(row)

    def approval(self, row: ApprovalRow) -> None:
        """Record a question or its answer."""
        self._next.approvals.append(row)

    def run(self, row: RunRow) -> None:
        """Record where the turn stands."""
        self._next.runs.append(row)

    def session(self, **fields: Any) -> None:
        """Change fields of the session's own row."""
        self._next.session.update(fields)

    @property
    def title(self) -> str:
        """The session's title as the next commit leaves it."""
        return str(self._next.session.get("title", self._scope.live.row.title))

    def switch(self, node_id: str | None) -> None:
        """Make `node_id` the active node; ``None`` means the place before the first node."""
        self._next.active = node_id or ROOT

    def only_after(self, node_id: str) -> None:
        """Make the next commit store nothing unless `node_id` is still the active node when it is written."""
        self._next.after = node_id

    def event(self, kind: str, /, **data: Any) -> None:
        """Record a durable event, published after the commit."""
        self._next.events.append(self._scope.event(kind, **data))

    async def commit(self) -> None:
        """Write everything noted since the last commit and publish its events.

        If the turn is cancelled meanwhile, it still waits for the disk, so that memory and disk agree about what was written.
        """
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._hurry.set()
            await asyncio.wait((writing,))
            if not writing.cancelled():
                writing.exception()  # asyncio would log it; the turn ends as cancelled in any case
            raise

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Commit if the block lasts longer than `seconds`; after a shorter block leave it to the next commit."""
        writing: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(seconds, lambda: writing.append(asyncio.create_task(self.commit())))
        try:
            yield
        finally:
            timer.cancel()
            for begun in writing:
                await begun

    async def settle(self) -> None:
        """Commit what observers of the last events did: the state they changed, and their failures."""
        if self._scope.state_changes() or self._scope.notices:
            await self.commit()

    async def _write(self) -> None:
        scope, commit = self._scope, self._next
        self._next = Commit()
        commit.plugin_state = scope.changed_state()  # first: it may add a notice
        commit.events += scope.notices
        scope.notices = []
        commit.hook_calls = scope.ledger.drain()
        commit.artifacts, scope.artifacts = scope.artifacts, []
        try:
            committed = await scope.live.hold.commit_patiently(commit, self._wait_for_lock)
        except StoreError as error:
            if error.code in _NOTHING_STORED:  # else a later commit would store a result without its answer
                self._next = commit.joined(self._next)
            raise
        for event in committed.events:
            await self._publish(event)

    async def _wait_for_lock(self, refusal: StoreError, attempt: int, pause: float) -> bool:
        """Publish that another program keeps the database locked, and wait `pause` seconds.

        :returns: whether to try again; ``False`` if the turn is being stopped.
        """
        if self._hurry.is_set() or self._scope.live.cancelled:
            return False
        waits = {"attempt": attempt, "in": round(pause, 1), "at": later(pause), "reason": refusal.message}
        self.delta("session.status", status="retry", **waits)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), pause)
        return True

    def delta(self, kind: str, /, **data: Any) -> None:
        """Publish an event at once, without storing it."""
        event = self._scope.event(kind, **data)
        self._scope.around.bus.publish(event)
        self._scope.around.dispatcher.observe_soon(self._scope, event)

    async def _publish(self, event: Event) -> None:
        held_back = self._scope.live.held_back
        if held_back or (event.type, event.data.get("status")) == ("session.status", "idle"):
            held_back.append(event)
        else:
            self._scope.around.bus.publish(event)
        await self._scope.around.dispatcher.observe(self._scope, event)


@dataclass(eq=False, repr=False)
class SessionHandle:
    """A session whose lock this process holds, with everything that may change while a turn runs."""

    hold: SessionLock
    permissions: SessionPermissions
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    turn_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)
    cancelled: bool = False
    pinned: bool = False
    call_ids: set[str] = field(default_factory=set)
    asked_calls: set[str] = field(default_factory=set)
    interrupted_runs: list[RunRow] = field(default_factory=list)
    inbox: list[Callable[[Journal], None]] = field(default_factory=list)
    # Changes that wait for a pause of the turn: `inbox` for any pause, `notes` for one where no call is open.
    notes: list[Callable[[Journal], None]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list[str])
    # Whether a plugin wants a note of it answered in a turn of its own.
    goes_on: bool = False
    # Calls of an earlier turn that started and have no result.
    unfinished_calls: list[CallRow] = field(default_factory=list[CallRow])
    # The event that the session is idle, and those after it: published once no other turn of the session waits.
    held_back: list[Event] = field(default_factory=list[Event])

    @property
    def row(self) -> SessionRow:
        return self.hold.session

    @property
    def mode(self) -> str:
        return self.permissions.mode

    @property
    def grants(self) -> list[Rule]:
        return self.permissions.grants


@dataclass(eq=False, repr=False)
class TurnDependencies:
    """What a turn needs from its host. There is one per host; the kernel reaches the rest of the host only through it."""

    home: Path
    store: Store
    bus: Bus
    dispatcher: Dispatcher
    desk: Approvals
    config: Config
    services: Mapping[str, Callable[[TurnContext, str], Any]]
    base_prompt: Callable[[TurnContext], str]
    models: Callable[[PluginSet], ModelChoice]
    # Returns the `Turn` that a plugin sees.
    view: Callable[[TurnContext, str], Turn]
    # Returns the context of a tool body. Arguments: turn, plugin, call, handler of its questions, metadata for its result.
    tool_view: Callable[[TurnContext, str, ToolCall, Callable[[Ask], Awaitable[None]], dict[str, Any]], ToolContext]
    # Returns a hash of what a call does, to compare calls. May raise anything if the tool's schema is not understood.
    effect_of: Callable[[Tool, Mapping[str, Any], Sequence[Target]], str]
    compaction: Callable[[TurnContext, Journal, ModelProvider | None, Requests | None], Compaction]
    profile: str
    strict: bool
    keeps_inputs: bool
    watched: tuple[Path, ...]
    throttle: Throttle | None = None


class Throttle(Protocol):
    """Limits what a provider is asked for, over several processes; see :class:`moryflow.store.postgres.inbox.Inbox`."""

    async def take(self, provider: str) -> float: ...
    async def spend(self, provider: str, tokens: int) -> None: ...


class ModelChoice(Protocol):
    """The models of a generation; see :class:`moryflow.runtime.selection.Models`."""

    def choose(self, *wishes: str | None) -> tuple[ModelProvider, ModelInfo]: ...


class Approvals(Protocol):
    """Asks the user and waits for the answer; see :class:`moryflow.approvals.questions.ApprovalDesk`."""

    def from_any_thread(self, function: Callable[..., Any], *args: Any) -> None: ...
    async def settle(
        self,
        scope: TurnContext,
        journal: Journal,
        call: ToolCall,
        ruling: Ruling,
        on_ask: OnAsk,
        preview: str,
        *,
        ignore_earlier: bool = False,
    ) -> Ruling: ...
    async def preview(self, scope: TurnContext, owned: RegisteredTool, call: ToolCall) -> str: ...
    async def lapse(self, scope: TurnContext, journal: Journal, call: ToolCall) -> None: ...


class Subagents(Protocol):
    """Starts child sessions for a turn; see :class:`moryflow.runtime.subagents.Children`."""

    def agents(self, scope: TurnContext) -> dict[str, Agent]: ...
    async def depth(self, scope: TurnContext) -> int: ...
    def rows(self) -> Sequence[SessionRow]: ...
    async def run(self, scope: TurnContext, plugin: str, wish: SpawnRequest) -> SpawnResult: ...


class SpawnRequest(NamedTuple):
    """A plugin's request to start a child session: the arguments of :class:`moryflow_sdk.services.Spawn`."""

    agent: str | Agent
    prompt: str
    session: str | None
    rules: Sequence[Rule]
    metadata: Mapping[str, Any]
    title: str
    background: bool


class ParentTurn(NamedTuple):
    """The turn that started this one, and the plugin it did so for."""

    scope: TurnContext
    by: Spawned


class Compaction:
    """Called at the pauses of a turn, never between a call and its result. This base class does nothing."""

    async def before_step(self) -> None:
        """Shorten the view if the next request needs it. Never raises for its own failures."""

    async def recover(self) -> bool:
        """Shorten the view because the provider said it does not fit; return whether to ask the model again."""
        return False

    async def after_turn(self) -> None:
        """Prune what the next turn will not need."""


class Requests(Protocol):
    """What compaction uses of a turn's request builder; see :class:`moryflow.kernel.model_request.RequestBuilder`."""

    context: ContextBuilder

    def schemas(self) -> tuple[ToolSchema, ...]: ...
    async def overhead(self, size: Callable[[str], float]) -> float: ...
