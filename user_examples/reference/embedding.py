"""Examples for programs that run a host themselves. The reference on the site shows the bodies; the tests run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import moryflow
from moryflow import DirectResult, Host, RunOptions, Session, SessionBusy, TurnResult, open_host


# example of: open_host, Host, Session
async def example_open_host(options: dict[str, Any], vault: Path) -> None:
    # `options` are for this test: a home of its own; without them it is your ~/.moryflow
    host: Host
    async with open_host(**options) as host:
        session: Session = await host.new_session(vault, model="scripted")
        async for event in session.stream("Say hello"):
            if event.type == "text.delta":
                print(event.data["text"], end="")
        again = await host.resume(vault, session.id)
        assert again.id == session.id


# example of: RunOptions, TurnResult
async def example_run_options(options: dict[str, Any], vault: Path) -> None:
    async with open_host(**options) as host:
        session = await host.new_session(vault, model="scripted")
        result: TurnResult = await session.prompt("Say hello", options=RunOptions(on_ask="deny", max_steps=3))
        assert (result.end_reason, result.exit_code, result.text) == ("completed", 0, "Hello")


# example of: DirectResult
async def example_direct_result(options: dict[str, Any], vault: Path) -> None:
    async with open_host(**options) as host:
        done: DirectResult = await host.call_tool("ls", {"path": "."}, vault=vault)
        assert (done.result.status, done.exit_code) == ("ok", 0)
        assert "permission" in [step["plugin"] for step in done.chain if step["hook"] == "tool_gate"]


# example of: SessionBusy
async def example_session_busy(options: dict[str, Any], vault: Path) -> None:
    async with open_host(**options) as one, open_host(**options) as other:
        session = await one.new_session(vault, model="scripted")
        async for event in session.stream("Say hello"):
            if event.type == "turn.start":
                try:
                    await (await other.resume(vault, session.id)).prompt("And me?")
                except SessionBusy as busy:
                    assert busy.code == "busy"


# example of: __version__
def example_version() -> None:
    assert moryflow.__version__.count(".") == 2
