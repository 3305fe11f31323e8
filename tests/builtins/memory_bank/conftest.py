"""A project with a memory bank, on a real host with the built-in plugins and a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import forked_command
import pytest
from moryflow import RunOptions, open_host
from moryflow.base.builtins import BUILTINS
from moryflow_builtins.memory_bank.cli import files

LEFT_OUT = {"snapshots", "instructions", "titles", "external_tools", "config_hooks", "litellm_models", "local_model"}
"""Built-in plugins that no test here is about."""
PLUGINS = tuple(name for name in BUILTINS if name.rpartition(".")[2] not in LEFT_OUT)
RULE = "Money is kept in integer cents, never in floats, because rounding lost 3 orders in May (src/money.py:12)."


@dataclass
class Project:
    """A vault with a bank, and whatever a test lets happen in it."""

    home: Path
    vault: Path
    environ: dict[str, str] = field(default_factory=dict)
    builtins: tuple[str, ...] = PLUGINS
    events: list[Any] = field(default_factory=list)
    scripts: int = 0

    @property
    def bank(self) -> Path:
        return self.vault / "memory-bank"

    @property
    def patterns(self) -> Path:
        return self.bank / "details" / "patterns.md"

    def make_bank(self) -> None:
        """Write the template, with one decision in it."""
        for name, text in files().items():
            path = self.vault / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        whole = self.patterns.read_text(encoding="utf-8")
        self.patterns.write_text(whole.replace("<!-- MACHINE_BLOCK_END -->", f"{RULE}\n<!-- MACHINE_BLOCK_END -->"))

    def configure(self, **settings: Any) -> None:
        """Write the user's configuration; `bank` are the plugin's own settings."""
        runtime = {"memoryBank": settings.pop("bank", {}), **settings.pop("runtime", {})}
        file = self.home / "config.jsonc"
        file.write_text(json.dumps({"agents": {"runtime": runtime}, **settings}), encoding="utf-8")
        file.chmod(0o600)

    def allow(self, *domains: str, sandbox: bool = False, **settings: Any) -> None:
        """Let permission rules stand in nobody's way in `domains`; commands run outside of the sandbox unless said."""
        rules = [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in domains]
        if "bash" in domains and not sandbox:
            rules.append({"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"})
        self.configure(runtime={"permission": {"rules": rules}}, **settings)

    def plugin(self, name: str, source: str) -> None:
        """Write a user plugin."""
        file = self.home / "plugins" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from moryflow_sdk import *\n" + dedent(source), encoding="utf-8")
        file.chmod(0o600)

    def agent(self, name: str, front: str, prompt: str = "work") -> None:
        """Write an agent file."""
        file = self.home / "agents" / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        identity = "" if "id: " in front else f"id: {name}\n"
        file.write_text(f"---\n{identity}{front}\n---\n{prompt}\n", encoding="utf-8")
        file.chmod(0o600)

    def script(self, *turns: Any) -> str:
        """Write what models say, children too, in the order they are asked; return the model's name."""
        self.scripts += 1
        file = self.home.parent / f"script{self.scripts}.json"
        file.write_text(json.dumps(list(turns)), encoding="utf-8")
        return f"script:{file}"

    @asynccontextmanager
    async def host(self):
        """Open a host."""
        async with await open_host(self.home, environ=self.environ, builtins=self.builtins) as host:
            host.bus.subscribe(self.events.append)
            yield host

    @asynccontextmanager
    async def conversation(self, *turns: Any, mode: str | None = None, agent: str | None = None):
        """Open one session whose model says `turns`."""
        async with self.host() as host:
            session = await host.new_session(self.vault, model=self.script(*turns), mode=mode, agent=agent)
            yield Talk(self, host, session)

    async def run(self, *turns: Any, prompt: str = "go", mode: str | None = None) -> Talk:
        """Run one prompt."""
        async with self.conversation(*turns, mode=mode) as talk:
            await talk.say(prompt)
            return talk

    def cli(self, *arguments: str, stdin: Any = subprocess.DEVNULL, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``moryflow`` in a process of its own."""
        env = {"PATH": os.environ["PATH"], "MORYFLOW_HOME": str(self.home), "HOME": str(self.home.parent), **environ}
        command = [sys.executable, "-m", "moryflow", *arguments]
        return forked_command.run(command, env=env, cwd=self.vault, stdin=stdin, text=True)

    def tree(self) -> dict[str, bytes]:
        """Return every file of the vault."""
        return {str(path.relative_to(self.vault)): path.read_bytes() for path in self.vault.rglob("*") if path.is_file()}


@dataclass
class Talk:
    """One session."""

    project: Project
    host: Any
    session: Any
    path: list[Any] = field(default_factory=list)
    result: Any = None

    async def say(self, text: str, **options: Any) -> Any:
        """Prompt the session and return the turn's result."""
        self.result = await self.session.prompt(text, options=RunOptions(on_ask="deny"), **options)
        self.path = list(await self.host.store.path(self.session.id))
        return self.result

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The payloads of all tool nodes."""
        return [dict(node.payload) for node in self.path if node.kind == "tool"]

    @property
    def last(self) -> dict[str, Any]:
        return self.tools[-1]

    @property
    def requests(self) -> list[Any]:
        """What the scripted model was asked, children's requests too."""
        provider: Any = next(item for item in self.host.plugin_set.providers if item.name == "script_model")
        return provider._scripts[self.session.model.removeprefix("script:")].requests

    @property
    def systems(self) -> list[str]:
        """The system prompts of the requests of this conversation."""
        return [request.messages[0].text for request in self.requests if request.purpose == "main"]

    async def state(self, scope: str = "session") -> dict[str, Any]:
        """Return what the plugin keeps for the session, or for the last turn."""
        kept = await self.host.store.plugin_state(self.session.id)
        if scope == "turn":
            runs = [run for run in await self.host.store.runs(self.session.id) if run.purpose == "main"]
            scope = f"turn:{runs[-1].id}"
        return kept.get(("memory_bank", scope), {})

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of the plugin's events of one kind."""
        return [dict(event.data) for event in self.project.events if event.type == f"plugin.memory_bank.{kind}"]


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A project without a bank; the real home is out of reach."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    (vault / "src").mkdir()
    (vault / "src" / "money.py").write_text("CENTS = 100\n")
    (vault / "package.json").write_text("{}\n")
    (vault / "notes.md").write_text("notes\n")
    monkeypatch.setenv("MORYFLOW_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return Project(home, vault)


@pytest.fixture
def project(bare):
    """A project with a bank."""
    bare.make_bank()
    return bare
