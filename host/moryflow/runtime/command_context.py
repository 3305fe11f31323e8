"""What a plugin's command can use of the host, whether the command line or a server runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Tool, ToolCall, ToolError, Turn
from moryflow_sdk.support.processes import refuse_inside_tool

from moryflow.kernel.tool_call import call_as_judged

if TYPE_CHECKING:
    from moryflow.store import SessionRow

    from .host import Host


class HostCommandContext(ABC):
    """The :class:`moryflow_sdk.CommandContext` of a plugin's command, without the output, which subclasses add. The methods
    are documented there.

    :param wait: runs a coroutine on the host's loop and returns its result; the command runs in another thread.
    """

    def __init__(self, host: Host, plugin: str, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._host, self._plugin, self._wait = host, plugin, wait
        self.home: Path = host.home

    @property
    @abstractmethod
    def vault(self) -> Path: ...

    @property
    def mode(self) -> str:
        return self._host.config.get("agents.runtime.mode.default") or "agent"

    @property
    def tools(self) -> Mapping[str, Tool]:
        return {name: owned.tool for name, owned in self._host.tools.items()}

    def run(self, work: Callable[[Turn], Awaitable[Any]], *, session: str | None = None, vault: Path | None = None) -> Any:
        async def within() -> Any:
            async with self.turn(session=session, vault=vault) as turn:
                return await work(turn)

        return self._wait(within())

    def change(self, work: Callable[[Turn], Awaitable[Any]], *, session: str | None = None) -> Any:
        async def within() -> Any:
            row = await self._session_row(session)
            opened = await self._host.resume(row.vault, row.id)
            value, _ = await opened.scoped(lambda scope: work(scope.view(self._plugin)))
            return value

        return self._wait(within())

    def configure(self, setting: Sequence[str], value: Any) -> bool:
        from moryflow.config.values import set_value, unset

        refuse_inside_tool(f"a change of {'.'.join(setting)}")
        file = self._host.config.path
        return unset(file, setting) if value is None else set_value(file, setting, value)

    @abstractmethod
    async def _session_row(self, name: str | None) -> SessionRow: ...

    @asynccontextmanager
    async def turn(
        self, *, session: str | None = None, vault: Path | None = None, mode: str | None = None
    ) -> AsyncIterator[Turn]:
        async with self._host.read_only(vault or self.vault, session=session, mode=mode) as scope:
            view: Any = scope.view(self._plugin)
            yield view

    def prepare(self, tool: str, args: Mapping[str, Any], turn: Turn) -> ToolCall:
        return prepared_call(turn, tool, args)


def prepared_call(turn: Any, tool: str, args: Mapping[str, Any]) -> ToolCall:
    """Return the call that gates would judge if the model called `tool` with `args` in `turn`.

    :param turn: a turn that the host made.
    :raises ToolError: there is no such tool, or the arguments do not match its schema.
    """
    scope = turn.scope_for_host()
    if tool not in scope.plugin_set.tools:
        raise ToolError(f"there is no tool {tool!r}", code="unknown_tool", next_step="moryflow tool list")
    return call_as_judged(scope, tool, args, "call_prepared", 1)[0]
