"""The threads of plain functions."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest
from moryflow.hooks.threads import PluginThreads, PluginUnresponsive, Worker


async def test_a_call_for_which_no_thread_can_be_started_fails_and_is_not_made_later(monkeypatch: pytest.MonkeyPatch):
    """What was told to have failed must not happen after all; the next call gets its thread (S1.2, invariant 3)."""
    worker, made = Worker("test"), list[str]()

    def refused(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            await worker.run(made.append, ["first"], 5.0)
    await worker.run(made.append, ["second"], 5.0)
    assert made == ["second"]
    worker.stop()


async def test_a_call_that_outlasts_the_patience_of_the_loop_is_awaited():
    """The loop goes on meanwhile, and the result is the same (ARCHITECTURE §4)."""
    worker, go_on = Worker("test"), threading.Event()

    def waits() -> str:
        go_on.wait(5.0)
        return threading.current_thread().name

    asyncio.get_running_loop().call_later(0.01, go_on.set)  # by the loop itself: it is not held up
    assert await worker.run(waits, [], 5.0) == "test"
    assert await worker.run(lambda: "soon", [], 5.0) == "soon"
    worker.stop()


def broken(*_: object) -> None:
    """Stand for a tracer that raises."""
    raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_a_plugin_has_spoilt_is_given_up_at_the_deadline():
    """A tracer that raises ends the thread between two calls: neither of them is awaited for ever (S1.2, invariant 9)."""
    worker = Worker("test")

    def spoils() -> str:
        sys.settrace(broken)
        time.sleep(0.02)  # longer than the loop waits by itself
        return "done"

    async with asyncio.timeout(10.0):
        assert await worker.run(spoils, [], 0.1) == "done"
        with pytest.raises(PluginUnresponsive):
            await worker.run(lambda: "never", [], 0.1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_threads_that_all_end_at_once_are_not_made_for_ever():
    """A plugin may set a tracer for every new thread; a built-in's call fails then (invariant 9)."""
    threads = PluginThreads("test", serial=False)
    threading.settrace(broken)
    try:
        async with asyncio.timeout(10.0):
            with pytest.raises(PluginUnresponsive):
                await threads.run(lambda: "never", [], 0.05)
    finally:
        threading.settrace(None)
