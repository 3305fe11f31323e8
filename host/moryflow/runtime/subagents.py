"""The child sessions of one session: which may start, what each may do, and how its result reaches the parent.

Children that waited for an answer resume together with their parent, without asking the parent's model: the host makes
calls of the tool ``task``, which are judged like any other call.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moryflow_sdk import Agent, MoryflowError, Spawned, SpawnResult, ToolError, ToolRequest, freeze
from moryflow_sdk.support.texts import did_you_mean

from moryflow.agents import DEFAULT_AGENT, narrow_agent
from moryflow.kernel.outcome import ChildUsage, RunOptions, error_json
from moryflow.kernel.turn_context import ParentTurn

from .turn_result import AnswerSchema, TurnResult

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import Journal, SpawnRequest, TurnContext
    from moryflow.store import Node, SessionLock, SessionRow

    from .ports import SessionHost, SessionPort

# How many levels deep sessions may nest; the `task` tool has a lower limit of its own.
DEEPEST = 4
# Seconds that a stopped child gets to record where it stopped.
STOP_TIMEOUT = 10.0
# How often the model may correct an answer that does not fit the schema before the turn fails.
CORRECTIONS = 2


class Running(NamedTuple):
    """A child at work."""

    session: SessionPort
    task: asyncio.Task[TurnResult]
    background: bool
    title: str

    def cancel(self) -> None:
        """Stop the child. A second call does not interrupt what it does to stop, such as stopping its own children."""
        if not (self.session.busy or self.session.children.running):
            self.task.cancel()
        elif not self.session.stopping:
            self.session.cancel()

    async def stop(self) -> None:
        """Stop the child and wait until it has stored what it has, at most :data:`STOP_TIMEOUT` seconds."""
        self.cancel()
        await asyncio.wait((self.task,), timeout=STOP_TIMEOUT)


class Children:
    """Starts, resumes and stops the children of one session. Implements :class:`moryflow.kernel.turn_context.Subagents`."""

    def __init__(self, host: SessionHost, session: SessionPort) -> None:
        self._host = host
        self._session = session
        self._running: dict[str, Running] = {}
        self._reporting: set[asyncio.Task[None]] = set()
        self._stopped = self._reported = False
        self.spent: list[ChildUsage] = []

    @property
    def running(self) -> Sequence[Running]:
        """The children at work now."""
        return tuple(self._running.values())

    def rows(self) -> Sequence[SessionRow]:
        """The sessions of the children at work now."""
        return [one.session.row for one in self.running]

    def agents(self, scope: TurnContext) -> dict[str, Agent]:
        """Return every agent by id, as the generation of the turn `scope` has them."""
        return {DEFAULT_AGENT.id: DEFAULT_AGENT, **scope.plugin_set.agents}

    async def depth(self, scope: TurnContext) -> int:
        """Return how many ancestors the session of `scope` has, counted up to :data:`DEEPEST`."""
        depth, parent = 0, scope.live.row.parent
        while parent is not None and depth < DEEPEST:
            depth += 1
            try:
                parent = (await self._host.store.session(parent)).parent
            except MoryflowError:  # it was deleted
                break
        return depth

    async def run(self, scope: TurnContext, plugin: str, wish: SpawnRequest) -> SpawnResult:
        """Run the child that `plugin` requests; its tokens and cost count towards the turn of `scope`.

        :raises ToolError: the child cannot be started; nothing has run then.
        """
        child = await self._child(scope, plugin, wish)
        options = RunOptions(on_ask=self._session.options.on_ask)
        self._stopped = False
        task = asyncio.create_task(_run_to_the_end(child, wish.prompt, options))
        running = self._running[child.id] = Running(child, task, wish.background, wish.title)
        if wish.background:
            self._reported = True
            reporting = asyncio.create_task(self._report(scope, running))
            self._reporting.add(reporting)
            reporting.add_done_callback(self._reporting.discard)
            return SpawnResult(session=child.id, text="", end_reason="running")
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            await running.stop()
            raise
        finally:
            self._forget(child, scope.spent, task)
        result = _result(task)
        if result.end_reason in ("stopped", "approval_required"):
            scope.ending = result.end_reason
        return result

    async def settled(self) -> bool:
        """Wait until every background child has reported; return whether the agent has something new to answer."""
        waited = bool(self._reporting)
        while self._reporting:
            await asyncio.wait(tuple(self._reporting))
        return waited and not self._stopped

    @property
    def stopped(self) -> bool:
        """Whether the user has stopped children since the last child was started."""
        return self._stopped

    async def has_unanswered_result(self) -> bool:
        """Whether a child's result came so late that the agent has not answered it."""
        if not self._reported:
            return False
        path = await self._host.store.path(self._session.id)
        return path[-1].kind == "note" and "task" in path[-1].payload

    def cancel(self) -> None:
        """Stop every child; what each has so far is kept."""
        self._stopped = self._stopped or bool(self._running)
        for running in self.running:
            running.cancel()

    async def aclose(self) -> None:
        """Stop every child and wait until it has ended."""
        for running in self.running:
            await running.stop()
        if self._reporting:
            await asyncio.wait(tuple(self._reporting), timeout=STOP_TIMEOUT)

    # ---------------------------------------------------------------- starting

    async def _child(self, scope: TurnContext, plugin: str, wish: SpawnRequest) -> SessionPort:
        chosen = self._agent_named(scope, wish.agent)
        if await self.depth(scope) >= DEEPEST:
            raise ToolError(f"sub-agents nest at most {DEEPEST} deep", code="too_deep", next_step="do it yourself")
        if reached := scope.budget.reached():
            raise ToolError("the limit of this turn is reached; no sub-agent was started", code=reached)
        agent = narrow_agent(chosen, scope, wish.rules)
        model = chosen.model or (scope.model.id if scope.model else None)
        try:
            self._host.models(scope.plugin_set).choose(model, self._host.config.chosen("model", scope.vault))
        except MoryflowError as error:
            raise ToolError(error.message, code="unknown_model", next_step=error.next_step) from error
        by = Spawned(plugin=plugin, metadata=freeze(dict(wish.metadata)), turn=scope.turn, node=scope.node)
        started = ParentTurn(scope, by)
        if wish.session:
            return self._host.session(await self._earlier_child(scope, wish.session, chosen), agent, model, started)
        hold = await self._begin_child(scope, started, agent, wish.title)
        return self._host.session(hold.session, agent, model, started, hold)

    def _agent_named(self, scope: TurnContext, wanted: str | Agent) -> Agent:
        if isinstance(wanted, Agent):
            return wanted
        known = self.agents(scope)
        if wanted in known:
            return known[wanted]
        hint = did_you_mean(wanted, known) or f"; there are {', '.join(sorted(known))}"
        raise ToolError(f"there is no agent {wanted[:80]!r}{hint}", code="unknown_agent")

    async def _begin_child(self, scope: TurnContext, started: ParentTurn, agent: Agent, title: str) -> SessionLock:
        kept = agent.model_dump(mode="json", exclude_defaults=True)
        origin = {"spawn": {"plugin": started.by.plugin, "turn": scope.turn, "node": scope.node, "agent": kept}}
        return await self._host.store.begin_child(
            scope.live.row, agent=agent.id, mode=scope.live.mode, title=title, origin=origin
        )

    async def _earlier_child(self, scope: TurnContext, name: str, agent: Agent) -> SessionRow:
        mine = await self._host.store.sessions(100, purpose="child", parent=scope.session)
        row = next((row for row in mine if name in (row.id, (row.origin or {}).get("session"))), None)
        if row is None:
            known = ", ".join(f"{row.id} ({row.agent})" for row in mine[:8]) or "none yet"
            stayed = "; a fork's sub-agents stay with the original" if "node" in (scope.live.row.origin or {}) else ""
            raise ToolError(f"this session has no sub-agent {name[:80]!r}; it has {known}{stayed}", code="unknown_session")
        if row.agent != agent.id:
            raise ToolError(f"{row.id} is a session of {row.agent!r}, not of {agent.id!r}", code="wrong_agent")
        if working := self._running.get(row.id):
            how = "a note" if working.background else "the result of the call that it works for"
            raise ToolError(f"{row.id} is still running; its answer will arrive as {how}", code="busy")
        return row

    # ---------------------------------------------------------------- ending

    def _forget(self, child: SessionPort, account: list[ChildUsage], task: asyncio.Task[TurnResult]) -> None:
        child.release()
        self._running.pop(child.id, None)
        self._host.forget(child)
        if task.done() and not task.cancelled() and task.exception() is None:
            account.append(_usage_of(child, task.result()))

    async def _report(self, scope: TurnContext, running: Running) -> None:
        await asyncio.wait((running.task,))
        self._forget(running.session, self.spent, running.task)
        record = _end_note(running)
        try:
            await self._session.note(record, between_calls=False)
        except MoryflowError as error:  # another process holds the session; the note waits for the next turn here
            self._host.bus.publish(scope.event("error", **error_json(error)))


