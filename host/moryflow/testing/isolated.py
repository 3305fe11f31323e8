"""An isolated host for tests, with its own home, vault, model and event loop."""

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
from moryflow.config import merged

from .clock import PluginClock

PLUGINS = "moryflow.plugins"
EntryPoints = Mapping[str, Mapping[str, str]]
"""Group → name → value, as in ``[project.entry-points]``."""
T = TypeVar("T")
TIMEOUT = 60.0
"""Seconds after which a call fails instead of hanging the test run."""
ALLOW_ALL: tuple[Mapping[str, str], ...] = tuple(
    {"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("read", "edit", "bash", "tool")
)


class ScriptedModels:
    """A plugin that gives each isolated host its scripted model, found by the host's home folder."""

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

    Everything that waits through asyncio follows the clock: pauses before a retry, deadlines of asynchronous functions and of
    programs. The wall clock does not, and so neither do time stamps, ages of files, and deadlines of plain functions on their
    threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def time(self) -> float:
        """Return the time of the loop's clock."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Set the clock ahead; from another thread, call this through :meth:`call_soon_threadsafe`."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._ahead += seconds


class IsolatedHost:
    """The fixture ``moryflow``: an isolated host. It opens on first use; add plugins and settings before that.

    Its methods block, and work in plain and in ``async`` tests. To test with the host's own API, open a host with
    ``async with moryflow.open_host(**host.options)``.

    :ivar home: Moryflow's own folder; `vault` is the folder that the agent works in.
    :ivar model: the scripted model. It answers with the turns given to :meth:`run` or ``model.add``; ``model.requests`` has
        the requests that it received.
    :ivar events: all events so far, in order.
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
        self._clock = PluginClock()
        self._host: Any = None
        for folder in (home, vault):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        scripted_models.by_home[home] = self.model

    # ---------------------------------------------------------------- before the host opens

    def plugin(self, source: Path | str, name: str = "plugin_under_test") -> Path:
        """Install a plugin for this host: a file, a package folder, or source text.

        :returns: the path of the plugin in ``home/plugins``.
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
        """Install the plugin project in `folder` for this host, in the way of an editable installation.

        :raises ValueError: the folder's ``pyproject.toml`` names no plugin.
        """
        project = read_project(folder)
        if project is None:
            raise ValueError(f"{folder}/pyproject.toml has no [project.entry-points.{PLUGINS!r}]")
        self.distribution(project.name, project.entry_points, version=project.version, sources=project.sources)

    def distribution(
        self, name: str, entry_points: EntryPoints, *, version: str = "0.1.0", sources: Path | None = None
    ) -> Path:
        """Make a package appear installed for this host.

        :param entry_points: group → name → value, for example ``{"moryflow.plugins": {"hello": "hello_plugin"}}``.
        :param sources: a folder with its modules, which is added to ``sys.path`` too.
        :returns: the folder with the metadata; you may write modules beside it.
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
        self._config = merged(self._config, settings)
        file = self.home / "config.jsonc"
        file.write_text(json.dumps(self._config, indent=2), encoding="utf-8")
        file.chmod(0o600)

    def allow_all(self) -> None:
        """Add rules that allow every read, edit, shell command and tool."""
        self.configure({"agents": {"runtime": {"permission": {"rules": [dict(rule) for rule in ALLOW_ALL]}}}})

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``moryflow.open_host`` for a host like this one. It runs plugins at once, without the probe."""
        builtins = (*BUILTINS, f"{__name__}:scripted_models")
        return {"home": self.home, "environ": self.environ, "builtins": builtins, "probe": False}

    # ---------------------------------------------------------------- use

    @property
    def host(self) -> Any:
        """The host; the first use opens it. Run its coroutines with :meth:`wait`."""
        if self._host is None:
            from moryflow import open_host

            self._host = self.wait(open_host(**self.options))
            self._host.bus.subscribe(self.events.append)
        return self._host

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the host's loop and return its result."""
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
        """Run one turn, in which the model answers with `turns`, and return the host's ``TurnResult``.

        :param session: a session from :meth:`session`; by default a new one.
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
        """Begin a turn, as :meth:`run` does, and return while it runs; the future's ``result()`` is the ``TurnResult``."""
        self.model.add(*turns)
        from moryflow import RunOptions

        talk = session or self.session(mode=mode)
        work = talk.prompt(prompt, options=RunOptions(**options))
        return asyncio.run_coroutine_threadsafe(work, self._running_loop())

    def until(self, type: str, /, **data: Any) -> Event:
        """Return the first event of `type` with `data` among its fields; wait for it if it has not happened yet.

        :raises TimeoutError: there was no such event within a minute.
        """
        ending = time.monotonic() + TIMEOUT
        while time.monotonic() < ending:
            for event in list(self.events):
                if event.is_one_of((type,)) and data.items() <= dict(event.data).items():
                    return event
            time.sleep(0.005)
        raise TimeoutError(f"no {type} with {data} in {TIMEOUT:g} s; there were {[event.type for event in self.events]}")

    def advance(self, seconds: float) -> None:
        """Set the clock ahead: that of the host's loop, and that of plugins which ask :mod:`time` or :mod:`datetime`.

        Time stamps of the host, ages of files and deadlines of plain functions do not change.
        """
        loop = self._running_loop()

        async def pass_by() -> None:
            loop.advance(seconds)

        self.wait(pass_by())
        plugins = [plugin for plugin in self.host.plugin_set.plugins.values() if plugin.tier != "builtin"]
        names = (getattr(plugin.object, "__name__", None) or type(plugin.object).__module__ for plugin in plugins)
        self._clock.advance(names, seconds)

    def compact(self, session: Any, focus: str = "") -> Mapping[str, Any]:
        """Compact a session from :meth:`session` now, as ``/compact`` does; return what was done.

        The scripted model writes the summary: ``moryflow.model.add("what happened so far")``.

        :param focus: what the summary must keep above all.
        """
        from moryflow.runtime.session_commands import compact_now

        return self.wait(compact_now(self.host, session, focus))

    def trace(self, session: Any = None) -> str:
        """Return what plugins changed and decided in a session, and where they failed, as text that is equal in every run.

        Built-in plugins are left out.

        :param session: a session from :meth:`session`; by default the vault's last one.
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
        """Run one tool through the whole chain of hooks, without a model, and return the host's ``DirectResult``."""
        return self.wait(self.host.call_tool(name, args, vault=self.vault))

    def command(self, *words: str) -> str:
        """Run a command of a plugin, ``command("costs", "--json")``, and return what it prints.

        Exceptions are raised; wrong arguments raise ``click.ClickException``.
        """
        from moryflow.cli.contributed import run_typed

        return run_typed(self.host, self.wait, self.vault, words)

    def slash(self, line: str, *, session: Any = None) -> SlashResult:
        """Run a slash command of a plugin, ``slash("/costs today")``, and return its result.

        :param session: a session from :meth:`session`, in which the command is typed; by default a new one.
        :raises KeyError: no plugin has a slash command of that name.
        """
        name, _, rest = line.removeprefix("/").partition(" ")
        plugins = self.host.plugin_set
        answer, owner = plugins.commands[name].slash, plugins.command_owners[name]
        if answer is None:
            raise KeyError(f"/{name}")
        talk = session or self.session()
        return self.wait(talk.scoped(lambda scope: answer(rest.strip(), scope.view(owner))))[0]

    def fire(self, hook: str, /, given: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        """Call all implementations of one hook; return the final value and the implementations that were called.

        :param given: the hook's arguments by name, as JSON; you may also give them as keywords:
            ``fire("tool_after", call={"tool": "read"}, result={"output": "x"})``.
        """
        from moryflow.authoring.fire import fire

        return self.wait(fire(self.host, hook, {**(given or {}), **arguments}, vault=str(self.vault)))

    def close(self) -> None:
        """Close the host and end its loop."""
        scripted_models.by_home.pop(self.home, None)
        self._clock.restore()
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


@dataclass(frozen=True)
class Project:
    """A plugin's project folder, as its ``pyproject.toml`` describes it.

    :ivar sources: the folder with its package: ``src``, or the project folder itself.
    :ivar plugins: the plugins in it: name → ``module`` or ``module:attribute``.
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
    """Return the plugin project in `folder`, or ``None`` if there is no ``pyproject.toml`` that names a plugin."""
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
