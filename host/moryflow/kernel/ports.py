"""What a turn calls of rooms above the kernel, and the pen that it hands to them.

Ports that name the turn itself stand beside it, in :mod:`~moryflow.kernel.turn_context`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from moryflow_sdk import ToolSchema

from moryflow.store import ApprovalRow, CallRow, Node, RunRow
from moryflow.store.messages import ContextBuilder


class Journal(Protocol):
    """The pen of a turn: what is noted is invisible until :meth:`commit`."""

    def node(self, kind: str, payload: dict[str, Any], node_id: str = "") -> None: ...
    def call(self, row: CallRow) -> None: ...
    def approval(self, row: ApprovalRow) -> None: ...
    def run(self, row: RunRow) -> None: ...
    def session(self, **fields: Any) -> None: ...
    def switch(self, node_id: str | None) -> None: ...
    def only_after(self, node_id: str) -> None: ...
    def event(self, kind: str, /, **data: Any) -> None: ...
    def delta(self, kind: str, /, **data: Any) -> None: ...
    def within(self, seconds: float) -> AbstractAsyncContextManager[None]: ...
    async def settle(self) -> None: ...
    async def commit(self) -> list[Node]: ...


class Requests(Protocol):
    """What compaction asks of the builder of a turn's requests."""

    context: ContextBuilder

    def schemas(self) -> tuple[ToolSchema, ...]: ...
    async def overhead(self, size: Callable[[str], float]) -> float: ...


class Compaction(Protocol):
    """What a turn calls at its pauses; never between a call and its result."""

    async def before_step(self) -> None:
        """Shorten the view if the next request needs it. Never raises for its own failures."""
        ...

    async def recover(self) -> bool:
        """Shorten the view because the provider said it does not fit; return whether it is worth asking again."""
        ...

    async def after_turn(self) -> None:
        """Prune what the next turn will not need."""
        ...


class NoCompaction:
    """Leaves everything as it is."""

    async def before_step(self) -> None:
        """Do nothing."""

    async def recover(self) -> bool:
        """Cannot help."""
        return False

    async def after_turn(self) -> None:
        """Do nothing."""