async def _run_to_the_end(child: SessionPort, prompt: str, options: RunOptions) -> TurnResult:
    """Prompt `child` and wait until its own background children have ended too, because nobody will prompt it again."""
    try:
        return await with_background(child, await child.prompt(prompt, options=options), options)
    finally:
        await child.children.aclose()


def _end_note(running: Running) -> Callable[[Journal], None]:
    child = running.session
    ended, error, text = "stopped", "", ""
    try:
        result = _result(running.task)
        ended, error, text = result.end_reason, result.error, result.text
    except asyncio.CancelledError:
        error = "it was stopped before it began"
    except ToolError as failed:
        ended, error = "host_error", failed.message
    what = f" ({running.title})" if running.title else ""
    parts = [f"The task {child.id} of {child.agent.id}{what} has ended: {ended}", error, text]
    note_text = "\n\n".join(filter(None, parts))

    def record(journal: Journal) -> None:
        about = {"session": child.id, "agent": child.agent.id, "end_reason": ended}
        journal.node("note", {"text": note_text, "title": f"{child.agent.id} has ended", "task": about})
        journal.event("task.finish", task=about, text=text)

    return record


def _result(task: asyncio.Task[TurnResult]) -> SpawnResult:
    error = task.exception() if not task.cancelled() else None
    if isinstance(error, MoryflowError):
        raise ToolError(error.message, code=error.code, next_step=error.next_step) from error
    result = task.result()
    return SpawnResult(
        session=result.session,
        text=result.text,
        end_reason=result.end_reason,
        usage=result.usage,
        cost=result.cost,
        steps=result.steps,
        denied=tuple(freeze(dict(denial)) for denial in result.denied),
        error=str(result.error or (result.shortfall.sentence if result.shortfall else "")),
    )


