"""A real host in a temporary home, with a scripted model and whatever plugins a test writes."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest
from moryflow import RunOptions, open_host
from moryflow.base.builtins import BUILTINS

ALLOW_ALL = [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("read", "edit", "bash", "tool")]


@dataclass
class Rig:
    """Everything a scenario needs; nothing in it is a mock."""

    home: Path
    vault: Path
    environ: dict[str, str] = field(default_factory=dict)

    def plugin(self, name: str, source: str) -> Path:
        """Write a user plugin."""
        file = self.home / "plugins" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from moryflow_sdk import *\n" + dedent(source), encoding="utf-8")
        file.chmod(0o600)
        return file

    def holding(self) -> dict:
        """Return a call that lasts until :meth:`let_go`; everything is allowed."""
        self.allow_all()
        self.plugin(
            "holding",
            f"""
            import asyncio
            from pathlib import Path

            @tool(domain="read", timeout=500)
            async def hold() -> str:
                "Wait."
                while not Path({str(self.vault.parent / "go")!r}).exists():
                    await asyncio.sleep(0.01)
                return "let go"

            @hookimpl
            def tools():
                return [hold]
            """,
        )
        return self.call("hold")

    def let_go(self) -> None:
        """Let the calls that hold go on."""
        (self.vault.parent / "go").touch()

    def config(self, **runtime) -> None:
        """Write the user's configuration below ``agents.runtime``."""
        file = self.home / "config.jsonc"
        file.write_text(json.dumps({"agents": {"runtime": runtime}}), encoding="utf-8")
        file.chmod(0o600)

    def allow_all(self) -> None:
        """Let rules stand in nobody's way."""
        self.config(permission={"rules": ALLOW_ALL})

    def script(self, *turns) -> str:
        """Write what the model will say; return the model's name."""
        file = self.vault.parent / "script.json"
        file.write_text(json.dumps(list(turns)), encoding="utf-8")
        return f"script:{file}"

    @staticmethod
    def call(name, **arguments):
        """Return an answer of the model that calls one tool."""
        return {"calls": [{"name": name, "arguments": arguments}]}

    @asynccontextmanager
    async def host(self, **options):
        """Open a host; new plugins are waited for, however busy the machine is."""
        async with await open_host(self.home, environ=self.environ, **{"wait": 60, **options}) as host:
            yield host

    async def run(self, *turns, prompt="go", on_ask="deny", builtins=BUILTINS, watch=None, **limits):
        """Run one prompt against a script; return the result and every event."""
        events = []
        async with self.host(builtins=builtins) as host:
            host.bus.subscribe(events.append)
            if watch:
                host.bus.subscribe(lambda event: watch(host, event))
            session = await host.new_session(self.vault, model=self.script(*turns))
            result = await session.prompt(prompt, options=RunOptions(on_ask=on_ask, **limits))
            self.path = await host.store.path(session.id)
            self.calls = await host.store.calls(session=session.id)
        return result, events


@pytest.fixture
def rig(tmp_path, monkeypatch):
    """A rig of its own for each test; the real home is out of reach."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    monkeypatch.setenv("MORYFLOW_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return Rig(home, vault)
