"""Turns that run in a server (:mod:`moryflow.attach`), shown and asked about at the terminal like turns of this process."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_args

from moryflow_sdk import ConfigError, Event, ModelError, MoryflowError, PluginError
from moryflow_sdk.errors import ModelErrorCode
from moryflow_sdk.support.processes import CALL_MARK, inside_tool
from moryflow_sdk.support.threads import on_daemon_thread

from moryflow.attach import home_of
from moryflow.attach.quick_run import SETTINGS
from moryflow.attach.turn import AttachedTurn, SessionFollower, TurnOrder, open_session, quoted
from moryflow.attach.wire import NoServer, RunningServer, ServerRefusal, find
from moryflow.runtime.turn_result import TurnResult

from .options import Flags, RunFlags

T = TypeVar("T")


def error_of(refused: ServerRefusal) -> MoryflowError:
    """Return the server's refusal as the error that this process would have raised."""
    details = {"where": refused.where, "next_step": refused.next_step}
    if refused.code in get_args(ModelErrorCode) and refused.status == 503:
        return ModelError(refused.message, code=refused.code, **details)  # type: ignore[arg-type]
    kind = {"config": ConfigError, "plugin": PluginError}.get(refused.code, MoryflowError)
    error = kind(refused.message, **details)
    error.code = refused.code
    return error


def server_for(flags: Flags, url: str | None) -> RunningServer | None:
    """Return the server that the flag or the user's file asks for; ``None`` if the turn has to run in this process.

    :param url: the value of ``--attach``; empty: the server of this home. ``None``: only the user's file asks for a server.
    :raises MoryflowError: there is no such server, or ``--attach`` is used inside a tool or with settings of this process.
    """
    named = [name for name, value in flags._asdict().items() if value and name in ("config", "safe_mode", "strict", "profile")]
    own = [*(f"--{name.replace('_', '-')}" for name in named), *(name for name in SETTINGS if name in os.environ)]
    if url is None and (own or inside_tool()):
        return None
    if inside_tool():
        message = "a tool started this command, and the server would not apply the tool's limits"
        raise ConfigError(message, where=CALL_MARK, next_step="leave out --attach")
    if own:
        message = f"{own[0]} configures this process, but the turn would run in the server"
        raise ConfigError(message, next_step="leave it out, start the server with it, or leave out --attach")
    try:
        return find(home_of(os.environ), url or "")
    except NoServer as error:
        if url is None:
            return None
        raise error_of(error) from error
    except ServerRefusal as error:
        raise error_of(error) from error


def turn_order(flags: Flags, chosen: RunFlags, on_ask: str) -> TurnOrder:
    """Return the order for a turn, still without a prompt: the flags, and the folder of this process."""
    model = chosen.model
    if model is None and chosen.agent is None and chosen.resume is None:
        model = os.environ.get("MORYFLOW_MODEL", "").strip() or None
    return TurnOrder(
        folder=os.path.realpath(flags.vault or "."), resume=chosen.resume, agent=chosen.agent, model=model, mode=chosen.mode,
        on_ask=on_ask, max_steps=chosen.max_steps, max_cost=chosen.max_cost, wait=chosen.wait, effort=chosen.effort,
    )  # fmt: skip


def event_of(document: Mapping[str, Any]) -> Event:
    """Return the event that the server sent as `document`."""
    names = ("v", "type", "seq", "ts", "session", "parent", "agent", "turn", "step")
    head: dict[str, Any] = {name: document[name] for name in names if name in document}
    return Event(**head, data={name: value for name, value in document.items() if name not in names})


async def session_of(server: RunningServer, order: TurnOrder) -> dict[str, Any]:
    """Begin a session in the server, or find the one to continue; return its row.

    :raises MoryflowError: the server refuses, or does not answer.
    """
    return await _from_server(lambda: open_session(server, order))


async def _from_server(ask: Callable[[], T]) -> T:
    try:
        return await asyncio.wrap_future(on_daemon_thread(ask, "moryflow-ask"))
    except ServerRefusal as error:
        raise error_of(error) from error
    except OSError as error:
        raise MoryflowError(f"the server does not answer: {error.strerror or error}", next_step="moryflow serve") from error


