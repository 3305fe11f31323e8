"""A session that an editor has open: its prompts, its settings, and the updates sent to the editor."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from moryflow_sdk import ConfigError, Event, MoryflowError, SlashResult
from moryflow_sdk.support.texts import visible

from moryflow.kernel.outcome import RunOptions
from moryflow.runtime.slash_lines import COMMON, known_commands, run_line, slash_line
from moryflow.runtime.subagents import whole_answer

from .connection import INVALID_PARAMS, INVALID_REQUEST, EditorConnection, RpcError
from .permissions import PermissionAsker, full_access_confirmed
from .updates import Update, UpdateMapper, chunk

if TYPE_CHECKING:
    from moryflow_sdk import ModelInfo

    from moryflow.runtime.host import Host
    from moryflow.runtime.session import Session
    from moryflow.runtime.turn_result import TurnResult
    from moryflow.store import SessionRow

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MODES = {
    "agent": ("Agent", "Asks before what your rules do not allow"),
    "full_access": ("Full access", "Asks for nothing; what your rules deny stays denied"),
}
CONTINUE = "continue"
OWN_COMMANDS = {**COMMON, CONTINUE: ("go on with what an interrupted turn left", "")}
_STOPS = {
    "stopped": "cancelled", "interrupted": "cancelled", "max_steps": "max_turn_requests", "budget": "max_turn_requests",
    "doom_loop": "max_turn_requests", "prompt_too_long": "max_tokens",
}  # fmt: skip
_FINISHES = {"length": "max_tokens", "refusal": "refusal", "content_filter": "refusal"}
_FAILED = frozenset({"model_error", "host_error", "plugin_failed"})
_NEXT = {"max_steps": "/continue goes on", "budget": "raise limits.maxCost", "prompt_too_long": "/compact, or a new session"}


class EditorSession:
    """One session of one editor.

    :param models: returns the models that can be chosen, as far as they are known so far.
    :param notices: whether the editor can show notices apart from the answer.
    """

    def __init__(
        self,
        connection: EditorConnection,
        host: Host,
        session: Session,
        models: Callable[[], tuple[ModelInfo, ...]],
        notices: bool,
    ) -> None:
        self._connection, self._host, self._session, self._models = connection, host, session, models
        self._takes_notices = notices
        self.vault = Path(session.row.vault)
        self._mapper = UpdateMapper(session, self.tell, self._domain)
        self._asker = PermissionAsker(connection, host.approvals, session.id, self.vault, self._domain)
        self._work: asyncio.Task[Any] | None = None
        self._stopped = False
        self._title = session.row.title
        self._cost: float | None = None
        self._notices: list[str] = []
        self._unsubscribe = session.subscribe(self._on_event)

    def _domain(self, tool: str) -> str:
        owned = self._host.tools.get(tool)
        return owned.tool.domain if owned is not None else ""

    @property
    def row(self) -> SessionRow:
        return self._session.row

    def tell(self, update: Update) -> None:
        self._connection.notify("session/update", {"sessionId": self._session.id, "update": update})

    def _on_event(self, event: Event) -> None:
        self._mapper(event)
        self._asker(event)
        if event.session != self._session.id:
            return
        match event.type:
            case "step.finish":
                self._tell_usage(event.data)
            case "session.mode":
                self.tell({"sessionUpdate": "current_mode_update", "currentModeId": event.data["to"]})
                self.tell_options()
            case "session.agent" | "session.model":
                self.tell_options()
            case "session.notice" | "store.notice":
                self.notice(str(event.data["text"]))
            case _:
                pass

    def notice(self, text: str) -> None:
        """Show a text that is not part of an answer. Without notices in the editor, it waits until a turn runs."""
        if self._takes_notices:
            self.tell({"sessionUpdate": "notice", "severity": "info", "title": text})
        elif self._work is not None:
            self.tell(chunk("agent_message", f"\n\n*{text}*\n\n"))
        else:
            self._notices.append(text)

    # ---------------------------------------------------------------- prompts

    @property
    def working(self) -> bool:
        return self._work is not None

    async def prompt(self, prompt: EditorPrompt) -> dict[str, Any]:
        """Run a turn and return how it ended.

        :raises RpcError: the session is working on another prompt.
        """
        if self._work is not None:
            raise RpcError(
                INVALID_REQUEST, "the session is working on another prompt", "wait until it ends, or cancel it", code="busy"
            )
        self._work, self._stopped = asyncio.current_task(), False
        try:
            while self._notices:
                self.notice(self._notices.pop(0))
            return {"stopReason": await self._turn(prompt)}
        finally:
            self._work = None
            row = self._session.row
            if row.title != self._title:
                self._title = row.title
                self.tell({"sessionUpdate": "session_info_update", "title": row.title, "updatedAt": row.updated})

    async def _turn(self, prompt: EditorPrompt) -> str:
        options = RunOptions(on_ask="prompt")
        if (slash := slash_line(prompt.text, {*known_commands(self._host), *OWN_COMMANDS})) is not None:
            said = await self._command(*slash)
            prompt = prompt._replace(text=said.prompt if said else "", typed=0 if said and said.foreign else None)
            if said is not None and not said.prompt:
                return "cancelled" if self._stopped else "end_turn"
        if self._stopped:
            return "cancelled"
        if slash is not None and slash[0] == CONTINUE:
            result = await self._session.resume(options)
        else:
            result = await self._session.prompt(**prompt._asdict(), options=options)
        return self._stop_reason(await whole_answer(self._session, result, options, None))

    def _stop_reason(self, result: TurnResult) -> str:
        """Return the protocol's stop reason for `result`; details that it cannot express go into a notice."""
        if result.end_reason in _FAILED and result.error is not None:
            raise result.error
        error = result.error
        if error is not None and result.end_reason != "stopped":
            self.notice(str(error))
        elif result.end_reason not in ("completed", "stopped", "interrupted"):
            step = _NEXT.get(result.end_reason, "")
            self.notice(f"{result.ending}{f'. Next: {step}' if step else ''}")
        elif result.shortfall is not None:
            self.notice(f"{result.shortfall.sentence}. Next: {result.shortfall.next_step}")
        return _STOPS.get(result.end_reason) or _FINISHES.get(result.finish, "end_turn")

    async def _command(self, name: str, rest: str) -> SlashResult | None:
        """Run a slash command and return its result; ``None`` for ``/continue``, which the caller runs as a turn."""
        if name == CONTINUE:
            return None
        confirmed = partial(full_access_confirmed, self._connection, self._session.id)
        result = await run_line(self._host, self._session, (name, rest), confirmed, OWN_COMMANDS)
        if name in COMMON:
            self.tell_options()
        if result.text:
            self.tell(chunk("agent_message", result.text))
        return result

    def cancel(self) -> None:
        """Stop the turn that runs or is about to begin; what it has so far is kept."""
        if self._work is not None:
            self._stopped = True
            self._session.cancel()

    def break_off(self) -> None:
        """Interrupt the turn because the editor has disconnected; the turn can be continued later."""
        self._asker.withdraw()
        if self._work is not None:
            self._work.cancel()

    async def close(self) -> None:
        """Stop the running turn and drop the session."""
        self.cancel()
        work = self._work
        if work is not None and work is not asyncio.current_task():
            await asyncio.wait((work,))
        self._asker.withdraw()
        self._unsubscribe()
        with suppress(MoryflowError):
            await self._session.settle()
        if not self._session.children.running:
            self._host.forget(self._session)

    # ---------------------------------------------------------------- settings

    def state(self) -> dict[str, Any]:
        """Return modes and options, as the response to ``session/new`` contains them."""
        modes = [{"id": mode, "name": name, "description": text} for mode, (name, text) in MODES.items()]
        return {"modes": {"currentModeId": self._session.mode, "availableModes": modes}, "configOptions": self.options()}

    def options(self) -> list[dict[str, Any]]:
        """Return the options of the session with their values: mode, model, agent."""
        models = {info.id: info.note or info.provider for info in self._models()}
        with suppress(ConfigError):
            models = {self._model.id: "", **models}
        agents = {one.id: one.description for one in self._host.agents.values() if not one.hidden and one.mode != "subagent"}
        modes = {mode: name for mode, (name, _) in MODES.items()}
        return [
            _select("mode", "Mode", self._session.mode, modes, "mode"),
            *([_select("model", "Model", next(iter(models)), models, "model", named=False)] if models else []),
            _select("agent", "Agent", self._session.agent.id, agents, "_agent", named=False),
        ]

    @property
    def _model(self) -> ModelInfo:
        return self._host.choose_model(self._session)[1]

    async def choose(self, option: str, value: Any) -> None:
        """Choose a value of an option.

        :raises RpcError: there is no such option, or it has no such value.
        """
        if not isinstance(value, str):
            raise RpcError(INVALID_PARAMS, "the value of an option is a text here")
        match option:
            case "mode":
                await self.set_mode(value)
            case "model":
                await self._session.set_model(value)
            case "agent":
                await self._session.set_agent(value)
            case _:
                raise RpcError(INVALID_PARAMS, f"there is no option {option[:100]!r}", "one of mode, model, agent")

    async def set_mode(self, mode: str) -> None:
        """Change the mode; the user at the editor has to confirm full access.

        :raises RpcError: there is no such mode, or the user did not confirm.
        """
        if mode not in MODES:
            raise RpcError(INVALID_PARAMS, f"there is no mode {mode[:100]!r}", f"one of {', '.join(MODES)}")
        needed = mode == "full_access" and self._session.mode != mode
        if needed and not await full_access_confirmed(self._connection, self._session.id):
            raise RpcError(INVALID_REQUEST, "full_access was not confirmed", code="confirm_required")
        await self._session.set_mode(mode)

    # ---------------------------------------------------------------- updates

    def tell_options(self) -> None:
        self.tell({"sessionUpdate": "config_option_update", "configOptions": self.options()})

    def tell_commands(self) -> None:
        found = [
            {"name": name, "description": text, **({"input": {"hint": hint}} if hint else {})}
            for name, (text, hint) in self._commands().items()
        ]
        self.tell({"sessionUpdate": "available_commands_update", "availableCommands": found})

    def _commands(self) -> Mapping[str, tuple[str, str]]:
        plugins = self._host.plugin_set.commands.values()
        return {**{one.name: (one.help, "text") for one in plugins if one.slash is not None}, **OWN_COMMANDS}

    async def replay(self) -> None:
        for update in self._mapper.replay(await self._host.store.path(self._session.id)):
            self.tell(update)
            await self._connection.drain()

    def _tell_usage(self, data: Mapping[str, Any]) -> None:
        cost = data.get("cost")
        if cost is not None:
            self._cost = (self._cost or 0.0) + float(cost)
        with suppress(ConfigError):
            window = self._model.context_window
            if window:
                used = int(data["usage"]["input"]) + int(data["usage"]["output"])
                spent = {} if self._cost is None else {"cost": {"amount": self._cost, "currency": "USD"}}
                self.tell({"sessionUpdate": "usage_update", "used": used, "size": window, **spent})

    async def count_cost(self) -> None:
        """Start the count with the cost of the session's earlier turns."""
        known = [run.cost for run in await self._host.store.runs(self._session.id) if run.cost is not None]
        self._cost = sum(known) if known else None


