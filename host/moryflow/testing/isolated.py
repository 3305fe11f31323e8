"""An isolated host for tests: a home, a vault and a model of its own, on an event loop of its own."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
import time
import tomllib
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar, cast

from moryflow_sdk import ModelProvider, PluginContext, hookimpl
from moryflow_sdk.commands import SlashResult
from moryflow_sdk.events import Event
from moryflow_sdk.support.scripted import ScriptedModel, ScriptedTurn

from moryflow.base.builtins import BUILTINS

PLUGINS = "moryflow.plugins"
EntryPoints = Mapping[str, Mapping[str, str]]
"""Group to name to value, as under ``[project.entry-points]``."""
T = TypeVar("T")
TIMEOUT = 60.0
"""Seconds after which a call fails instead of hanging the test run."""
ALLOW_ALL: tuple[Mapping[str, str], ...] = tuple(
    {"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("read", "edit", "bash", "tool")
)


class ScriptedModels:
    """A plugin that brings the scripted model of each isolated host into it; by home folder."""

    name = "scripted_model"

    def __init__(self) -> None:
        self.by_home: dict[Path, ScriptedModel] = {}

    @hookimpl
    def models(self, ctx: PluginContext) -> list[ModelProvider]:
        """Offer the host's model."""
        found = self.by_home.get(ctx.home)
        return [found] if found else []


