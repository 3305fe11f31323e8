"""A session as a host's caller uses it: prompt it, stop it, change its mode.

A prompt may bring files and images. They are checked before they are stored, because a node never changes and every later
turn reads it. An @ in the prompt names a sub-agent, or something that a tool recognises; it becomes a call in the turn's
first step and is judged like any other call. Only text that the user typed is searched for an @.
"""

from __future__ import annotations

import base64
import math
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Agent, ConfigError, Event, Image, ModelInfo, MoryflowError, ToolRequest, ToolResult
from moryflow_sdk.support.texts import nearest

from moryflow.kernel.outcome import MAX_FOLLOWING, Budget, EndReason, RunOptions
from moryflow.kernel.tool_executor import PreparedCall
from moryflow.kernel.turn import TurnLoop
from moryflow.kernel.turn_context import HOST_STATE, Journal, ParentTurn, SessionHandle, TurnContext
from moryflow.store import SessionLock, SessionRow
from moryflow.store.messages import ContextBuilder, with_files

from .selection import agent_of, change_agent, change_mode, change_model, check_choice
from .session_lease import Record, SessionLease
from .subagents import GO_ON, TOOL, Children, combine, limits_left, tool_request, waiting_children
from .turn_result import TurnResult
from .turn_task import DirectResult, TurnQueue, TurnTask, Work, can_continue, last_result, stream

if TYPE_CHECKING:
    from moryflow_sdk.models import Purpose

    from moryflow.hooks.ledger import Quarantine

    from .ports import SessionHost


def new_turn_id() -> str:
    """Return a new id for a turn."""
    return f"t_{secrets.token_hex(6)}"


