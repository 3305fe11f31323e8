"""The fifteen checks that every plugin should pass: ``pytest --moryflow-plugin PATH``. Each module is a group of checks.

A check that fails says in one sentence what is wrong, where, and what to do about it. This module has the plugin under test,
in an isolated host that all checks share.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pytest
from moryflow_sdk import HOOKS, Tool

from moryflow.authoring.fire import call_chain
from moryflow.hooks.plugin_set import HookFailure
from moryflow.packages.manager import probe_candidates
from moryflow.plugins.discovery import in_development
from moryflow.plugins.preflight.prober import ProbeVerdict
from moryflow.testing.isolated import IsolatedHost, Project, read_project

_ENTRY_POINTS = '[project.entry-points."moryflow.plugins"]'


class Subject:
    """The plugin under test. Its properties, such as the host, are computed on first use.

    :ivar project: the project that contains it, ``None`` for a single file or a bare package.
    :ivar name: the name under which it is loaded.
    :ivar settings: its section of the configuration.
    """

    def __init__(self, path: Path, root: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.root = root
        self.settings = settings or {}
        self.project: Project | None = read_project(path) if path.is_dir() else None
        self.name = next(iter(self.project.plugins)) if self.project else path.name if path.is_dir() else path.stem

    # ---------------------------------------------------------------- failing a check

    def fail(self, what: str, to_do: str, place: Any = None) -> NoReturn:
        """Fail the check with one sentence.

        :param place: a function, a path, or a path with a line.
        """
        sentence = f"{self.where(place)}: {what}. What to do: {to_do}"
        # The loaded file is a copy in the home of the isolated host; name the author's file instead.
        copies = re.compile(rf"{re.escape(str(self.root))}(/\w+)?/home/plugins/{re.escape(self.path.name)}")
        pytest.fail(copies.sub(lambda _: str(self.path), sentence), pytrace=False)

    def where(self, place: Any = None) -> str:
        """Return ``file:line`` of `place`, else the plugin's file."""
        code = getattr(inspect.unwrap(place), "__code__", None) if callable(place) else None
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
        return str(place or self.file)

    # ---------------------------------------------------------------- whether the plugin can be loaded

    @cached_property
    def refusal(self) -> ProbeVerdict | None:
        """Why the plugin cannot be loaded, or ``None``. The probe finds out in a separate process.

        A plugin that hangs or ends the process must not do that to pytest.
        """
        candidates = in_development(self.path)
        if not candidates:
            return ProbeVerdict(False, "discover", "there is no plugin here", hint=f"add {_ENTRY_POINTS} to its pyproject.toml")
        candidate = next((each for each in candidates if each.name == self.name), candidates[0])
        home = self.root / "probe"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        [verdict] = probe_candidates([candidate], home, self.config)
        return None if verdict.ok else verdict

    # ---------------------------------------------------------------- the code

    @cached_property
    def package(self) -> Path:
        """The plugin's file, or its package folder."""
        return self.project.package(self.name) if self.project else self.path

    @cached_property
    def file(self) -> Path:
        """The plugin's file, or the ``__init__.py`` of its package."""
        return self.package / "__init__.py" if self.package.is_dir() else self.package

    @cached_property
    def manifest(self) -> Path | None:
        """The ``plugin.toml`` of the package; single files have none."""
        file = self.package / "plugin.toml"
        return file if self.package.is_dir() and file.is_file() else None

    # ---------------------------------------------------------------- the host

    @contextmanager
    def fresh(self, folder: str) -> Generator[IsolatedHost]:
        """Open a separate host with the plugin installed."""
        base = self.root / folder
        host = IsolatedHost(base / "home", base / "vault")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MORYFLOW_HOME", str(host.home))
            self.install(host)
            try:
                yield host
            finally:
                host.close()

    @property
    def config(self) -> dict[str, Any]:
        return {"plugins": {self.name: dict(self.settings)}} if self.settings else {}

    def install(self, host: IsolatedHost) -> None:
        if self.settings:
            host.configure(self.config)
        if self.project is not None:
            host.project(self.path)
        else:
            host.plugin(self.path)

    @cached_property
    def host(self) -> IsolatedHost:
        """The host that all checks share; :meth:`close` closes it."""
        host = IsolatedHost(self.root / "home", self.root / "vault")
        self.install(host)
        return host

    def close(self) -> None:
        if "host" in self.__dict__:
            self.host.close()

    @cached_property
    def record(self) -> Any:
        """The load record of the plugin, ``None`` if the host did not try to load it."""
        if self.refusal is not None:
            return None
        records = [record for record in self.host.host.plugin_set.records if record.tier != "builtin"]
        return next((record for record in records if record.name == self.name), records[0] if records else None)

    @cached_property
    def plugin(self) -> Any:
        """The loaded plugin. If it did not load, the check is skipped, because :mod:`.load` reports that."""
        record = self.record
        if record is None or record.status != "loaded":
            pytest.skip("it did not load")
        return self.host.host.plugin_set.plugins[record.name]

    def skip_unless_loaded(self) -> None:
        """Skip the check if the plugin did not load."""
        assert self.plugin is not None

    def implementations(self, hook: str | None = None) -> list[Any]:
        """Return the plugin's implementations of one hook, or of all hooks."""
        name, plugin_set = self.plugin.name, self.host.host.plugin_set
        hooks = [hook] if hook else list(HOOKS)
        return [item for each in hooks for item in plugin_set.ordered(each) if item.plugin == name]

    def functions(self) -> list[tuple[str, Callable[..., Any]]]:
        """Return pairs of a hook's name and the function as the author wrote it."""
        return [(item.hook, inspect.unwrap(item.function)) for item in self.implementations()]

    @property
    def tools(self) -> list[Tool]:
        name = self.plugin.name
        return [owned.tool for owned in self.host.host.plugin_set.tools.values() if owned.plugin == name]

    def failures(self, hook: str, given: Sequence[Mapping[str, Any]]) -> list[HookFailure]:
        """Call the plugin's functions for `hook` in one turn, once for each of `given`; return what fails.

        :param given: the hook's arguments by name.
        """
        dispatcher = self.host.host.surroundings.dispatcher
        own = tuple(replace(item, position=place) for place, item in enumerate(self.implementations(hook)))

        async def work(scope: Any) -> list[HookFailure]:
            scope.plugin_set = replace(scope.plugin_set, hooks={hook: own})
            scope.failures = list[HookFailure]()
            for each in given:
                await call_chain(dispatcher, scope, hook, each)
            return scope.failures

        if not given:
            return []
        session = self.host.wait(self.host.host.new_session(self.host.vault, purpose="direct"))
        return self.host.wait(session.scoped(work))[0]
