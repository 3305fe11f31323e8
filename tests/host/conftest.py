"""A workbench for plugins of all three tiers: real modules, real metadata folders, real files in a temporary home."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moryflow.config import Config, Layer, merged, nested
from moryflow.hooks.dispatcher import Dispatcher
from moryflow.hooks.ledger import Ledger, Quarantine
from moryflow.hooks.plugin_set import HookFailure, LoadRecord, PluginSet
from moryflow.plugins import dispose, load_plugin_set, start
from moryflow.plugins.discovery import PluginSettings
from moryflow.store import HookCallRow

_numbers = itertools.count(1)
HEAD = "from moryflow_sdk import *\n"


class Settings:
    """A configuration made of one dictionary of dotted sections; every value stands in ``config.jsonc``."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.lines: dict[str, int] = {}

    def section(self, dotted: str) -> Any:
        return self.values.get(dotted, {})

    def origin(self, dotted: str) -> Any:
        line = self.lines.get(dotted)
        return SimpleNamespace(source="user", file="config.jsonc", line=line) if line else None

    def checked(self, known: Any) -> Any:
        value: dict[str, Any] = {}
        for dotted, section in self.values.items():
            value = merged(value, nested(dotted.split("."), section))
        return Config((Layer("user", value, "config.jsonc"),), (), Path()).checked(known)


class Scope:
    """What dispatch needs of a turn."""

    session, turn, step = "s1", "t1", 1

    def __init__(self, plugin_set: PluginSet) -> None:
        self.plugin_set = plugin_set
        self.ledger = Ledger()
        self.quarantine = Quarantine()
        self.failures: list[HookFailure] = []
        self._views: dict[str, Any] = {}

    def view(self, plugin: str) -> Any:
        return self._views.setdefault(plugin, SimpleNamespace(plugin=plugin))

    def report(self, failure: HookFailure) -> None:
        self.failures.append(failure)

    def hook_calls(self) -> list[HookCallRow]:
        """Take what the ledger holds, each row by itself."""
        return [each for row in self.ledger.drain() for each in row.each()]


class Workbench:
    """Writes plugins and loads them."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.site = root / "site"
        self.package = f"workbench{next(_numbers)}"
        self.config = Settings({})
        self.builtins: list[str] = []
        self.sets: list[PluginSet] = []
        self.dispatcher = Dispatcher()
        for folder in (self.home, self.site, self.site / self.package, self.home / "plugins"):
            folder.mkdir(parents=True)
            folder.chmod(0o755)

    def builtin(self, name: str, source: str) -> Path:
        self.builtins.append(f"{self.package}.{name}")
        return write(self.site / self.package / f"{name}.py", source)

    def user(self, name: str, source: str) -> Path:
        return write(self.home / "plugins" / f"{name}.py", source)

    def installed(self, name: str, source: str, *, manifest: str | None = None, value: str | None = None) -> Path:
        """Install a package of one plugin: a module (or a package, when it has a manifest) and its metadata."""
        module = f"{self.package}_{name.replace('-', '_')}"
        info = self.site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n", "utf-8")
        points = f"[moryflow.plugins]\n{name} = {value or module}\n"
        if manifest is not None:
            points += f"[moryflow.manifest]\n{name} = {module}:plugin.toml\n"
            (self.site / module).mkdir()
            write(self.site / module / "plugin.toml", manifest)
        (info / "entry_points.txt").write_text(points, "utf-8")
        return write(self.site / (f"{module}/__init__.py" if manifest is not None else f"{module}.py"), source)

    def load(self, previous: PluginSet | None = None, **settings: Any) -> PluginSet:
        if "only" in settings and settings["only"] is not None:
            settings["only"] = frozenset(settings["only"])
        settings["disabled"] = frozenset(settings.get("disabled", ()))
        return load_plugin_set(
            home=self.home,
            builtins=tuple(self.builtins),
            settings=PluginSettings(**settings),
            config=self.config,
            previous=previous,
        )

    async def start(self, previous: PluginSet | None = None, **settings: Any) -> PluginSet:
        """Load and start; disposed of when the test ends."""
        started = await start(self.load(previous, **settings))
        self.sets.append(started)
        return started

    async def scope(self, **settings: Any) -> Scope:
        return Scope(await self.start(**settings))

    def record(self, name: str, plugin_set: PluginSet | None = None, **settings: Any) -> LoadRecord:
        """Return the one record of `name`, of a freshly loaded set unless one is given."""
        loaded = plugin_set or self.load(**settings)
        (found,) = [item for item in loaded.records if item.name == name]
        return found


def write(path: Path, source: str) -> Path:
    text = textwrap.dedent(source)
    path.write_text(HEAD + text if path.suffix == ".py" else text, "utf-8")
    path.chmod(0o644)
    return path


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workbench]:
    """A workbench whose site folder is importable, so that what is installed there is found like any package."""
    made = Workbench(tmp_path)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(made.site))
    yield made
    for each in made.sets:
        await dispose(each)
    for name in set(sys.modules) - before:
        if name.startswith(made.package):
            del sys.modules[name]