class Session:
    """One conversation. Its lock is held for a turn, or from :meth:`keep` to :meth:`release` (as ``chat`` does)."""

    def __init__(
        self,
        host: SessionHost,
        row: SessionRow,
        agent: Agent,
        model: str | None,
        started: ParentTurn | None = None,
        hold: SessionLock | None = None,
    ) -> None:
        self._host = host
        self.agent = agent
        self.model = model
        self.context = ContextBuilder()
        self.children = Children(host, self)
        self.options = RunOptions()
        self._started = started
        self._lease = SessionLease(host.store, host.home, row, hold, started.scope.live.permissions if started else None)
        self._work = TurnTask()
        self._turns = TurnQueue(row.id)
        self._settling = self._goes_on = False

    @property
    def id(self) -> str:
        """The session's id, for :meth:`Host.resume` and ``moryflow run -r``."""
        return self.row.id

    @property
    def row(self) -> SessionRow:
        """The session's own record, as fresh as this process knows it."""
        return self._lease.row

    @property
    def mode(self) -> str:
        """``agent`` or ``full_access``."""
        return self._lease.mode

    @property
    def running(self) -> bool:
        """Whether a turn runs now."""
        return self._work.running

    @property
    def epoch(self) -> int:
        """The number of this holder while the session is held, else 0."""
        return self._lease.live.hold.epoch if self._lease.live else 0

    @property
    def busy(self) -> bool:
        """Whether a turn runs, or is still recording how it ended."""
        return self._settling

    @property
    def stopping(self) -> bool:
        """Whether the running turn was stopped."""
        live = self._lease.live
        return live is not None and live.cancelled

    # ---------------------------------------------------------------- turns

    async def prompt(
        self,
        text: str,
        *,
        files: Sequence[dict[str, str]] = (),
        images: Sequence[dict[str, Any]] = (),
        options: RunOptions | None = None,
        typed: int | None = None,
        queue: bool = False,
        watch: Callable[[Event], None] | None = None,
    ) -> TurnResult:
        """Run one turn from `text` to its end reason.

        :param files: attachments as ``{"path", "text"}``; `images` as ``{"media_type", "data"}``.
        :param typed: how many characters of `text` the user typed, where the rest was piped in; ``None`` means all of them.
        :param queue: while the session works on another prompt, wait.
        :param watch: called with each event of the turn and of its sub-agents.
        :raises ConfigError: there is no model, the model is unknown, or an attachment or an option is invalid. Nothing was
            written.
        :raises SessionBusy: the session is working on another prompt, and `queue` is false. Nothing was written.
        """
        payload: dict[str, Any] = {"text": text} if typed is None else {"text": text, "typed": typed}
        payload |= attachments_payload(files, images)
        return await self._turn(payload, options or RunOptions(), queue=queue, watch=watch)

    def stream(
        self,
        text: str,
        *,
        files: Sequence[dict[str, str]] = (),
        images: Sequence[dict[str, Any]] = (),
        options: RunOptions | None = None,
        queue: bool = False,
    ) -> AsyncGenerator[Event]:
        """Run one turn like :meth:`prompt` and yield its events and those of its sub-agents as they come.

        The last one is ``result``, with what :meth:`prompt` returns. Closing the generator interrupts the turn.
        """
        return stream(lambda watch: self.prompt(text, files=files, images=images, options=options, queue=queue, watch=watch))

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call `subscriber` with the events of this session and of its sub-agents; the returned function unsubscribes it.

        For the events of all sessions there is ``host.bus.subscribe``.
        """
        return self._host.bus.subscribe(subscriber, self.id)

    async def resume(self, options: RunOptions | None = None) -> TurnResult:
        """Continue without a new prompt: settle what an interrupted or waiting turn left open, then ask the model.

        :raises SessionBusy: the session is working on a prompt.
        """
        return await self._turn(None, options or RunOptions())

    async def reply(self, approval_id: str, reply: str, *, message: str = "") -> None:
        """Answer a question that a turn with ``on_ask="prompt"``, or a sub-agent of it, asks.

        :param approval_id: the id that the event ``permission.asked`` gives.
        :param reply: ``once``, ``always``, ``reject`` or ``stop``; the first answer to a question stands.
        :param message: the reason of a ``reject``, for the model.
        :raises MoryflowError: there is no such question, or `reply` is none of these words.
        """
        await self._host.approvals.reply(approval_id, reply, message=message)

    def cancel(self) -> None:
        """Stop the running turn, or one about to begin, and every child.

        What they have so far is kept; a running call gets an ``interrupted`` result.
        """
        self.children.cancel()
        if self._lease.live is not None and self.running:
            self._lease.live.cancelled = True
        elif self._settling:
            self._host.compaction.cancel(self.id)
            self._goes_on = None  # whatever a plugin says now
        self._work.cancel()

    async def set_mode(self, mode: str, *, by: str = "user") -> None:
        """Change the session's mode and record the change. It applies from the next gate on.

        :raises ConfigError: `mode` is not one of the two.
        """
        await change_mode(self._host, self, mode, by)

    def check_choice(self, agent: str | None, model: str | None) -> None:
        """Check that the session could change to this agent and this model; ``None`` is not checked. Nothing changes.

        :raises ConfigError: the agent or the model cannot be used here.
        """
        check_choice(self._host, self, agent, model)

    async def set_agent(self, name: str) -> None:
        """Let another agent continue this conversation from the next turn on, and record the change.

        :raises ConfigError: there is no agent of that name, or this is the session of a sub-agent.
        """
        await change_agent(self._host, self, name)

    async def set_model(self, name: str) -> None:
        """Let another model continue this conversation from the next turn on, and record the change.

        :raises ConfigError: no provider knows the model.
        """
        await change_model(self._host, self, name)

    async def note(
        self,
        record: Record,
        *,
        now: Callable[[SessionHandle], None] | None = None,
        between_calls: bool = True,
    ) -> None:
        """Apply `record` at the running turn's next pause, or at once if no turn runs.

        :param now: called with the held session at once, without waiting for the pause.
        :param between_calls: whether `record` may come between a call and its result, as a change of mode may. If not, it
            waits until a turn has settled the calls that an earlier one left open.
        """
        held = self._lease
        (held.inbox if between_calls else held.notes).append(record)
        if self._settling and held.live is not None:
            if now:
                now(held.live)
            return
        async with self._lease.block() as live:
            if now:
                now(live)
            await self._empty_inbox(live)

    async def _empty_inbox(self, live: SessionHandle) -> None:
        """Apply the records that came while no turn ran, or too late for the turn that ran."""
        waiting = await self._lease.pop_waiting(live)
        if not waiting:
            return
        journal = Journal(self._scope(live, None, "main", True))
        for record in waiting:
            record(journal)
        try:
            await journal.commit()
        except MoryflowError:
            self._lease.notes[:0] = waiting
            raise

    async def settle(self) -> None:
        """Apply records that came after the last turn ended, a title for example, before the session is released."""
        if (self._lease.inbox or self._lease.notes) and not self._settling:
            async with self._lease.block() as live:
                await self._empty_inbox(live)

    async def call(self, name: str, arguments: str, options: RunOptions) -> DirectResult:
        """Take one tool call through the whole chain without a model.

        :raises SessionBusy: the session is working on a prompt.
        :raises MoryflowError: the turn failed before the call had a result.
        """
        options.check()
        async with self._exclusive(), self._lease.block() as live:
            scope = self._scope(live, None, "direct", options.on_ask != "prompt")
            self._host.check_strict(scope)
            scope.ledger.keep = True
            turn = TurnLoop(scope, None, self.context, options)
            request = ToolRequest(id=f"call_{secrets.token_hex(6)}", name=name, arguments=arguments)
            judged: list[PreparedCall] = []

            async def work() -> EndReason:
                judged.append(await turn.direct(request))
                ruling = judged[0].ruling
                return ruling.end_reason or "denied" if judged[0].stops and ruling else "completed"

            outcome = await self._run(scope, turn, work())
            ruling = judged[0].ruling if judged else None
            result = last_result(live, request.id)
            if outcome.error is not None and (result is None or not judged):  # otherwise the turn failed only after the call
                raise outcome.error
            if result is None:  # the call still waits for an answer
                end = outcome.end_reason
                result = ToolResult(status="denied", code=end, output=f"not run: {end.replace('_', ' ')}")
            return DirectResult(result, ruling, scope.ledger.chain(), self.id, request.id, outcome.exit_code)

    async def scoped(self, work: Callable[[TurnContext], Awaitable[Any]]) -> tuple[Any, Sequence[dict[str, Any]]]:
        """Run `work` in a turn of its own, without a model; return its value and the hooks that were called.

        What `work` asked for (a title, a note, another active node) is stored before this returns.

        :raises SessionBusy: the session is working on a prompt.
        """
        async with self._exclusive(), self._lease.block() as live:
            scope = self._scope(live, None, "direct", True)
            scope.ledger.keep = True
            with self._host.leases.hold(scope.plugin_set):
                value = await work(scope)
            journal = Journal(scope)
            for record in await self._lease.pop_waiting(live):
                record(journal)
            await journal.commit()
            return value, scope.ledger.chain()

    # ---------------------------------------------------------------- holding

    async def keep(self, *, wait: float = 0) -> None:
        """Hold the session until :meth:`release`.

        :param wait: seconds to wait for another process that holds the session; its changes are loaded here.
        :raises SessionBusy: the other process did not release it in time.
        """
        before = self.row.agent
        await self._lease.acquire(wait)
        if self.row.agent != before:
            self.agent = agent_of(self.row, self._host.agents, self._host.agent(None))

    def release(self) -> None:
        """Release the session, so that other processes can hold it."""
        self._lease.release()

    @property
    def quarantine(self) -> Quarantine | None:
        """The hooks that are skipped for the rest of this session; ``None`` while the session is not held."""
        return self._lease.live.quarantine if self._lease.live else None

    # ---------------------------------------------------------------- one turn

    async def _turn(
        self,
        prompt: dict[str, Any] | None,
        options: RunOptions,
        *,
        queue: bool = False,
        watch: Callable[[Event], None] | None = None,
    ) -> TurnResult:
        options.check()
        async with self._exclusive(queue=queue, watch=watch):
            with self._work.starting():
                result, whole = await self._run_turn(prompt, options, math.inf if queue else 0), self.options
            for _ in range(MAX_FOLLOWING):
                left = limits_left(result, whole)
                if not self._goes_on or result.end_reason != "completed" or not isinstance(left, RunOptions):
                    break
                with self._work.starting():
                    result = combine(result, await self._run_turn(None, left._replace(key="", turn=""), 0))
            return result

    @asynccontextmanager
    async def _exclusive(self, *, queue: bool = False, watch: Callable[[Event], None] | None = None) -> AsyncIterator[None]:
        """Keep other turns from beginning during a block; afterwards publish that the session is idle, if it is."""
        unsubscribe = None
        try:
            async with self._turns.place(wait=queue):
                unsubscribe = self.subscribe(watch) if watch else None
                yield
        finally:
            held_back = self._lease.held_back
            while held_back and self._turns.empty:
                self._host.bus.publish(held_back.pop(0))
            if unsubscribe is not None:
                unsubscribe()

    async def _run_turn(self, prompt: dict[str, Any] | None, options: RunOptions, wait: float) -> TurnResult:
        if self._started is None:
            await self._host.refresh_if_changed()
        provider, model = self._host.choose_model(self)
        provider.prepare(model)
        called = mentioned(prompt, self._host) if prompt is not None and self.row.parent is None else ()
        async with self._lease.block(wait) as live:
            left = await self._lease.open_calls(live)
            live.turn_states = await self._lease.last_turn_states() if prompt is None else {}
            if prompt is None or prompt["text"] == GO_ON:
                called = waiting_children(live.hold.path)
            if prompt is None and not called and not left and not can_continue(live):
                raise ConfigError("there is nothing to continue", where=f"session {self.id}", next_step="give a prompt")
            self.options = options = options.within(self._host.config.section("limits"), self.agent.max_steps)
            provider, model = self._host.choose_model(self)  # the generation may have been replaced meanwhile
            scope = self._scope(live, model, "child" if self.row.parent else "main", options.on_ask != "prompt", options.turn)
            if options.effort is not None:
                scope.state_of(HOST_STATE, lasting=True)["effort"] = None if options.effort == "default" else options.effort
            await self._lease.take_up(scope, options.turn)
            turn = TurnLoop(scope, provider, self.context, options)
            self._host.check_strict(scope)
            if prompt is not None:
                await self._lease.leave_failed_prompt(scope)
            return await self._run(scope, turn, turn.work(prompt, left, called))

    async def _run(self, scope: TurnContext, turn: TurnLoop, work: Work) -> TurnResult:
        self._settling, self._goes_on = True, False
        try:
            with self._host.leases.hold(scope.plugin_set):
                return await self._work.run(scope, turn, work)
        finally:
            self._settling = False
            self._host.hold_unreviewed_code()
            await self._empty_inbox(scope.live)
            self._goes_on = scope.live.goes_on and self._goes_on is not None

    def _scope(
        self, live: SessionHandle, model: ModelInfo | None, purpose: Purpose, headless: bool, turn: str = ""
    ) -> TurnContext:
        started, options = self._started, self.options
        above = started.scope if started else None
        return TurnContext(
            around=above.around if above else self._host.surroundings,
            live=live,
            plugin_set=above.plugin_set if above else self._host.plugin_set,
            turn=turn or new_turn_id(),
            agent=self.agent,
            model=model,
            purpose=purpose,
            headless=headless,
            children=self.children,
            started=started,
            schema=options.schema,
            budget=Budget(options.max_steps, options.max_cost, above.budget if above else None),
            spent=self.children.spent,
        )


# The most calls that the @ mentions of one prompt can make.
MAX_CALLS = 8
_AGENT = re.compile(r"@([A-Za-z0-9][A-Za-z0-9._-]{0,63})(?:\s+(\S.*))?\s*", re.DOTALL)
# How similar a word must be to an agent's name to count as a typing error and not as a word of the prompt.
NEARLY = 0.75


def mentioned(prompt: Mapping[str, Any], host: SessionHost) -> Sequence[ToolRequest]:
    """Return the calls that `prompt` asks for with an @.

    :raises ConfigError: it begins with a mistyped agent's name, or with an agent that cannot be started this way.
    """
    if prompt.get("typed") == 0:
        return ()
    agent = _agent_call(prompt, host)
    return (agent,) if agent is not None else tuple(_tool_calls(prompt["text"][: prompt.get("typed")], host))[:MAX_CALLS]


def _agent_call(prompt: Mapping[str, Any], host: SessionHost) -> ToolRequest | None:
    found = _AGENT.fullmatch(prompt["text"].lstrip())
    if found is None or TOOL not in host.tools:
        return None
    name, rest = found.groups()
    startable = [agent.id for agent in host.agents.values() if agent.mode != "primary" and not agent.hidden]
    if name in startable:
        if not (rest or prompt.get("files")):
            raise ConfigError(f"@{name} needs a task", next_step=f'"@{name} what it should do"')
        return tool_request(TOOL, {"agent": name, "prompt": with_files({**prompt, "text": rest or ""})})
    if name in host.agents and not host.agents[name].hidden:
        raise ConfigError(f"{name} is a main agent, not a sub-agent", next_step=f"--agent {name}, or /{name} in chat")
    if near := nearest(name, startable, NEARLY):
        raise ConfigError(f"there is no sub-agent {name!r}; did you mean @{near}?", next_step="moryflow agent list")
    return None


def _tool_calls(typed: str, host: SessionHost) -> Iterator[ToolRequest]:
    """Yield the calls that tools find in a prompt; a tool whose search raises is skipped."""
    if "@" not in typed:
        return
    for name, owned in sorted(host.tools.items()):
        if owned.tool.mentions is None:
            continue
        try:
            calls = [tool_request(name, arguments) for arguments in owned.tool.mentions(typed)]
        except Exception:  # a plugin's code
            continue
        yield from calls


def attachments_payload(files: Sequence[Mapping[str, Any]], images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attachments of a prompt as its node stores them.

    :raises ConfigError: a file or an image does not have the shape that :meth:`Session.prompt` names.
    """
    for number, file in enumerate(files):
        if file.keys() != {"path", "text"} or not all(isinstance(value, str) for value in file.values()):
            raise ConfigError(
                "a file needs the text fields path and text", where=f"files[{number}]", next_step='{"path": "…", "text": "…"}'
            )
    for number, image in enumerate(images):
        if not _is_image(image):
            said = "an image is a media type and its data in base64"
            step = '{"media_type": "image/png", "data": "…"}'
            raise ConfigError(said, where=f"images[{number}]", next_step=step)
    return {name: list(found) for name, found in (("files", files), ("images", images)) if found}


def _is_image(found: Mapping[str, Any]) -> bool:
    try:
        image = Image(**found)
        return image.media_type.startswith("image/") and bool(base64.b64decode(image.data, validate=True))
    except (TypeError, ValueError):
        return False
