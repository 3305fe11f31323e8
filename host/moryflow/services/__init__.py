"""The turn as plugins see it, and the services of the host: one implementation for each protocol of ``moryflow_sdk.services``.
The SDK documents the methods.

:data:`SERVICES` maps a service's name to a factory ``(scope, plugin) -> service``. A factory imports its module when it is
first used, so that a turn pays only for the services that its plugins use. :func:`effect_of` is a hash of what a call does,
the same for every way to write the call.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import Ask, Rule, ServiceNotDeclared, Target, TargetRequest, Tool, ToolCall, ToolContext, Turn

from moryflow.base.paths import call_mark, make_folder
from moryflow.kernel.tool_call import canonical, digest

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext


Factory = Callable[["TurnContext", str], Any]


def _files(scope: TurnContext, _plugin: str) -> Any:
    if scope.files is None:
        from .files import VaultFiles

        scope.files = VaultFiles(scope.vault, scope.around.home, Path.home())
    return scope.files


def _artifacts(scope: TurnContext, _plugin: str) -> Any:
    from .artifacts import ArtifactService, TurnRows

    vault = None if scope.around.profile == "remote" else scope.vault
    return ArtifactService(scope.around.home, TurnRows(scope), session=scope.session, vault=vault)


def _of_session() -> Any:
    from . import session

    return session


def _emit(scope: TurnContext, plugin: str) -> Any:
    def emit(kind: str, /, **data: Any) -> None:
        event = scope.event(f"plugin.{plugin}.{kind}", **data)
        scope.around.desk.from_any_thread(scope.around.bus.publish, event)

    return emit


def _resolve(scope: TurnContext, plugin: str) -> Callable[[TargetRequest], Target]:
    """Internal to the kernel: turn the target that a tool declares into the one that gates judge."""
    from .paths import resolve_target

    return lambda request: resolve_target(request, lambda: scope.around.services["files"](scope, plugin))


SERVICES: Mapping[str, Factory] = {
    "artifacts": _artifacts,
    "complete": lambda scope, plugin: _of_session().CompleteService(scope, plugin),
    "emit": _emit,
    "files": _files,
    "history": lambda scope, _plugin: _of_session().HistoryService(scope),
    "info": lambda scope, _plugin: _of_session().InfoService(scope),
    "resolve": _resolve,
    "rules": lambda scope, _plugin: _of_session().RulesService(scope),
    "spawn": lambda scope, plugin: _of_session().SpawnService(scope, plugin),
}


def plugin_view(scope: TurnContext, plugin: str) -> Turn:
    """Return the turn of `scope` as `plugin` sees it. Services are attributes that the view creates on first use."""
    return cast("Turn", View(scope, plugin))


def tool_view(
    scope: TurnContext, plugin: str, call: ToolCall, ask: Callable[[Ask], Awaitable[None]], metadata: dict[str, Any]
) -> ToolContext:
    """Return the context that the body of `call` gets; its own metadata for the result is added to `metadata`."""
    return cast("ToolContext", ToolView(scope, plugin, call, ask, metadata))


class View:
    """A :class:`moryflow_sdk.Turn` for one plugin: its own settings, state and the services it declared."""

    def __init__(self, scope: TurnContext, plugin: str) -> None:
        self._scope = scope
        self._plugin = plugin
        self._services: dict[str, Any] = {}
        loaded = scope.plugin_set.plugins.get(plugin)
        self._declared: Sequence[str] = loaded.services if loaded else ()
        self.config: Any = loaded.config if loaded else {}
        self.id = scope.turn
        self.session = scope.session
        self.parent = scope.live.row.parent
        self.spawned = scope.started.by if scope.started else None
        self.vault = scope.vault
        self.home = scope.around.home
        self.agent = scope.agent
        self.model = scope.model
        self.purpose = scope.purpose
        self.profile = scope.around.profile
        self.headless = scope.headless
        self.plugin_set = scope.plugin_set.id

    @property
    def step(self) -> int:
        return self._scope.step

    @property
    def node(self) -> str:
        return self._scope.node

    @property
    def mode(self) -> str:
        return self._scope.live.mode

    @property
    def watched(self) -> tuple[Path, ...]:
        return self._scope.around.watched

    @property
    def cancelled(self) -> bool:
        return self._scope.live.cancelled

    @property
    def grants(self) -> tuple[Rule, ...]:
        return tuple(self._scope.live.grants)

    @property
    def data_dir(self) -> Path:
        folder = self.home / "data" / self._plugin
        make_folder(folder)
        return folder

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"moryflow.plugin.{self._plugin}")

    @property
    def state(self) -> dict[str, Any]:
        return self._scope.state_of(self._plugin, lasting=False)

    @property
    def session_state(self) -> dict[str, Any]:
        return self._scope.state_of(self._plugin, lasting=True)

    def scope_for_host(self) -> TurnContext:
        """Return the turn's context, for the host's own commands; not part of the contract with plugins."""
        return self._scope

    def __getattr__(self, name: str) -> Any:
        """Return a service of the host, if the plugin declares it (`services` in the manifest).

        :raises ServiceNotDeclared: the plugin does not declare the service.
        """
        factory = self._scope.around.services.get(name) if not name.startswith("_") else None
        if factory is None:
            raise AttributeError(f"a turn has no {name!r}")
        if name not in self._declared:
            raise ServiceNotDeclared(
                f"plugin {self._plugin!r} uses the service {name!r} without declaring it",
                next_step=f'add "{name}" to services in plugin.toml or in the module',
            )
        if name not in self._services:
            self._services[name] = factory(self._scope, self._plugin)
        return self._services[name]


class ToolView(View):
    """A :class:`moryflow_sdk.ToolContext`: a view for one running call."""

    def __init__(
        self, scope: TurnContext, plugin: str, call: ToolCall, ask: Callable[[Ask], Awaitable[None]], metadata: dict[str, Any]
    ) -> None:
        super().__init__(scope, plugin)
        self.call = call
        self._node = scope.node
        self._ask = ask
        self._metadata = metadata

    @cached_property
    def mark(self) -> str:
        """The mark that programs started by this call carry; it is made on first use, since most calls start none."""
        return call_mark(self.home, self.session, self._node, self.call.id)

    def progress(self, text: str) -> None:
        event = self._scope.event("tool.delta", call_id=self.call.id, text=text)
        self._scope.around.desk.from_any_thread(self._scope.around.bus.publish, event)

    def metadata(self, **values: Any) -> None:
        self._metadata.update(values)

    async def ask(self, question: Ask) -> None:
        await self._ask(question)


# Kinds of targets that can be written in many ways, such as a path.
_PLACES = ("file", "shell", "url")


def effect_of(tool: Tool, args: Mapping[str, Any], targets: Sequence[Target]) -> str:
    """Return the hash of what a call does: of its arguments without remarks and defaults, and of its resolved targets.

    :param args: the validated arguments.
    """
    named = {target.given: target.text for target in targets if target.kind in _PLACES}
    named |= {target.folder.given: target.folder.text for target in targets if target.folder is not None}
    declared: Mapping[str, Any] = tool.parameters.get("properties", {})
    defaults = {name: schema["default"] for name, schema in declared.items() if "default" in schema}
    kept = {
        name: _normalised(value, named)
        for name, value in args.items()
        if name not in tool.remarks
        and not (isinstance(value, str) and value in named)
        and not (name in defaults and value == defaults[name])
    }
    touched = [[item.domain, item.text.strip(), item.folder.text if item.folder else ""] for item in targets]
    return digest(canonical({"args": kept, "targets": touched}))


def _normalised(value: Any, named: Mapping[str, str]) -> Any:
    """Return `value` with one form for each number and each path."""
    if isinstance(value, str):
        return named.get(value, value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _normalised(item, named) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_normalised(item, named) for item in cast("Sequence[Any]", value)]
    return value