scripted_models = ScriptedModels()


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be set ahead.

    Everything that waits through asyncio follows it: pauses before a retry, deadlines of asynchronous functions and of
    programs. The wall clock, and with it time stamps and ages of files, and deadlines of plain functions on their
    threads do not: nothing pretends that those have passed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def time(self) -> float:
        """Return the loop's time."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Set the clock ahead; from another thread through :meth:`call_soon_threadsafe`."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._ahead += seconds


class IsolatedHost:
    """What the fixture ``moryflow`` gives. The host opens when it is first used; add plugins and settings before.

    Its methods block and work in plain and in ``async`` tests alike; for the host's own API open one with
    ``async with await moryflow.open_host(**host.options)``.

    :ivar home: Moryflow's own folder; `vault` is where the agent works.
    :ivar model: answers what :meth:`run` and :meth:`ScriptedModel.add` say; keeps what it was asked.
    :ivar events: everything that happened, in order.
    """

    def __init__(self, home: Path, vault: Path) -> None:
        self.home = home
        self.vault = vault
        self.model = ScriptedModel(())
        self.events: list[Event] = []
        self.environ: dict[str, str] = {"MORYFLOW_HOME": str(home)}
        self._config: dict[str, Any] = {}
        self._on_path: list[str] = []
        self._loop: MovableLoop | None = None
        self._host: Any = None
        for folder in (home, vault):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        scripted_models.by_home[home] = self.model

    # ---------------------------------------------------------------- before it opens

    def plugin(self, source: Path | str, name: str = "plugin_under_test") -> Path:
        """Install a plugin for this host: a file, a package folder, or source text.

        :returns: where it was put, in ``home/plugins``.
        """
        folder = self.home / "plugins"
        folder.mkdir(mode=0o700, exist_ok=True)
        if isinstance(source, str):
            target = folder / f"{name}.py"
            target.write_text(dedent(source), encoding="utf-8")
        elif source.is_dir():
            target = folder / source.name
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target = folder / source.name
            shutil.copyfile(source, target)
        for path in [target, *(target.rglob("*") if target.is_dir() else ())]:
            path.chmod(0o700 if path.is_dir() else 0o600)
        return target

    def project(self, folder: Path) -> None:
        """Let the plugin project in `folder` be installed for this host, as an editable installation would.

        :raises ValueError: the folder's ``pyproject.toml`` names no plugin.
        """
        project = read_project(folder)
        if project is None:
            raise ValueError(f"{folder}/pyproject.toml has no [project.entry-points.{PLUGINS!r}]")
        self.distribution(project.name, project.entry_points, version=project.version, sources=project.sources)

    def distribution(
        self, name: str, entry_points: EntryPoints, *, version: str = "0.1.0", sources: Path | None = None
    ) -> Path:
        """Let a package be installed for this host that is not: its metadata is there, in a folder on ``sys.path``.

        :param entry_points: group to name to value, for example ``{"moryflow.plugins": {"hello": "hello_plugin"}}``.
        :param sources: a folder with its modules, put on the path too.
        :returns: the folder with the metadata; modules may be written beside it.
        """
        site = self.home.parent / "site"
        written = write_distribution(site, name, entry_points, version=version)
        for folder in (sources, site):
            if folder is not None and str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
                self._on_path.append(str(folder))
        return written

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Merge `settings` into the user's configuration."""
        _merge(self._config, settings)
        file = self.home / "config.jsonc"
        file.write_text(json.dumps(self._config, indent=2), encoding="utf-8")
        file.chmod(0o600)

    def allow_all(self) -> None:
        """Allow everything by rule."""
        self.configure({"agents": {"runtime": {"permission": {"rules": [dict(rule) for rule in ALLOW_ALL]}}}})

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``moryflow.open_host`` for a host like this one. It runs the plugin at once, not in the probe first."""
        builtins = (*BUILTINS, f"{__name__}:scripted_models")
        return {"home": self.home, "environ": self.environ, "builtins": builtins, "probe": False}

    # ---------------------------------------------------------------- use

    @property
    def host(self) -> Any:
        """The host, opened now if it was not. Its coroutines run through :meth:`wait`."""
        if self._host is None:
            from moryflow import open_host

            self._host = self.wait(open_host(**self.options))
            self._host.bus.subscribe(self.events.append)
        return self._host

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the host's loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result(TIMEOUT)

    def run(
        self,
        prompt: str,
        turns: Sequence[str | Mapping[str, Any] | ScriptedTurn] = (),
        *,
        session: Any = None,
        mode: str | None = None,
        **options: Any,
    ) -> Any:
        """Run one turn; the model answers with `turns`. Return the host's ``TurnResult``.

        :param session: a session to go on with, as :meth:`session` gives it.
        :param options: fields of ``moryflow.RunOptions``, for example ``on_ask="deny"``, ``max_steps=3``.
        """
        return self.begin(prompt, turns, session=session, mode=mode, **options).result(TIMEOUT)

    def begin(
        self,
        prompt: str,
        turns: Sequence[str | Mapping[str, Any] | ScriptedTurn] = (),
        *,
        session: Any = None,
        mode: str | None = None,
        **options: Any,
    ) -> Future[Any]:
        """Begin a turn, as :meth:`run` does, and return while it runs; its ``result()`` is the ``TurnResult``."""
        self.model.add(*turns)
        from moryflow import RunOptions

        talk = session or self.session(mode=mode)
        work = talk.prompt(prompt, options=RunOptions(**options))
        return asyncio.run_coroutine_threadsafe(work, self._running_loop())

    def until(self, type: str, /, **data: Any) -> Event:
        """Wait for the first event of `type` that says `data`, also one that has happened already, and return it.

        :raises TimeoutError: there was none in a minute.
        """
        ending = time.monotonic() + TIMEOUT
        while time.monotonic() < ending:
            for event in list(self.events):
                if event.is_one_of((type,)) and data.items() <= dict(event.data).items():
                    return event
            time.sleep(0.005)
        raise TimeoutError(f"no {type} with {data} in {TIMEOUT:g} s; there were {[event.type for event in self.events]}")

    def advance(self, seconds: float) -> None:
        """Let time pass for what waits on the host's loop, for example the pause before a model is asked again.

        Not for time stamps and ages of files, nor for deadlines of plain functions: see
        :class:`~moryflow.testing.isolated.MovableLoop`.
        """
        loop = self._running_loop()

        async def pass_by() -> None:
            loop.advance(seconds)

        self.wait(pass_by())

    def trace(self, session: Any = None) -> str:
        """Return what plugins changed, said and failed in a session, as text that is the same in every run.

        For a comparison with what is expected, or with a stored snapshot. Built-in plugins are left out.

        :param session: as :meth:`session` gives it; the last one of the vault by default.
        """
        from moryflow.authoring import trace

        host = self.host

        async def text() -> str:
            name = session.id if session else (await host.store.latest(str(self.vault.resolve()))).id
            past = await trace.recorded(host.store, name)
            places = {str(self.vault.resolve()): "<vault>", str(self.vault): "<vault>", str(self.home): "<home>"}
            return trace.snapshot(trace.trace(host, [(past, past.turns)]), places)

        return self.wait(text())

    def session(self, **options: Any) -> Any:
        """Return a new session in the vault, with the scripted model."""
        return self.wait(self.host.new_session(self.vault, **{"model": self.model.info.id, **options}))

    def call_tool(self, name: str, /, **args: Any) -> Any:
        """Run one tool through the whole chain, without a model; return the host's ``DirectResult``."""
        return self.wait(self.host.call_tool(name, args, vault=self.vault))

    def command(self, *words: str) -> str:
        """Type a command of a plugin, ``command("costs", "--json")``, and return what it prints.

        What the command raises is raised; ``click.ClickException`` where it was not typed as it wants.
        """
        from moryflow.cli.contributed import typed

        return typed(self.host, self.wait, self.vault, words)

    def slash(self, line: str, *, session: Any = None) -> SlashResult:
        """Type a slash command of a plugin, ``slash("/costs today")``, and return what it answered.

        :param session: the conversation that it is typed in, as :meth:`session` gives it; a new one without.
        :raises KeyError: no plugin has one of that name.
        """
        name, _, rest = line.removeprefix("/").partition(" ")
        plugins = self.host.plugin_set
        answer, owner = plugins.commands[name].slash, plugins.command_owners[name]
        if answer is None:
            raise KeyError(f"/{name}")
        talk = session or self.session()
        return self.wait(talk.scoped(lambda scope: answer(rest.strip(), scope.view(owner))))[0]

    def fire(self, hook: str, /, given: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        """Call one hook chain; return the value after it and who was called.

        :param given: JSON of the hook's arguments by name; they may be given as keywords as well:
            ``fire("tool_after", call={"tool": "read"}, result={"output": "x"})``.
        """
        from moryflow.authoring.fire import fire

        return self.wait(fire(self.host, hook, {**(given or {}), **arguments}, vault=str(self.vault)))

    def close(self) -> None:
        """Close the host and end its loop."""
        scripted_models.by_home.pop(self.home, None)
        while self._on_path:
            sys.path.remove(self._on_path.pop())
        host, self._host = self._host, None
        if host is not None:
            self.wait(host.aclose())
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(TIMEOUT)
            loop.close()

    def _running_loop(self) -> MovableLoop:
        if self._loop is None:
            self._loop = MovableLoop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="moryflow-test-host", daemon=True)
            self._thread.start()
        return self._loop


