"""Run the body of a tool under its deadline. A body that overruns is abandoned, and the turn goes on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moryflow_sdk import ToolError

from moryflow.hooks.call import abandon, contained, plugin_error
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.hooks.threads import CallTimeout, PluginUnresponsive

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
    def stopped(self) -> Iterator[None]:
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
        self._timer = asyncio.timeout(self.seconds)
        try:
            async with self._timer:
                return await (_apart(work) if self.owned.foreign else contained(work))
        except TimeoutError:
            if self._timer.expired():
                raise self.passed() from None
            raise

    def passed(self) -> ToolError:
        """Return the error of a body that was given up, with the place where its time can be changed."""
        tool = self.owned.tool
        text = f"{tool.name} took longer than {self.seconds:g} s and was given up"
        if not self.owned.foreign:
            return ToolError(text, code="timeout")
        code = getattr(inspect.unwrap(tool.function), "__code__", None)
        file, line = (code.co_filename, f":{code.co_firstlineno}") if code else ("", "")
        if tool.source and file != tool.source:  # it runs in a process of its own
            file, line = tool.source, ""
        place = f" in {Path(file).name}{line}" if file else ""
        return ToolError(text, code="timeout", next_step=f"if it needs longer, @tool(timeout=SECONDS){place} says so")


async def _apart(work: Awaitable[Any]) -> Any:
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
        raise deadline.passed() from None
    except PluginUnresponsive:
        text, step = f"plugin {owned.plugin} is not called any more: {owned.life.broken}", "start moryflow again"
        raise ToolError(text, code="plugin_broken", next_step=step) from None
    return await deadline.hold(outcome) if inspect.isawaitable(outcome) else outcome
