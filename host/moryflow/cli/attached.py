"""Turns that run in a server (``--attach``), shown and asked about at the terminal like turns of this process."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, get_args

from moryflow_sdk import ConfigError, Event, ModelError, MoryflowError, PluginError
from moryflow_sdk.client import PAUSES, Client, ClientError, connect
from moryflow_sdk.errors import ModelErrorCode
from moryflow_sdk.events import OTHER_NAMES
from moryflow_sdk.support.processes import CALL_MARK, inside_tool

from moryflow import __version__
from moryflow.base.paths import is_workspace
from moryflow.runtime.turn_result import TurnResult

from .options import Flags, RunFlags

# Variables that configure the process that runs turns; a server has its own.
SETTINGS = (
    "MORYFLOW_CONFIG", "MORYFLOW_PLUGINS", "MORYFLOW_SAFE_MODE", "MORYFLOW_STRICT", "MORYFLOW_TRACE", "MEMORY_BANK_GUARD_MODE",
)  # fmt: skip
LOCAL = ("http://127.0.0.1", "http://localhost", "http://[::1]", "unix:")


def check_attach(flags: Flags, url: str, *, worktree: bool = False) -> None:
    """Refuse ``--attach`` inside a tool, with settings of this process, with ``--worktree``, or to another machine.

    :param url: the value of ``--attach``; empty: the server of this home.
    :raises ConfigError: it is refused.
    """
    named = [name for name, value in flags._asdict().items() if value and name in ("config", "safe_mode", "strict", "profile")]
    own = ["--worktree"] if worktree else []
    own += [*(f"--{name.replace('_', '-')}" for name in named), *(name for name in SETTINGS if name in os.environ)]
    if inside_tool():
        message = "a tool started this command, and the server would not apply the tool's limits"
        raise ConfigError(message, where=CALL_MARK, next_step="leave out --attach")
    if own:
        message = f"{own[0]} configures this process, but the turn would run in the server"
        raise ConfigError(message, next_step="leave it out, start the server with it, or leave out --attach")
    if url and not url.startswith(LOCAL):
        message = "only a server of this machine can be attached to: the turn works in a folder of yours, with your environment"
        raise ConfigError(message, where=url, next_step="http://127.0.0.1:PORT, unix:PATH, or --attach alone")


class AttachedServer:
    """A running server: the operations of :class:`Client`, whose refusals are raised as this process would have raised them."""

    def __init__(self, client: Client, about: Mapping[str, Any], url: str) -> None:
        self._client, self.url, self.home = client, url, str(about["home"])
        self.language, self.traces = str(about.get("language") or "en"), bool(about.get("trace"))
        self.follow = client.follow

    @classmethod
    async def found(cls, url: str) -> AttachedServer:
        """Return the server at `url`, or the one of this home if `url` is empty.

        :raises MoryflowError: no server answers, or it has another version or home.
        """
        client = await _asked(connect(url or None))
        about = await _asked(client.health())
        home = os.path.abspath(os.path.expanduser(os.environ.get("MORYFLOW_HOME") or "~/.moryflow"))  # noqa: PTH100, PTH111
        if about.get("version") != __version__:
            message = f"the server is version {about.get('version')}, and this is {__version__}"
            raise ConfigError(message, where=url, next_step="stop the server and start it again: moryflow serve")
        if os.path.realpath(about["home"]) != os.path.realpath(home):
            message = f"the server belongs to another home, {about['home']}"
            raise ConfigError(message, where=url, next_step="moryflow serve, or set MORYFLOW_HOME")
        return cls(client, about, client.url)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        operation = getattr(self._client, name)
        return lambda *given, **named: _asked(operation(*given, **named))


async def _asked(answer: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await answer
    except ClientError as error:
        raise _error_of(error) from error
    except OSError as error:
        raise MoryflowError(f"the server does not answer: {error.strerror or error}", next_step="moryflow serve") from error


def _error_of(refused: ClientError) -> MoryflowError:
    details = {"where": refused.where, "next_step": refused.next_step}
    if refused.status == 401:
        message = "the server does not accept the token of this home: it is the server of another home"
        return ConfigError(message, next_step="moryflow serve, or set MORYFLOW_HOME")
    if refused.code in get_args(ModelErrorCode) and refused.status == 503:
        return ModelError(refused.message, code=refused.code, **details)  # type: ignore[arg-type]
    kind = {"config": ConfigError, "plugin": PluginError}.get(refused.code, MoryflowError)
    error = kind(refused.message, **details)
    error.code = refused.code
    return error


async def session_of(server: AttachedServer, flags: Flags, chosen: RunFlags) -> dict[str, Any]:
    """Begin a session in the server, or find the one to continue, and set its agent, model and mode; return its row.

    :raises MoryflowError: the server refuses, or there is no such session.
    """
    folder, model = str(flags.vault) if is_workspace(flags.vault) else os.path.realpath(flags.vault or "."), chosen.model
    if model is None and chosen.agent is None and chosen.resume is None:
        model = os.environ.get("MORYFLOW_MODEL", "").strip() or None
    wanted = {"agent": chosen.agent, "model": model, "mode": chosen.mode}
    changes: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if chosen.mode == "full_access":
        changes["confirm"] = True
    if chosen.resume is None:
        return await server.new_session(vault=folder, **changes)
    rows = [await server.session(chosen.resume, limit=1)] if chosen.resume else await server.sessions(vault=folder, limit=1)
    if not rows:
        raise ConfigError(f"no session of {folder} to continue", next_step="moryflow session list")
    if changes.get("mode") == rows[0]["mode"]:
        del changes["mode"]
    return await server.change_session(rows[0]["id"], **changes) if changes else rows[0]


def turn_body(chosen: RunFlags, on_ask: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a prompt that the flags of ``run`` set. Moryflow's own variables are not sent."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MORYFLOW_")}
    sent = {name: value for name, value in environment.items() if _is_text(name + value)}
    limits = {"max_steps": chosen.max_steps, "max_cost": chosen.max_cost, "effort": chosen.effort}
    return {"on_ask": on_ask, "environment": sent, **limits, **more}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# The types of the session's own events that are passed on between two turns.
BETWEEN = ("task.finish", "session.mode", "session.agent", "session.model")


class AttachedSession:
    """One session of a server, as a terminal needs it: turns with their events, and answers to their questions.

    One stream brings all events of the session, its sub-agents and the server. A broken stream is begun again where it broke.

    :ivar row: the session's row, as the server has stored it.
    :ivar turn: the id of the turn that runs; empty while its prompt is sent, ``None`` between turns.
    """

    def __init__(self, server: AttachedServer, row: dict[str, Any]) -> None:
        self.server, self.row, self.id = server, row, str(row["id"])
        self.subscribers: list[Callable[[Event], None]] = []
        self.turn: str | None = None
        self._hashes: dict[str, str] = {}
        self._result: asyncio.Future[TurnResult] | None = None
        self._stopped = False
        self._held: list[Event] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._ended: Event | None = None

    def follow(self) -> Callable[[], None]:
        """Pass the events to the subscribers until the returned function is called."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        return self.close

    def close(self) -> None:
        for task in (self._following, *self._tasks):
            if task is not None:
                task.cancel()

    async def _follow(self) -> None:
        place: int | None = None
        while True:
            try:
                async for event in self.server.follow(place, sessions=[self.id, ""], tries=len(PAUSES)):
                    place = place if event.seq is None else event.seq
                    self._take(event)
            except ClientError as error:
                self._end(_error_of(error))
            except OSError:
                self._end(None)
            await asyncio.sleep(PAUSES[-1])

    def _take(self, event: Event) -> None:
        if event.type in ("open", "reset"):
            if self._open.is_set() and self.turn:  # the result may have come while the stream was broken
                self._in_background(self._fetch_result(self.turn))
            self._open.set()
        elif event.type in OTHER_NAMES:
            return
        elif self.turn == "":
            self._held.append(event)
        elif event.type in ("result", "turn.failed"):
            if event.turn == self.turn:
                self._end(_outcome_of(event))
        elif self.turn is not None or event.session != self.id or _comes_between(event):
            if event.type == "permission.asked":
                self._hashes[str(event.data["approval_id"])] = str(event.data["hash"])
            if event.session == self.id and event.type == "turn.finish":
                self._ended = event
            for subscriber in self.subscribers:
                subscriber(event)

    def _end(self, outcome: TurnResult | MoryflowError | None) -> None:
        if self._result is None or self._result.done():
            return
        if isinstance(outcome, MoryflowError):
            self._result.set_exception(outcome)
        else:
            self._result.set_result(outcome or self._interrupted())

    def _interrupted(self) -> TurnResult:
        ended = self._ended.data if self._ended else {}
        return _result(self.id, ended.get("end_reason") or "interrupted", "", ended)

    async def _fetch_result(self, turn: str) -> None:
        """Ask for the result, which a server that was started meanwhile has at once."""
        with suppress(MoryflowError):
            found = TurnResult.of_json(await self.server.turn_result(self.id, turn))
            await asyncio.sleep(PAUSES[0])  # for the events that came before it
            self._end(found)

    async def run(self, text: str | None, body: Mapping[str, Any]) -> TurnResult:
        """Run one turn, pass its events to the subscribers, and return the result.

        :param text: the prompt; ``None`` continues what an earlier turn left open.
        :raises MoryflowError: the server refuses the turn, or the turn failed.
        """
        self._result = asyncio.get_running_loop().create_future()
        self._stopped, self._ended = False, None
        self.follow()
        self.turn = ""
        try:
            begun = await self._begin(text, body)
            if begun["turn"] is None:  # the text was a slash command
                return _result(self.id, "completed", begun["text"], {})
            self.turn = str(begun["turn"])
            held, self._held = self._held, []
            for event in held:
                if event.session != self.id or event.turn in ("", None, self.turn):
                    self._take(event)
            if self._stopped:
                self.cancel()
            return await self._result
        finally:
            self.turn, self._held = None, []

    async def _begin(self, text: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send the prompt; wait for a server that is away, which takes the prompt only once."""
        assert self._result is not None
        key, tries = secrets.token_hex(12), 0
        opened = asyncio.ensure_future(self._open.wait())
        await asyncio.wait((opened, self._result), return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if self._result.done():  # there is no stream
            await self._result
            message = "the server went away and did not say that it has the prompt"
            raise MoryflowError(message, where=self.server.url, next_step="moryflow serve, or leave out --attach")
        while True:
            try:
                if text is None:
                    return await self.server.resume(self.id, **body)
                return await self.server.prompt(self.id, text, key=key, **body)
            except MoryflowError as error:
                if self._stopped or not isinstance(error.__cause__, OSError) or tries == len(PAUSES):
                    raise
                tries += 1
            await asyncio.sleep(PAUSES[tries - 1])

    def cancel(self) -> None:
        """Stop the turn and its sub-agents; what they have so far is kept. A server that does not answer is not waited for."""
        self._stopped = True
        if self.turn:  # while the prompt waits, the turn that runs is somebody else's
            self._in_background(self._cancel())

    async def _cancel(self) -> None:
        try:
            await self.server.cancel(self.id)
        except MoryflowError:
            self._end(None)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> Any:
        """Answer a question of the turn.

        :raises MoryflowError: the question is no longer open, or is about another call now.
        """
        about = self._hashes.get(approval_id) or (await self.server.approval(approval_id))["request"].get("hash")
        return await self.server.reply(approval_id, reply=reply, message=message, hash=about)

    async def nobody_left(self) -> None:
        await self.server.nobody_left(self.id)


def _comes_between(event: Event) -> bool:
    return event.type in BETWEEN or event.type.startswith("permission.") or event.type.endswith(".notice")


def _outcome_of(event: Event) -> TurnResult | MoryflowError:
    if event.type == "turn.failed":
        return _error_of(ClientError(500, event.data))
    return TurnResult.of_json({"session": event.session, **event.data})


def _result(session: str, reason: Any, text: str, ended: Mapping[str, Any]) -> TurnResult:
    """Return a result that the server did not send: of a command, or as far as the events of a turn tell."""
    from moryflow_sdk import Usage

    return TurnResult(session, reason, text, Usage(), ended.get("cost"), ended.get("steps") or 0)