def _merge(into: dict[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], cast("Mapping[str, Any]", value))
        else:
            into[key] = value


@dataclass(frozen=True)
class Project:
    """A plugin's project folder, as its ``pyproject.toml`` describes it.

    :ivar sources: the folder that holds its package: ``src``, or the project itself.
    :ivar plugins: name to ``module`` or ``module:attribute`` of the plugins it brings.
    """

    folder: Path
    name: str
    version: str
    sources: Path
    entry_points: EntryPoints

    @property
    def plugins(self) -> Mapping[str, str]:
        return self.entry_points[PLUGINS]

    def package(self, plugin: str) -> Path:
        """Return the file or the package folder with the code of `plugin`."""
        module = self.plugins[plugin].partition("[")[0].partition(":")[0].strip()
        path = self.sources.joinpath(*module.split("."))
        return path if path.is_dir() else path.with_suffix(".py")


def read_project(folder: Path) -> Project | None:
    """Return the plugin project in `folder`, ``None`` when it is none: no ``pyproject.toml`` that names a plugin."""
    try:
        values = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    project = cast("Mapping[str, Any]", values.get("project", {}))
    points = cast("EntryPoints", project.get("entry-points", {}))
    if not points.get(PLUGINS):
        return None
    sources = folder / "src" if (folder / "src").is_dir() else folder
    return Project(folder, str(project.get("name", folder.name)), str(project.get("version", "0")), sources, points)


def write_distribution(site: Path, name: str, entry_points: EntryPoints, *, version: str = "0.1.0") -> Path:
    """Write the metadata of an installed package into `site`, a folder on ``sys.path``; return the metadata's folder.

    Nothing is built and nothing is installed: the modules must be importable from `site` or elsewhere.
    """
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items()), ""])
        for group, points in entry_points.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")
    return folder