def _usage_of(child: SessionPort, result: TurnResult) -> ChildUsage:
    place = {"session": child.id, "agent": child.agent.id}
    denied = tuple({**place, **denial} for denial in result.denied)
    return ChildUsage(result.usage, result.cost, result.steps, denied, result.unasked)


async def with_background(session: SessionPort, result: TurnResult, options: RunOptions) -> TurnResult:
    """Wait for the background children of `session` and let its agent answer their results.

    :returns: `result`, or a result with the last answer and the sums of all turns.
    """
    children = session.children
    while result.end_reason == "completed" and (
        await children.settled() or children.stopped or await children.has_unanswered_result()
    ):
        if children.stopped:
            return result._replace(end_reason="stopped")
        left = limits_left(result, options)
        if not isinstance(left, RunOptions):
            return result._replace(end_reason=left)
        result = combine(result, await session.resume(left))
    return result


async def whole_answer(
    session: SessionPort, result: TurnResult, options: RunOptions, schema: AnswerSchema | None
) -> TurnResult:
    """Wait for background children, then ask again, up to :data:`CORRECTIONS` times, while the answer does not fit `schema`.

    Each correction is a turn of its own: it is stored in the session, counts against the limits, and can be undone.

    :returns: `result`, or a result with the last answer, its value, and the sums of all turns.
    """
    result = await with_background(session, result, options)
    for corrections in range(CORRECTIONS, -1, -1):
        if schema is None or result.end_reason != "completed":
            break
        value, fault = schema.read(result.text)
        result = result._replace(value=(value,) if not fault else (), unfit=fault)
        left = limits_left(result, options)
        if not fault or not corrections or not isinstance(left, RunOptions):
            break
        again = f"Your answer does not fit the JSON Schema: {fault}. Answer again with the JSON value and nothing else."
        following = await session.prompt(again, options=left, typed=0)
        result = combine(result, await with_background(session, following, left))
    return result


