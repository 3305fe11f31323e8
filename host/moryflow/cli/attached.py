"""Turns in a running server, shown and asked about as those of this process are (:mod:`moryflow.attach`)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, get_args

from moryflow_sdk import ConfigError, Event, ModelError, MoryflowError, PluginError
from moryflow_sdk.errors import ModelErrorCode
from moryflow_sdk.support.processes import CALL_MARK, inside_tool

from moryflow.attach.quick import SETTINGS, is_set
from moryflow.attach.turn import AttachedTurn, TurnOrder, opened
from moryflow.attach.wire import NoServer, RunningServer, ServerRefusal, find, home_of
from moryflow.runtime.turn_result import TurnResult

from .options import Flags, RunFlags


def error_of(refused: ServerRefusal) -> MoryflowError:
    """Return what the server said as the error that this process would have raised."""
    said = {"where": refused.where, "next_step": refused.next_step}
    if refused.code in get_args(ModelErrorCode) and refused.status == 503:
        return ModelError(refused.message, code=refused.code, **said)  # type: ignore[arg-type]
    kind = {"config": ConfigError, "plugin": PluginError}.get(refused.code, MoryflowError)
    error = kind(refused.message, **said)
    error.code = refused.code
    return error


def server_for(flags: Flags, url: str | None) -> RunningServer | None:
    """Return the server that was asked for, by the flag or by the user's file; nothing where the turn runs in process.

    :param url: what ``--attach`` says; empty: the server of this home.
    :raises MoryflowError: there is no such server, or what is asked for is not its to give.
    """
    home = home_of(os.environ)
    if url is None and not is_set(f"{home}/config.jsonc"):
        return None
    named = [name for name, value in flags._asdict().items() if value and name in ("config", "safe_mode", "strict", "profile")]
    own = [*(f"--{name.replace('_', '-')}" for name in named), *(name for name in SETTINGS if name in os.environ)]
    if url is None and (own or inside_tool()):
        return None
    if inside_tool():
        said = "this was started by a tool, and a turn of the server would not know that"
        raise ConfigError(said, where=CALL_MARK, next_step="leave out --attach")
    if own:
        said = f"{own[0]} configures the process that runs turns, and the server has its own"
        raise ConfigError(said, next_step="leave it out, start the server with it, or leave out --attach")
    try:
        return find(home, url or "")
    except NoServer as error:
        if url is None:
            return None
        raise error_of(error) from error
    except ServerRefusal as error:
        raise error_of(error) from error


def wanted_of(flags: Flags, chosen: RunFlags, on_ask: str, **more: Any) -> TurnOrder:
    """Return what is asked of the server: the flags, and the folder of this process."""
    model = chosen.model
    if model is None and chosen.agent is None and chosen.resume is None:
        model = os.environ.get("MORYFLOW_MODEL", "").strip() or None
    return TurnOrder(
        folder=os.path.realpath(flags.vault or "."), resume=chosen.resume, agent=chosen.agent, model=model, mode=chosen.mode,
        on_ask=on_ask, max_steps=chosen.max_steps, max_cost=chosen.max_cost, wait=chosen.wait, **more,
    )  # fmt: skip


def event_of(document: Mapping[str, Any]) -> Event:
    """Return an event as the server sent it."""
    names = ("v", "type", "seq", "ts", "session", "parent", "agent", "turn", "step")
    head: dict[str, Any] = {name: document[name] for name in names if name in document}
    return Event(**head, data={name: value for name, value in document.items() if name not in names})


async def session_of(server: RunningServer, wanted: TurnOrder) -> dict[str, Any]:
    """Begin a session in the server, or find the one to go on with.

    :raises MoryflowError: the server says no.
    """
    return await _from_server(lambda: opened(server, wanted))


async def _from_server(ask: Callable[[], Any]) -> Any:
    try:
        return await asyncio.to_thread(ask)
    except ServerRefusal as error:
        raise error_of(error) from error
    except OSError as error:
        raise MoryflowError(f"the server is away: {error.strerror or error}", next_step="moryflow serve") from error


class AttachedSession:
    """One session of a server, as a terminal needs it: turns with their events, and answers to their questions.

    :ivar row: of the session, as the server has stored it.
    """

    def __init__(self, server: RunningServer, row: dict[str, Any]) -> None:
        self.server, self.row, self.id = server, row, str(row["id"])
        self.subscribers: list[Callable[[Event], None]] = []
        self.turn: AttachedTurn | None = None
        self._hashes: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask for something of this session, or, with a path from the root, of the server.

        :raises MoryflowError: the server says no.
        """
        whole = path if path.startswith("/") else f"/sessions/{self.id}/{path}".rstrip("/")
        return await _from_server(lambda: self.server.ask(method, whole, body))

    async def run(self, wanted: TurnOrder) -> TurnResult:
        """Run one turn, tell the subscribers of its events, and return the result.

        :raises MoryflowError: the server says no.
        """
        self.turn = turn = AttachedTurn(self.server, self.id, wanted)
        try:
            async for document in _read(turn):
                event = event_of(document)
                if event.type == "permission.asked":
                    self._hashes[str(event.data["approval_id"])] = str(event.data["hash"])
                for subscriber in self.subscribers:
                    subscriber(event)
        except ServerRefusal as error:
            raise error_of(error) from error
        finally:
            self.turn = None
        if turn.broken and sys.stdout.isatty() and turn.result["text"]:
            sys.stderr.write("\nmoryflow: the connection to the server broke meanwhile; this is the whole answer:\n")
            sys.stdout.write(f"{turn.result['text']}\n")
        return TurnResult.of_json(turn.result)

    def cancel(self) -> None:
        """Stop the turn that runs."""
        if self.turn is not None:
            self._tasks.add(task := asyncio.create_task(asyncio.to_thread(self.turn.stop)))
            task.add_done_callback(self._tasks.discard)

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> object:
        """Answer a question of the turn.

        :raises MoryflowError: it is no longer open, or is about another call by now.
        """
        body = {"reply": reply, "message": message, "hash": self._hashes.get(approval_id)}
        return await self.ask("POST", f"/approvals/{approval_id}", body)

    async def nobody_left(self) -> None:
        """Let the questions of the turn be denials from here on."""
        await self.ask("POST", "nobody-left", {})


async def _read(turn: AttachedTurn) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a turn, which a thread waits for."""
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
