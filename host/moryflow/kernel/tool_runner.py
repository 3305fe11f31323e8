"""Run the body of a tool under its deadline, and turn what it gave, or why it did not run, into what the model reads.

A body that overruns is abandoned, and the turn goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moryflow_sdk import Denied, Ruling, ToolCall, ToolError, ToolResult

from moryflow.base.foreign_errors import describe, place_of, plugin_error
from moryflow.hooks.dispatcher import abandon, contained
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.hooks.threads import CallTimeout, PluginUnresponsive, limit

from .turn_context import TurnContext

TIMEOUT = 60.0
"""Seconds that a tool may run which names no other time and does not come with the host."""
BUILTIN_TIMEOUT = 600.0
"""The same for one that comes with the host: a search through a large folder may take a while."""
GRACE = 1.0
"""Seconds that other people's asynchronous code has to clean up after it was cancelled."""


class Deadline:
    """How long a body may still run. While a person is asked, the clock stands still."""

    def __init__(self, owned: RegisteredTool) -> None:
        self.owned = owned
        self.seconds = owned.tool.timeout or (TIMEOUT if owned.foreign else BUILTIN_TIMEOUT)
        self._timer: asyncio.Timeout | None = None
        self._asking = 0
        self._left = self.seconds

    @contextmanager
    def paused_clock(self) -> Iterator[None]:
        """Do not count the time that is spent in here."""
        timer, loop = self._timer, asyncio.get_running_loop()
        if timer is None or timer.expired():
            yield
            return
        if not self._asking:
            self._left = max((timer.when() or loop.time()) - loop.time(), 0)
            timer.reschedule(None)
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking and not timer.expired():
                timer.reschedule(loop.time() + self._left)

    async def hold(self, work: Awaitable[Any]) -> Any:
        """Return what `work` gives.

        :raises ToolError: it did not end in time.
        """
        self._timer = asyncio.timeout(limit(self.seconds))
        try:
            async with self._timer:
                return await (_run_in_task(work) if self.owned.foreign else contained(work))
        except TimeoutError:
            if self._timer.expired():
                raise self.timeout_error() from None
            raise

    def timeout_error(self) -> ToolError:
        """Return the error of a body that was given up, with the place where its time can be changed."""
        tool = self.owned.tool
        text = f"{tool.name} took longer than {self.seconds:g} s and was abandoned"
        if not self.owned.foreign:
            return ToolError(text, code="timeout")
        file, line = place_of(tool.function)
        if tool.source and file != tool.source:  # it runs in a process of its own
            file, line = tool.source, 0
        place = f" in {Path(file).name}{f':{line}' if line else ''}" if file else ""
        return ToolError(text, code="timeout", next_step=f"to allow more time, set @tool(timeout=SECONDS){place}")


async def _run_in_task(work: Awaitable[Any]) -> Any:
    """Await `work` in a task of its own, so that one that ignores its cancellation holds up nobody."""
    task = asyncio.ensure_future(contained(work))
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE)
        abandon(task)
        raise
    try:
        return task.result()
    except GeneratorExit as error:  # of the body: past here it would say that this turn is being closed
        raise plugin_error(error) from error


async def run_body(deadline: Deadline, keywords: Mapping[str, Any]) -> Any:
    """Run a body where its code belongs: an asynchronous one on the loop, a plain one on a thread of its plugin.

    :raises ToolError: it did not end in time, or its plugin is not called any more.
    """
    owned = deadline.owned
    function: Callable[..., Any] = owned.tool.function
    if inspect.iscoroutinefunction(function):
        return await deadline.hold(function(**keywords))
    try:
        outcome = await owned.life.run(lambda: function(**keywords), (), deadline.seconds, body=True)
    except CallTimeout:
        raise deadline.timeout_error() from None
    except PluginUnresponsive:
        text, step = f"plugin {owned.plugin} is not called any more: {owned.life.broken}", "start moryflow again"
        raise ToolError(text, code="plugin_broken", next_step=step) from None
    return await deadline.hold(outcome) if inspect.isawaitable(outcome) else outcome


CAP_FACTOR = 4
DEFAULT_LIMIT_BYTES = 51200
LEAST_CAP_BYTES = 8192
"""However small the limit, the hint that says where the whole output is stays readable."""


def as_result(owned: RegisteredTool, outcome: Any, collected: Mapping[str, Any]) -> ToolResult:
    """Return what a body returned as a result: text as it is, anything else as JSON.

    One that is not ours is built anew and checked, like what a hook returns: a result that cannot be read again would be
    stored all the same.

    :param collected: what was said through ``ctx.metadata``.
    :raises Exception: whatever looking at it raises.
    """
    if not owned.foreign and isinstance(outcome, ToolResult) and not collected:
        return outcome
    try:
        result = _as_result(outcome)
        if collected:
            result = result.replace(metadata={**result.metadata, **collected})
        if result.metadata:
            json.dumps(result.model_dump(mode="json", include={"metadata"}))
        return result
    except GeneratorExit as error:
        raise plugin_error(error) from error


def _as_result(outcome: Any) -> ToolResult:
    kind = type(outcome)  # isinstance would believe what it says of itself
    if issubclass(kind, ToolResult):
        return ToolResult(**{name: getattr(outcome, name) for name in ToolResult.model_fields})
    if issubclass(kind, str):
        return ToolResult(output=outcome)
    if outcome is None:
        return ToolResult(output="done")
    return ToolResult(output=json.dumps(outcome, ensure_ascii=False, default=str), format="json")


def tool_payload(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    """Return the node payload of a result."""
    fields = result.model_dump(mode="json", exclude_defaults=True, exclude={"spool"})
    return {"call_id": call.id, "tool": call.tool, "status": result.status, "output": result.output, **fields}


def cap_output(result: ToolResult, scope: TurnContext) -> ToolResult:
    """Return `result` within four times the truncation limit, whatever plugins did."""
    limit = scope.around.config.get("agents.runtime.truncation.maxBytes", DEFAULT_LIMIT_BYTES)
    cap = max(CAP_FACTOR * (limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT_BYTES), LEAST_CAP_BYTES)
    data = result.output.encode("utf-8", "replace")
    if len(data) <= cap:
        text = data.decode()
        return result if text == result.output else result.replace(output=text)
    kept = data[:cap].decode("utf-8", "ignore")
    return result.replace(output=f"{kept}\n[cut by the host: {len(data)} bytes]", truncated=True)


def failure(error: ToolError) -> ToolResult:
    return ToolResult(status="error", code=error.code, output=str(error))


def result_of_error(owned: RegisteredTool, error: Exception) -> ToolResult:
    """Return the result of a body that raised: what, and the last line of its own file that it passed through.

    The error's text and code are foreign code and may raise.
    """
    try:
        if isinstance(error, ToolError):
            return failure(error)
        if isinstance(error, Denied):
            return ToolResult(status="denied", code="denied", output=str(error))
    except BaseException as another:
        error = plugin_error(another)
    tool = owned.tool
    said, file, line = describe(error, tool.source or place_of(tool.function)[0])
    place = f" ({Path(file).name}:{line})" if line else ""
    output = f"{tool.name} (plugin {owned.plugin}) failed: {said}{place}"
    return ToolResult(status="error", code="tool_failed", output=output)


def refusal(ruling: Ruling) -> ToolResult:
    step = f" Next: {ruling.next_step}" if ruling.next_step else ""
    return ToolResult(status="denied", code=ruling.cause, output=f"denied: {ruling.reason}.{step}")
