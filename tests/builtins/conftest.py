"""A bench for built-in plugins: a real host in a temporary home, a scripted model, tools that a test writes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import forked_command
import pytest
from moryflow import RunOptions, open_host

CONTROL_PLANE = ("moryflow_builtins.doom_loop", "moryflow_builtins.audit", "moryflow_builtins.truncation")
MODEL = "moryflow_builtins.script_model"
ALLOW = """
    @hookimpl
    def tool_gate(call):
        return Allow(rule=Rule(domain=call.domain, pattern="*", decision="allow", source="default"))
"""


@dataclass
class Outcome:
    """What a run gave."""

    result: Any
    events: list[Any]
    path: list[Any]
    session: str

    def tools(self) -> list[dict[str, Any]]:
        """Return the payloads of the tool nodes, in order."""
        return [dict(node.payload) for node in self.path if node.kind == "tool"]

    def named(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of all events of a type."""
        return [dict(event.data) for event in self.events if event.type == kind]


@dataclass
class Bench:
    """Everything a plugin meets, in folders of its own."""

    home: Path
    vault: Path
    builtins: tuple[str, ...] = (*CONTROL_PLANE, MODEL)
    options: dict[str, Any] = field(default_factory=dict)

    def plugin(self, name: str, source: str) -> None:
        """Write a user plugin; the SDK's names are there."""
        file = self.home / "plugins" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from moryflow_sdk import *\n" + dedent(source), encoding="utf-8")
        file.chmod(0o600)

    def tool(self, source: str, *, allow: bool = True) -> None:
        """Write tools into a user plugin; every call is allowed by a default rule unless `allow` is false."""
        names = [line.split("def ")[1].split("(")[0] for line in source.splitlines() if "def " in line]
        offer = f"\n@hookimpl\ndef tools():\n    return [{', '.join(names)}]\n"
        self.plugin("stubs", dedent(source) + offer + (dedent(ALLOW) if allow else ""))

    def config(self, **runtime: Any) -> None:
        """Write the user's configuration below ``agents.runtime``."""
        file = self.home / "config.jsonc"
        file.write_text(json.dumps({"agents": {"runtime": runtime}}), encoding="utf-8")
        file.chmod(0o600)

    def script(self, *turns: dict[str, Any]) -> str:
        """Write what the model says, turn by turn; return the model's name."""
        file = self.home.parent / "script.json"
        file.write_text(json.dumps(list(turns)), encoding="utf-8")
        return f"script:{file}"

    def calls(self, *calls: tuple[str, dict[str, Any]], together: bool = False) -> list[dict[str, Any]]:
        """Return turns that make `calls`, one each or all in one, and then say ``done``."""
        made = [{"name": name, "arguments": arguments} for name, arguments in calls]
        return [*([{"calls": made}] if together else [{"calls": [call]} for call in made]), {"text": "done"}]

    @asynccontextmanager
    async def host(self, **options: Any):
        """Open a host with the plugins under test."""
        async with await open_host(self.home, environ={}, builtins=self.builtins, **{**self.options, **options}) as host:
            yield host

    async def run(
        self,
        turns: Sequence[dict[str, Any]],
        *,
        replies: Sequence[str] | None = None,
        mode: str | None = None,
        during: Any = None,
        **options: Any,
    ) -> Outcome:
        """Run one prompt. With `replies` a person answers every question with the next of them; without, nobody can."""
        events: list[Any] = []
        async with self.host() as host:
            host.bus.subscribe(events.append)
            tasks = _answering(host, list(replies or ()))
            session = await host.new_session(self.vault, model=self.script(*turns), mode=mode)
            if during:
                host.bus.subscribe(lambda event: during(host, session, event))
            how = RunOptions(on_ask="deny" if replies is None else "prompt", **options)
            result = await session.prompt("go", options=how)
            await asyncio.gather(*tasks)
            return Outcome(result, events, list(await host.store.path(session.id)), session.id)

    def cli(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``moryflow`` in a process of its own."""
        env = {"PATH": os.environ["PATH"], "MORYFLOW_HOME": str(self.home), "HOME": str(self.home.parent), **environ}
        command = [sys.executable, "-m", "moryflow", *arguments]
        return forked_command.run(command, env=env, cwd=self.vault, text=True)

    def audit(self, session: str | None = None) -> list[dict[str, Any]]:
        """Return the audit lines of a session, or of all."""
        files = sorted((self.home / "logs" / "agent-audit").glob(f"{session or ''}*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def _answering(host: Any, replies: list[str]) -> list[asyncio.Task[Any]]:
    tasks: list[asyncio.Task[Any]] = []

    def answer(event: Any) -> None:
        if event.type == "permission.asked":
            reply = replies.pop(0) if replies else "stop"
            tasks.append(asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], reply)))

    host.bus.subscribe(answer)
    return tasks


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A bench of its own for each test; the real home is out of reach."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    monkeypatch.setenv("MORYFLOW_HOME", str(home))
    return Bench(home, vault)


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the person, where nothing is that this test did not put there."""
    folder = tmp_path / "person"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder
