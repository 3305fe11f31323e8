"""Report a plugin that blocks the event loop. Nothing can stop it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from moryflow.base.foreign_errors import root_of, within
from moryflow.hooks.plugin_set import HookFailure, PluginSet
from moryflow.hooks.threads import deadlines_lifted

log = logging.getLogger(__name__)
LIMIT = 1.0
"""Seconds after which somebody is told that the loop stands still."""


class Watchdog:
    """A thread that looks at the loop's own stack when the loop has not run for a while.

    :param plugin_set: gives the plugins whose code is looked for on the stack.
    :param report: called on the loop, once it runs again, with the plugin and the line it stood at.
    """

    def __init__(
        self, plugin_set: Callable[[], PluginSet], report: Callable[[HookFailure], None], *, limit: float = LIMIT
    ) -> None:
        self._plugin_set = plugin_set
        self._report = report
        self._limit = limit
        self._beat = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Watch the running loop, until :meth:`stop`."""
        loop = asyncio.get_running_loop()
        self._stop.clear()
        self._tick(loop)
        watched = (loop, threading.get_ident())
        threading.Thread(target=self._watch, args=watched, name="moryflow-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat = time.monotonic()
        self._timer = loop.call_later(self._limit / 4, self._tick, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        reported = 0.0
        while not self._stop.wait(self._limit / 4):
            beat = self._beat
            late = time.monotonic() - beat
            if late < self._limit or beat == reported or loop.is_closed() or deadlines_lifted():
                continue
            reported = beat
            failure = self._culprit(sys._current_frames().get(thread), late)
            if failure is not None:
                # Said at once, from this thread: the loop may not come back. The event follows when it does.
                place = f"{failure.file}:{failure.line}"
                log.warning("plugin %s: %s (%s); %s", failure.plugin, failure.error, place, failure.hint)
                loop.call_soon_threadsafe(self._report, failure)

    def _culprit(self, frame: FrameType | None, late: float) -> HookFailure | None:
        """Return who stands innermost on the stack, ``None`` if no plugin does."""
        plugins = [plugin for plugin in self._plugin_set().plugins.values() if plugin.file]
        while frame is not None:
            for plugin in plugins:
                if within(frame.f_code.co_filename, root_of(plugin.file)):
                    return HookFailure(
                        plugin=plugin.name,
                        tier=plugin.tier,
                        hook="",
                        outcome="blocked",
                        error=f"it has kept the whole host from running for {late:.1f} s",
                        file=frame.f_code.co_filename,
                        line=frame.f_lineno,
                        hint="let it await, or make the function plain instead of async",
                        action="ignored",
                    )
            frame = frame.f_back
        return None