class AttachedSession:
    """One session of a server, as a terminal needs it: turns with their events, and answers to their questions.

    :ivar server: the server, at the address where it was last found.
    :ivar row: the session's row, as the server has stored it.
    :ivar place: the sequence number of the last event that the subscribers got.
    """

    def __init__(self, server: RunningServer, row: dict[str, Any]) -> None:
        self.server, self.row, self.id = server, row, str(row["id"])
        self.subscribers: list[Callable[[Event], None]] = []
        self.turn: AttachedTurn | None = None
        self.place: int | None = None
        self._hashes: dict[str, str] = {}

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request about this session, or, if `path` begins with a slash, about anything else; return the answer.

        :raises MoryflowError: the server refuses, or does not answer.
        """
        below = f"/{path}" if path and not path.startswith("?") else path
        whole = path if path.startswith("/") else f"/sessions/{self.id}{below}"
        return await _from_server(lambda: self._ask_server(lambda server: server.ask(method, whole, body)))

    async def read(self, path: str) -> bytes:
        """Return the bytes at a path of the server, for what is not a JSON document.

        :raises MoryflowError: the server refuses, or does not answer.
        """
        return await _from_server(lambda: self._ask_server(lambda server: server.read(path)))

    def _ask_server(self, ask: Callable[[RunningServer], T]) -> T:
        """Call `ask` with the server; if it is gone, call `ask` with one that was started since at another address."""
        try:
            return ask(self.server)
        except (ConnectionRefusedError, FileNotFoundError) as away:  # nothing was sent
            try:
                self.server = find(self.server.home)
            except NoServer:
                raise away from None
            return ask(self.server)

    async def run(self, order: TurnOrder) -> TurnResult:
        """Run one turn, pass its events to the subscribers, and return the result.

        :raises MoryflowError: the server refuses the turn.
        """
        self.turn = turn = AttachedTurn(self.server, self.id, order, self.place)
        try:
            async for document in _read(turn):
                self.place = document.get("seq", self.place)
                self._tell(document)
        except ServerRefusal as error:
            raise error_of(error) from error
        finally:
            self.turn, self.server = None, turn.server
        if turn.missed and sys.stdout.isatty() and turn.result["text"]:
            sys.stderr.write("\nmoryflow: the connection to the server broke meanwhile; this is the whole answer:\n")
            sys.stdout.write(f"{turn.result['text']}\n")
        return TurnResult.of_json(turn.result)

    def _tell(self, document: Mapping[str, Any]) -> None:
        event = event_of(document)
        if event.type == "permission.asked":
            self._hashes[str(event.data["approval_id"])] = str(event.data["hash"])
        for subscriber in self.subscribers:
            subscriber(event)

    def follow(self) -> Callable[[], None]:
        """Pass the events between turns to the subscribers too, until the returned function is called."""
        loop = asyncio.get_running_loop()

        def tell(document: dict[str, Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._pass_on, document)

        follower = SessionFollower(self.server, self.id, tell)
        threading.Thread(target=follower.run, name="moryflow-follower", daemon=True).start()
        return follower.close

    def _pass_on(self, document: Mapping[str, Any]) -> None:
        """Pass on an event that came outside a turn, for example from a background sub-agent, or a question.

        The events of a turn of ours come with the turn, in :meth:`run`.
        """
        kind, number = str(document["type"]), document.get("seq")
        if kind in ("open", "reset"):
            self.place = number if self.place is None or kind == "reset" else self.place
        elif not document["session"]:
            self._tell(document)
        elif self.turn is None and number is not None and number > (self.place or 0):
            self.place = number
            if document["session"] != self.id or kind.startswith("permission.") or kind in _BETWEEN or kind.endswith(".notice"):
                self._tell(document)

    def cancel(self) -> None:
        if self.turn is not None:
            on_daemon_thread(self.turn.stop, "moryflow-ask")

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> Any:
        """Answer a question of the turn.

        :raises MoryflowError: the question is no longer open, or is about another call now.
        """
        about = self._hashes.get(approval_id)
        if about is None:
            about = (await self.ask("GET", f"/approvals/{quoted(approval_id)}"))["request"].get("hash")
        return await self.ask("POST", f"/approvals/{quoted(approval_id)}", {"reply": reply, "message": message, "hash": about})

    async def nobody_left(self) -> None:
        await self.ask("POST", "nobody-left", {})


_BETWEEN = ("task.finish", "session.mode", "session.agent", "session.model")
"""The types of the session's own events that are passed on between two turns."""


async def _read(turn: AttachedTurn) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a turn; a thread waits for them."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()

    def read() -> None:
        last: BaseException | None = None
        try:
            for document in turn.events():
                loop.call_soon_threadsafe(queue.put_nowait, document)
        except BaseException as error:
            last = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, last)

    threading.Thread(target=read, name="moryflow-attached", daemon=True).start()
    while (found := await queue.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        yield found
