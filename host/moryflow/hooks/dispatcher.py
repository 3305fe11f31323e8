"""Call hooks: one implementation at a time, in order, isolated, timed, recorded.

Transforms fail open, gates fail closed. pluggy's own call is not used: it stops at the first exception,
runs in reverse registration order, does not await, and does not report which plugin's implementation failed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from moryflow_sdk import HOOKS, Deny, Event, MoryflowError, Stop, SystemBlock, Turn, Verdict

from moryflow.base.foreign_errors import contain_exit, describe, plugin_error, root_of

from .checks import VERDICTS, check_blocks, check_result, check_verdict, copy_for_plugin, summary_of
from .ledger import Ledger, Place, Quarantine, kept_input
from .plugin_set import HookFailure, Implementation, PluginSet
from .threads import CallTimeout, PluginThreads, PluginUnresponsive, limit

T = TypeVar("T")
# The verdicts that a transform may return instead of a value.
_IN_PLACE: Mapping[str, tuple[type, ...]] = {"tool_before": VERDICTS, "tool_after": (Stop,)}
# Deltas that may wait for a slow observer; beyond this the oldest are dropped.
DELTA_QUEUE = 256


class Withheld(MoryflowError):
    """A transform that asked for ``on_failure="withhold"`` failed: the value must not be shown to anyone."""

    code = "withheld"

    def __init__(self, plugin: str) -> None:
        super().__init__(f"plugin {plugin} failed while checking this value, so it is withheld")
        self.plugin = plugin


class HookScope(Protocol):
    """What hooks are called in: a turn, or an object that takes its place."""

    plugin_set: PluginSet
    ledger: Ledger
    session: str
    turn: str
    step: int

    @property
    def quarantine(self) -> Quarantine: ...
    def view(self, plugin: str) -> Turn: ...
    def report(self, failure: HookFailure) -> None: ...


class Dispatcher:
    """Calls the hooks of any scope; keeps no state of sessions."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[HookScope, Event]] = deque(maxlen=DELTA_QUEUE)
        self._pump: asyncio.Task[None] | None = None

    async def transform(
        self, scope: HookScope, hook: str, value: T, /, *, verdicts: list[tuple[str, Verdict]] | None = None, **context: Any
    ) -> T:
        """Pass `value` through every implementation of `hook`; an implementation that fails is skipped.

        :param verdicts: receives the verdicts that ``tool_before`` returned instead of a call, which count like a gate's,
            and each ``Stop`` that ``tool_after`` returned instead of a result.
        :raises Withheld: an implementation that asked for ``on_failure="withhold"`` failed.
        """
        name = HOOKS[hook].value
        implementations = scope.plugin_set.ordered(hook)
        if not implementations:
            return value
        context[name] = value
        place = _place(scope, context)
        for implementation in implementations:
            outcome = await self._call(scope, implementation, context)
            change = None
            if issubclass(type(outcome.value), _IN_PLACE.get(hook, ())):  # isinstance asks the object, which may raise
                verdict = self._record_verdict(scope, place, implementation, outcome)
                if verdicts is not None and verdict is not None:
                    verdicts.append((implementation.plugin, verdict))
                continue
            if outcome.value is not None:
                chain = implementations[implementation.position :]
                change = _check(outcome, check_result, hook, value, outcome.value, chain)
            if outcome.status == "ok":
                value, delta = change or (value, None)
                context[name] = value
                scope.ledger.add(place, implementation, "changed" if change else "ok", outcome.ns, delta, outcome.given)
            elif not implementation.withholds:
                self._fail(scope, place, implementation, outcome, "skipped")
            else:
                self._fail(scope, place, implementation, outcome, "withheld")
                raise Withheld(implementation.plugin)
        return value

    async def gates(self, scope: HookScope, hook: str, /, *, own: bool = False, **context: Any) -> list[tuple[str, Verdict]]:
        """Ask every gate, or with `own` only the built-in gates. A gate that fails denies, with the cause ``hook_failure``."""
        verdicts: list[tuple[str, Verdict]] = []
        place = _place(scope, context)
        for implementation in scope.plugin_set.ordered(hook):
            if own and implementation.tier != "builtin":
                continue
            outcome = await self._call(scope, implementation, context)
            verdict = self._record_verdict(scope, place, implementation, outcome)
            if verdict is not None:
                verdicts.append((implementation.plugin, verdict))
        return verdicts

    def _record_verdict(
        self, scope: HookScope, place: Place, implementation: Implementation, outcome: CallOutcome
    ) -> Verdict | None:
        hook, returned = implementation.hook, outcome.value
        verdict = _check(outcome, check_verdict, hook, returned, implementation) if returned is not None else None
        if outcome.status != "ok":
            failure = self._fail(scope, place, implementation, outcome, "denied")
            reason = f"the gate of plugin {failure.plugin} failed: {failure.error}"
            return Deny(reason=reason[:2000], cause="hook_failure", next_step=f"moryflow plugin info {failure.plugin}")
        scope.ledger.add(place, implementation, "ok", outcome.ns, verdict, outcome.given)
        return verdict

    async def contribute(self, scope: HookScope, hook: str, /, **context: Any) -> list[tuple[str, SystemBlock]]:
        """Collect blocks for the system prompt, each with the name of its plugin; a plugin that fails adds no block."""
        items: list[tuple[str, SystemBlock]] = []
        place = _place(scope, context)
        for implementation in scope.plugin_set.ordered(hook):
            outcome = await self._call(scope, implementation, context)
            found = _check(outcome, check_blocks, outcome.value, implementation) if outcome.value else ()
            if outcome.status == "ok":
                added = {"blocks": [summary_of(block) for block in found]} if found else None
                scope.ledger.add(place, implementation, "changed" if added else "ok", outcome.ns, added, outcome.given)
                items += [(implementation.plugin, block) for block in found or ()]
            else:
                self._fail(scope, place, implementation, outcome, "skipped")
        return items

    async def observe(self, scope: HookScope, event: Event) -> None:
        """Pass `event` to every observer. What an observer returns or raises changes nothing."""
        place = _place(scope, {})
        for implementation in scope.plugin_set.observers(event):
            outcome = await self._call(scope, implementation, {"event": event})
            if outcome.status == "ok":
                scope.ledger.add(place, implementation, "ok", outcome.ns, None, outcome.given)
            else:
                self._fail(scope, place, implementation, outcome, "ignored", {"event": event.type, "seq": event.seq})

    def observe_soon(self, scope: HookScope, event: Event) -> None:
        """Pass a delta to its observers without waiting for them. If they cannot keep up, the oldest deltas are dropped."""
        if not scope.plugin_set.observers(event):
            return
        self._waiting.append((scope, event))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._drain())

    async def settle(self) -> None:
        """Wait until observers have seen all deltas. Whoever runs a turn calls this at its end."""
        if self._pump is not None:
            await self._pump

    async def _drain(self) -> None:
        while self._waiting:
            scope, event = self._waiting.popleft()
            await self.observe(scope, event)

    async def _call(self, scope: HookScope, implementation: Implementation, context: dict[str, Any]) -> CallOutcome:
        if scope.quarantine.holds(implementation):
            return CallOutcome(None, 0, "quarantined")
        if implementation.life.broken:
            return CallOutcome(None, 0, "skipped", PluginUnresponsive())
        context["turn"] = scope.view(implementation.plugin)
        outcome = await call(implementation, context)
        if scope.ledger.keeps_inputs and implementation.tier != "builtin":
            outcome.given = kept_input(scope.plugin_set.ordered(implementation.hook)[implementation.position :], context)
        return outcome

    def _fail(
        self,
        scope: HookScope,
        place: Place,
        implementation: Implementation,
        outcome: CallOutcome,
        action: str,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> HookFailure:
        text, file, line = what_went_wrong(implementation, outcome)
        failure = HookFailure(
            plugin=implementation.plugin,
            tier=implementation.tier,
            hook=implementation.hook,
            outcome="withheld" if action == "withheld" else outcome.status,
            error=text,
            file=file,
            line=line,
            hint=f"moryflow plugin info {implementation.plugin}",
            action=action,
        )
        reason = {} if outcome.error is None else {"error": describe(outcome.error)[0][:2000]}
        scope.ledger.add(place, implementation, failure.outcome, outcome.ns, {**reason, **about} or None, outcome.given)
        if outcome.status not in ("failed", "timeout"):
            return failure  # reported earlier, when it was quarantined or broke
        number, quarantined = scope.quarantine.count(implementation, outcome.status)
        scope.report(failure._replace(quarantined=quarantined, count=number))
        return failure


def _place(scope: HookScope, context: Mapping[str, Any]) -> Place:
    tool_call = context.get("call")
    return (scope.session, scope.turn, scope.step, tool_call.id if tool_call is not None else None)


def _check(outcome: CallOutcome, check: Callable[..., T], *arguments: Any) -> T | None:
    """Return the result of `check(*arguments)`; if it raises, set `outcome` to failed and return ``None``."""
    try:
        return check(*arguments)
    except BaseException as error:  # a plugin's value may raise anything, when compared, serialised or validated
        outcome.status, outcome.error = "failed", plugin_error(error)
        return None


def what_went_wrong(implementation: Implementation, outcome: CallOutcome) -> tuple[str, str, int]:
    """Return why a call did not succeed, with file and line. The text is empty for a quarantined implementation."""
    file, line = implementation.place
    if outcome.error is not None and outcome.status == "failed":
        text, found_file, found_line = describe(outcome.error, root_of(file))
        return (text, found_file, found_line) if found_file else (text, file, line)
    texts = {
        "timeout": f"{implementation.hook} took longer than {implementation.timeout:g} s",
        "skipped": implementation.life.broken or "an earlier call has still not ended",
    }
    return texts.get(outcome.status, ""), file, line


@dataclass(slots=True)
class CallOutcome:
    """How a call ended: `status` is ``ok``, ``failed``, ``timeout``, or, if it was not made, ``skipped`` or ``quarantined``.

    :ivar given: the call's arguments as JSON, if they are kept.
    """

    value: Any
    ns: int
    status: str = "ok"
    error: BaseException | None = None
    given: dict[str, Any] | None = None


async def call(implementation: Implementation, context: Mapping[str, Any]) -> CallOutcome:
    """Call `implementation` with the arguments from `context` that it takes. Raises only cancellation and Ctrl-C."""
    try:
        arguments = [context[name] for name in implementation.arguments]
    except KeyError as error:
        return _failure_of(implementation, TypeError(f"it takes {error}, which this call of the hook does not give"), 0)
    started = perf_counter_ns()
    try:
        if implementation.tier != "builtin":
            arguments = [copy_for_plugin(value) for value in arguments]
        if implementation.inline:
            value = implementation.function(*arguments)
        elif not implementation.is_async:
            value = await implementation.life.run(implementation.function, arguments, implementation.timeout)
        elif implementation.life.lingers:
            raise PluginUnresponsive
        else:
            value = implementation.function(*arguments)
        if value is not None and inspect.isawaitable(value):
            if implementation.life.serial:
                value = await run_in_task(implementation.life, value, implementation.timeout)
            else:
                async with asyncio.timeout(limit(implementation.timeout)):
                    value = await value
    except BaseException as error:
        return _failure_of(implementation, error, perf_counter_ns() - started)
    ns = perf_counter_ns() - started
    if ns > limit(implementation.timeout) * 1e9:
        return CallOutcome(None, ns, "timeout", TimeoutError())
    return CallOutcome(value, ns)


async def run_in_task(life: PluginThreads, work: Awaitable[Any], timeout: float) -> Any:
    """Await `work` in a task of its own, so that code that ignores its cancellation cannot hold up the host.

    :raises CallTimeout: it did not finish in `timeout` seconds; it is abandoned.
    """
    task = asyncio.ensure_future(contained(work))
    try:
        done, _ = await asyncio.wait((task,), timeout=limit(timeout))
    except asyncio.CancelledError:
        abandon(task)
        raise
    if done:
        return task.result()
    life.stray = task
    abandon(task)
    raise CallTimeout


def abandon(task: asyncio.Future[Any]) -> None:
    """Cancel `task` without waiting for it. What it raises later is ignored, and exit does not wait for it.

    ``asyncio.run()`` waits for every task that is registered, so one that ignores its cancellation would hold up the exit for
    ever. "Extending asyncio" in Python's documentation names the function that takes a task out of that register.
    """
    task.cancel()
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    if isinstance(task, asyncio.Task):
        asyncio._unregister_task(task)


async def contained(work: Awaitable[Any]) -> Any:
    """Await `work`; turn what is not an :class:`Exception` into one: raised from a task, it would end the turn or the loop.

    The user's Ctrl-C is not lost: by then asyncio or the command has already stopped the turn. A cancellation is passed
    on if the host asked for it.
    """
    try:
        return await work
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise contain_exit(error) from error


def _failure_of(implementation: Implementation, error: BaseException, ns: int) -> CallOutcome:
    """Turn an exception into an outcome. Raise Ctrl-C and the host's own cancellation again, but not a plugin's SystemExit."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
    if isinstance(error, PluginUnresponsive):
        return CallOutcome(None, 0, "skipped", error)
    is_late = isinstance(error, TimeoutError) and ns >= limit(implementation.timeout) * 1e9
    if isinstance(error, CallTimeout) or is_late:
        return CallOutcome(None, ns, "timeout", TimeoutError())
    return CallOutcome(None, ns, "failed", error)
