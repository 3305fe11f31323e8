"""A real host and store with a scripted model whose window a test chooses, and paths made by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow import open_host
from moryflow.store import Commit, NewNode
from moryflow_sdk import ModelEvent, ModelInfo, ModelRequest
from moryflow_sdk.support.scripted import ScriptedModel

sys.path.insert(0, str(Path(__file__).parent))  # for compaction_paths


class Waiting(ScriptedModel):
    """A scripted model whose summaries wait until they may be written."""

    may_write: asyncio.Event

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        if request.purpose == "compact":
            await self.may_write.wait()
        async for event in super().stream(request):
            yield event


@dataclass
class Bench:
    """A home, a vault, and sessions filled without a model."""

    home: Path
    vault: Path
    events: list[Any] = field(default_factory=list)

    def config(self, mode: str = "before", **compaction: Any) -> None:
        """Write the configuration. A test that says nothing else has summaries written before the step that needs them."""
        rules = [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("read", "edit", "bash", "tool")]
        self._write(permission={"rules": rules}, compaction={"mode": mode, **compaction})

    def doom(self, **compaction: Any) -> None:
        """Write a configuration in which a model may call as often as it likes."""
        never = {"maxAttempts": 10**6, "maxToolCalls": 10**6, "sameToolThreshold": 10**6}
        self._write(doomLoop=never, compaction=compaction)

    def _write(self, **runtime: Any) -> None:
        file = self.home / "config.jsonc"
        file.write_text(json.dumps({"agents": {"runtime": runtime}}), encoding="utf-8")
        file.chmod(0o600)

    def plugin(self, name: str, source: str) -> None:
        file = self.home / "plugins" / f"{name}.py"
        file.parent.mkdir(exist_ok=True, mode=0o700)
        file.write_text("from moryflow_sdk import *\n" + dedent(source), encoding="utf-8")
        file.chmod(0o600)

    @asynccontextmanager
    async def host(self, *turns: Any, window: int | None = 10_000, provider: Any = None, **options: Any):
        """Open a host whose only model is scripted; `host.scripted` is that model."""
        info = ModelInfo(id="scripted", name="scripted", provider="scripted", context_window=window, tools=True, images=True)
        async with await open_host(self.home, environ={}, **{"builtins": (), **options}) as host:
            scripted = provider or Waiting(turns, info=info)
            scripted.may_write = asyncio.Event()
            scripted.may_write.set()
            host.plugin_set = replace(host.plugin_set, providers=(scripted,))
            host.scripted = scripted
            host.bus.subscribe(self.events.append)
            yield host

    async def written(self, host: Any, session: Any) -> None:
        """Let a summary be written beside the turns, and wait until it is."""
        host.scripted.may_write.set()
        _, fork = host.compaction._forks[session.id]
        await asyncio.wait((fork,))

    async def session(self, host: Any, nodes: Sequence[tuple[str, Mapping[str, Any]]]):
        """Return a session that already holds `nodes`."""
        session = await host.new_session(self.vault)
        hold = await host.store.hold(session.id)
        await hold.commit(Commit(nodes=[NewNode(kind, dict(payload), id=f"n{i}") for i, (kind, payload) in enumerate(nodes)]))
        hold.release()
        return session

    def compactions(self, state: str | None = None, kind: str = "compact") -> list[dict[str, Any]]:
        """Return the compaction events so far."""
        found = [dict(event.data) for event in self.events if event.type == "compaction" and event.data["kind"] == kind]
        return [item for item in found if state in (None, item["state"])]


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    """A bench of its own for each test."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    monkeypatch.setenv("MORYFLOW_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    made = Bench(home, vault)
    made.config()
    return made