def limits_left(result: TurnResult, options: RunOptions) -> RunOptions | Literal["max_steps", "budget"]:
    """Return `options` with the limits reduced by what `result` used, or the name of the limit that it reached."""
    steps = options.max_steps and options.max_steps - result.steps
    if steps is not None and steps <= 0:
        return "max_steps"
    cost = options.max_cost and options.max_cost - (result.cost or 0.0)
    if cost is not None and cost <= 0:
        return "budget"
    return options._replace(max_steps=steps, max_cost=cost)


def combine(before: TurnResult, after: TurnResult) -> TurnResult:
    """Return `after` with the usage, cost, steps and refused calls of both turns."""
    known = [cost for cost in (before.cost, after.cost) if cost is not None]
    return after._replace(
        usage=before.usage + after.usage,
        cost=sum(known) if known else None,
        steps=before.steps + after.steps,
        denied=before.denied + after.denied,
        unasked=before.unasked or after.unasked,
    )


# The prompt of a call that resumes a sub-agent; a sub-agent that gets it first resumes its own waiting children.
GO_ON = "The question that was open has been settled. Go on with your task."
WAITING = "approval_required"


def waiting_children(path: Sequence[Node]) -> tuple[ToolRequest, ...]:
    """Return calls that resume the sub-agents which have waited for an answer since the last prompt."""
    prompts = (place for place, node in enumerate(path) if node.kind == "user" and not node.payload.get("synthetic"))
    waiting: dict[str, str] = {}
    for node in path[max(prompts, default=0) :]:
        about = _end_of_child(node)
        if about.get("end_reason") == WAITING:
            waiting[about["session"]] = about["agent"]
        for call in node.payload.get("calls") or () if node.kind == "assistant" else ():
            waiting.pop(_resumed_by(call), None)
    return tuple(
        tool_request(TOOL, {"agent": agent, "prompt": GO_ON, "task_id": session}) for session, agent in waiting.items()
    )


def tool_request(tool: str, arguments: Mapping[str, Any]) -> ToolRequest:
    """Return a call that the host makes in a model's place."""
    return ToolRequest(id=f"call_{secrets.token_hex(6)}", name=tool, arguments=json.dumps(arguments, ensure_ascii=False))


def _end_of_child(node: Node) -> Mapping[str, Any]:
    """Return what a node records of a sub-agent's end: it is a result of ``task``, or the note of a background child."""
    if node.kind == "tool" and node.payload["tool"] == TOOL:
        return node.payload.get("metadata") or {}
    return (node.payload.get("task") or {}) if node.kind == "note" else {}


def _resumed_by(call: Mapping[str, Any]) -> str:
    """Return the id of the sub-agent session that a call resumes, or ``""``; whether the call succeeded does not matter."""
    try:
        arguments = json.loads(call["arguments"]) if call["name"] == TOOL else {}
    except ValueError:
        return ""
    return str(arguments.get("task_id") or "") if isinstance(arguments, dict) else ""


TOOL = "task"
