"""A toolbox: tools called as the host calls them, on real files, without a host."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moryflow.services.files import VaultFiles
from moryflow_sdk import Agent, Rule, Target, Tool, ToolCall, ToolResult


@dataclass
class StoredRules:
    """The rules service, with rules that a test sets."""

    rules: tuple[Rule, ...] = ()

    def all(self) -> tuple[Rule, ...]:
        return self.rules


@dataclass
class Context:
    """What a tool's body sees."""

    call: ToolCall
    files: VaultFiles
    vault: Path
    home: Path
    rules: StoredRules
    agent: Agent
    model: Any = None
    mode: str = "agent"
    config: Any = None
    mark: str = ""
    cancelled: bool = False
    shown: list[str] = field(default_factory=list)

    def progress(self, text: str) -> None:
        self.shown.append(text)


@dataclass
class Toolbox:
    """Validates, resolves and runs, as the one door does between its gates and its body."""

    files: VaultFiles
    vault: Path
    home: Path
    rules: StoredRules = field(default_factory=StoredRules)
    agent: Agent = field(default_factory=lambda: Agent(id="build"))
    model: Any = None
    mode: str = "agent"

    def call(self, tool: Tool, args: Mapping[str, Any]) -> ToolCall:
        valid = tool.validate(args)
        return ToolCall(id="c", tool=tool.name, args=valid, domain=tool.domain, targets=self.targets(tool, valid))

    def targets(self, tool: Tool, args: Mapping[str, Any]) -> tuple[Target, ...]:
        return tuple(self.files.resolve(request.value, domain=request.domain) for request in tool.target_requests(args))

    def body(self, tool: Tool, call: ToolCall) -> Any:
        context: Any = Context(call, self.files, self.vault, self.home, self.rules, self.agent, self.model, self.mode)
        return tool.function(**tool.bind(json.dumps(dict(call.args)).encode(), context))

    def run(self, tool: Tool, **args: Any) -> ToolResult:
        return self.finish(tool, self.call(tool, args))

    def finish(self, tool: Tool, call: ToolCall) -> ToolResult:
        """Run the body of a call that was judged, to its end."""
        outcome = self.body(tool, call)
        return asyncio.run(outcome) if inspect.iscoroutine(outcome) else outcome

    async def arun(self, tool: Tool, **args: Any) -> ToolResult:
        outcome = self.body(tool, self.call(tool, args))
        return await outcome if inspect.isawaitable(outcome) else outcome

    def fill(self, content: Mapping[str, str | bytes]) -> None:
        for name, data in content.items():
            (self.vault / name).parent.mkdir(parents=True, exist_ok=True)
            (self.vault / name).write_bytes(data.encode() if isinstance(data, str) else data)


@pytest.fixture
def toolbox(tmp_path: Path) -> Toolbox:
    """Tools on an empty vault."""
    vault, home = tmp_path.resolve() / "vault", tmp_path.resolve() / "home"
    vault.mkdir()
    (home / ".moryflow").mkdir(parents=True)
    return Toolbox(VaultFiles(vault, home / ".moryflow", home), vault, home / ".moryflow")
