"""Runs commands in a terminal of the editor, if a person has chosen that: the service ``terminal`` over ``terminal/*``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moryflow_sdk import MoryflowError, ToolError
from moryflow_sdk.services import TerminalRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from moryflow.kernel.turn_context import TurnContext

    from .connection import EditorConnection

OUTPUT_BYTES = 1 << 20
"""How many bytes of an output the editor is asked to keep: even if escaping makes it six times as long, it fits a message."""
SECONDS = 5.0
"""How long an editor may take to open a terminal, or to return its output."""
CLOSE_SECONDS = 1.0
"""How long an editor may take to close a terminal; after that the host ends what still runs."""


class EditorTerminals:
    """The terminals of one editor.

    :param knows: whether the editor has a session open.
    :ivar offered: whether the editor declares that it has terminals.
    :ivar shown: by session and call, the terminals of calls that have no result yet.
    :ivar late: tasks that close terminals which the editor opened after their call had given up.
    """

    def __init__(self, connection: EditorConnection, knows: Callable[[str], bool]) -> None:
        self._connection, self._knows = connection, knows
        self.offered = False
        self.shown: dict[tuple[str, str], str] = {}
        self.late: set[asyncio.Future[Any]] = set()
        self._by_turn: WeakKeyDictionary[TurnContext, EditorTerminal | None] = WeakKeyDictionary()

    def service(self, scope: TurnContext, _plugin: str) -> EditorTerminal | None:
        """Return the terminal of a turn, or ``None``. It never changes in a turn, so a command runs where it was judged to."""
        if scope not in self._by_turn:
            session = scope.lineage[-1]
            chosen = self.offered and scope.around.config.get("acp.editorTerminal") is True and self._knows(session)
            self._by_turn[scope] = EditorTerminal(self._connection, session, self) if chosen else None
        return self._by_turn[scope]


class EditorTerminal:
    """Implements :class:`moryflow_sdk.services.Terminal` for a session that an editor has open."""

    def __init__(self, connection: EditorConnection, session: str, terminals: EditorTerminals) -> None:
        self._connection, self._session, self._terminals = connection, session, terminals

    async def run(
        self, call: str, argv: Sequence[str], *, folder: Path, variables: Mapping[str, str], seconds: float
    ) -> TerminalRun:
        """Run a program in a new terminal that is shown with the call; the terminal is released whatever happens."""
        env = [{"name": name, "value": value} for name, value in variables.items()]
        program = {"command": argv[0], "args": [*argv[1:]], "env": env, "cwd": str(folder), "outputByteLimit": OUTPUT_BYTES}
        terminal = await self._open(program)
        self._show(call, terminal)
        status: Mapping[str, Any] | None = None
        ended = False
        try:
            with suppress(TimeoutError):
                status = await self._ask("wait_for_exit", seconds, terminalId=terminal)
            if status is None:
                await self._answer("kill", terminalId=terminal)
            ended = True
            said = await self._answer("output", terminalId=terminal)
        finally:
            await self._close(terminal, ended)
        code, signal, output = (status or {}).get("exitCode"), (status or {}).get("signal"), said.get("output")
        return TerminalRun(
            output=output.encode("utf-8", "replace").decode() if isinstance(output, str) else "",
            exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
            signal=signal[:40] if isinstance(signal, str) else "",
            truncated=said.get("truncated") is True,
            stopped=status is None,
        )

    async def _open(self, program: Mapping[str, Any]) -> str:
        """Open a terminal and return its id; if the editor opens it only after the timeout, it is closed again."""
        opening = asyncio.ensure_future(self._ask("create", None, **program))
        try:
            async with asyncio.timeout(SECONDS):
                return _name_in(await asyncio.shield(opening))
        except TimeoutError as error:
            self._close_later(opening)
            message = f"the editor did not answer terminal/create within {SECONDS:g} s; a terminal that it opens now is closed"
            raise ToolError(message, code="terminal") from error
        except asyncio.CancelledError:
            self._close_later(opening)
            raise

    def _close_later(self, opening: asyncio.Future[Mapping[str, Any]]) -> None:
        async def close() -> None:
            with suppress(MoryflowError):
                await self._close(_name_in(await opening), False)

        closing = asyncio.ensure_future(close())
        self._terminals.late.add(closing)
        closing.add_done_callback(self._terminals.late.discard)

    def _show(self, call: str, terminal: str) -> None:
        self._terminals.shown[self._session, call] = terminal
        content = [{"type": "terminal", "terminalId": terminal}]
        update = {"sessionUpdate": "tool_call_update", "toolCallId": call, "content": content}
        self._connection.notify("session/update", {"sessionId": self._session, "update": update})

    async def _ask(self, what: str, seconds: float | None, **params: Any) -> Mapping[str, Any]:
        """Send a ``terminal/*`` request and return the answer.

        :raises ToolError: the editor answered with an error.
        :raises TimeoutError: the editor did not answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                said = await self._connection.ask(f"terminal/{what}", {"sessionId": self._session, **params})
        except MoryflowError as error:
            raise ToolError(f"the editor answered terminal/{what} with an error: {error.message}", code="terminal") from error
        return said if isinstance(said, Mapping) else {}

    async def _answer(self, what: str, **params: Any) -> Mapping[str, Any]:
        try:
            return await self._ask(what, SECONDS, **params)
        except TimeoutError as error:
            message = f"the editor did not answer terminal/{what} within {SECONDS:g} s; what runs there is ended"
            raise ToolError(message, code="terminal") from error

    async def _close(self, terminal: str, ended: bool) -> None:
        """Kill what still runs in a terminal and release it; even a cancelled call waits for that."""
        words = ("release",) if ended else ("kill", "release")
        asked = (self._ask(what, CLOSE_SECONDS, terminalId=terminal) for what in words)
        closing = asyncio.gather(*asked, return_exceptions=True)
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait((closing,))
            raise


def _name_in(answer: Mapping[str, Any]) -> str:
    name = answer.get("terminalId")
    if not isinstance(name, str) or not name:
        raise ToolError("the editor opened a terminal without a name", code="terminal")
    return name
