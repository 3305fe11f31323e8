"""A home whose files change while a host is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow import open_host
from moryflow.plugins.reload import Reloader
from moryflow.plugins.reload_report import ReloadReport

TOOL = '''
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def {name}({parameters}) -> str:
    """Say it."""
    return "{text}"

@hookimpl
def tools():
    return [{name}]
'''


class Home:
    """Moryflow's own folder, with a host that reloads."""

    def __init__(self, root: Path) -> None:
        self.path = root / "home"
        self.vault = root / "vault"
        self.reports: list[ReloadReport] = []
        self.host: Any = None
        self.reloader: Any = None
        for folder in (self.path / "plugins", self.path / "tools", self.path / "agents", self.vault):
            folder.mkdir(parents=True, mode=0o700)

    def write(self, name: str, text: str) -> Path:
        """Save a file below the home."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        file.chmod(0o600)
        return file

    def tool(self, text: str = "one", *, name: str = "hello", parameters: str = "", plugin: str = "mine") -> Path:
        """Save a plugin with one tool."""
        return self.write(f"plugins/{plugin}.py", TOOL.format(name=name, text=text, parameters=parameters))

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Any]:
        """A host that takes what is saved."""
        async with await open_host(self.path, **{"environ": {}, **options}) as host:
            self.host, self.reloader = host, Reloader(host, self.reports.append)
            self.reloader.start()
            try:
                yield host
            finally:
                await self.reloader.aclose()

    async def until(self, true: Callable[[], Any], *, seconds: float = 300.0) -> Any:
        """Wait until something is true, and return it."""
        async with asyncio.timeout(seconds):
            while True:
                if found := true():
                    return found
                await asyncio.sleep(0.005)

    async def report(self) -> ReloadReport:
        """Return the next report."""
        await self.until(lambda: self.reports)
        return self.reports.pop(0)

    async def says(self, name: str = "hello", **args: Any) -> str:
        """Return what a tool says."""
        return (await self.host.call_tool(name, args, vault=self.vault)).result.output

    def record(self, name: str = "mine") -> Any:
        """Return a plugin's load record."""
        return next(record for record in self.host.plugin_set.records if record.name == name)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)