def _select(
    id: str, name: str, current: str, values: Mapping[str, str], category: str, *, named: bool = True
) -> dict[str, Any]:
    """Return an option. `values` maps a value to its name or, unless `named`, to its description."""
    options = [
        {"value": value, "name": text if named else value, **({"description": text} if text and not named else {})}
        for value, text in values.items()
    ]
    return {"id": id, "name": name, "category": category, "type": "select", "currentValue": current, "options": options}


class EditorPrompt(NamedTuple):
    """A prompt, as :meth:`moryflow.runtime.session.Session.prompt` takes it."""

    text: str
    typed: int | None
    files: list[dict[str, str]]
    images: list[dict[str, str]]


def prompt_of(blocks: Any, vault: Path) -> EditorPrompt:
    """Return the prompt that the content blocks contain.

    A file that the text refers to is listed below the text under a number, so that its name is not taken for typed text.

    :raises RpcError: a block is of a kind that is not supported.
    """
    if not isinstance(blocks, list) or not blocks:
        raise RpcError(INVALID_PARAMS, "a prompt is a list of one or more blocks")
    made = EditorPrompt("", 0, [], [])
    said: list[str] = []
    named: list[str] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                said.append(text)
            case {"type": "image", "data": str(data), "mimeType": str(kind)}:
                made.images.append(_image(data, kind))
            case {"type": "resource_link", "uri": str(uri)}:
                named.append(_place(uri, vault))
                said.append(f"[{len(named)}]")
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                named.append(f"{_place(uri, vault)} (attached)")
                said.append(f"[{len(named)}]")
                made.files.append({"path": _place(uri, vault), "text": text})
            case {"type": "resource", "resource": {"blob": str(data), "mimeType": str(kind)}}:
                made.images.append(_image(data, kind))
            case _:
                kind = block.get("type") if isinstance(block, dict) else block
                raise RpcError(INVALID_PARAMS, f"this block of a prompt is not understood: {str(kind)[:100]}")
    text = "".join(said)
    below = "".join(f"\n[{number}] {name}" for number, name in enumerate(named, 1))
    return made._replace(text=f"{text}\n{below}" if below else text, typed=len(text))


def _image(data: str, kind: str) -> dict[str, str]:
    if kind not in IMAGES:
        raise RpcError(INVALID_PARAMS, f"{kind[:100]} cannot be attached", f"one of {', '.join(IMAGES)}, or text")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RpcError(INVALID_PARAMS, "the data of an image is not base64") from error
    return {"media_type": kind, "data": data}


def _place(uri: str, vault: Path) -> str:
    """Return the path of a file URI, relative to `vault` if possible, with its line fragment; other URIs stay as they are."""
    try:
        parts = urlsplit(uri)
        path = Path(unquote(parts.path)) if parts.scheme == "file" else None
    except ValueError:
        path, parts = None, None
    if path is None or parts is None:
        found = uri
    else:
        found = str(path.relative_to(vault)) if path.is_relative_to(vault) else str(path)
        found += f"#{parts.fragment}" if parts.fragment else ""
    return visible(found[:2_000]).replace('"', "%22").replace("<", "%3C")
