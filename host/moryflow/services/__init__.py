"""What plugins may ask of the host: one small implementation per protocol of ``moryflow_sdk.services``.

:data:`SERVICES` maps a service's name to a factory ``(scope, plugin) -> service``. Factories import their module when
first used, so that a turn pays only for what its plugins ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Target, TargetRequest

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

Factory = Callable[["TurnContext", str], Any]


def _files(scope: TurnContext, _plugin: str) -> Any:
    if scope.files is None:
        from pathlib import Path

        from .files import VaultFiles

        scope.files = VaultFiles(scope.vault, scope.around.home, Path.home())
    return scope.files


def _artifacts(scope: TurnContext, _plugin: str) -> Any:
    from .artifacts import ArtifactService, TurnRows

    vault = None if scope.around.profile == "remote" else scope.vault
    return ArtifactService(scope.around.home, TurnRows(scope), session=scope.session, vault=vault)


def _history(scope: TurnContext, _plugin: str) -> Any:
    from .history import HistoryService

    return HistoryService(scope)


def _rules(scope: TurnContext, _plugin: str) -> Any:
    from .rules import RulesService

    return RulesService(scope)


def _complete(scope: TurnContext, plugin: str) -> Any:
    from .complete import CompleteService

    return CompleteService(scope, plugin)


def _info(scope: TurnContext, _plugin: str) -> Any:
    from .history import InfoService

    return InfoService(scope)


def _spawn(scope: TurnContext, plugin: str) -> Any:
    from .spawn import SpawnService

    return SpawnService(scope, plugin)


def _emit(scope: TurnContext, plugin: str) -> Any:
    def emit(kind: str, /, **data: Any) -> None:
        event = scope.event(f"plugin.{plugin}.{kind}", **data)
        scope.around.desk.from_any_thread(scope.around.bus.publish, event)

    return emit


def _resolve(scope: TurnContext, plugin: str) -> Callable[[TargetRequest], Target]:
    """Internal to the kernel: turn what a tool declared into what is judged."""
    from .paths import resolved

    return lambda request: resolved(request, lambda: _files(scope, plugin))


SERVICES: Mapping[str, Factory] = {
    "artifacts": _artifacts,
    "complete": _complete,
    "emit": _emit,
    "files": _files,
    "history": _history,
    "info": _info,
    "resolve": _resolve,
    "rules": _rules,
    "spawn": _spawn,
}
