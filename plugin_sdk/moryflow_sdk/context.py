"""The contexts that hooks and tools receive: of a plugin, of a turn, of a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .verdicts import Ask, Rule

if TYPE_CHECKING:
    from moryflow_sdk.calls import ToolCall

    from .agents import Agent
    from .models import ModelInfo, Purpose
    from .services import (
        Artifacts,
        CodeLoader,
        Complete,
        Emit,
        Files,
        History,
        Rules,
        SessionInfo,
        Spawn,
        Spawned,
        Watch,
    )


class PluginContext(Protocol):
    """The context of ``plugin_start`` and of the contribute hooks.

    :ivar environ: the host's environment variables; look up API keys here.
    :ivar profile: ``local`` or ``remote``.
    :ivar safe_mode: whether only built-in plugins run, and none of the user's own code.
    :ivar name: the plugin's name.
    :ivar home: Moryflow's own folder, ``~/.moryflow``.
    :ivar data_dir: the plugin's own folder, which exists and is kept across updates.
    :ivar config: the plugin's settings, an instance of its ``config_model`` (or a plain mapping).
    :ivar log: the plugin's own logger; the command line shows its warnings on standard error.
    :ivar emit: the service ``emit``; likewise `watch` and `code_loader`.
    """

    name: str
    home: Path
    environ: Mapping[str, str]
    data_dir: Path
    profile: str
    safe_mode: bool
    config: Any
    log: Logger
    emit: Emit
    watch: Watch
    code_loader: CodeLoader

    def invalidate(self) -> None:
        """Ask for a new generation, because this plugin contributes other items now. A turn keeps its own."""
        ...


class Turn(Protocol):
    """The turn in which a hook runs, as one plugin sees it, with the services that the plugin declares (``turn.files``).

    ``data_dir``, ``config`` and ``log`` are the plugin's own, as on :class:`PluginContext`.

    :ivar session: id of the session; `id` is that of the turn, and `step` counts model calls from 1.
    :ivar parent: id of the parent session, if this one is a child; `spawned` says which plugin started this turn.
    :ivar vault: the folder the agent works in, resolved; `home` is Moryflow's own folder.
    :ivar agent: the agent of this turn; `model` is the model it uses, ``None`` when the turn calls none.
    :ivar purpose: what the model calls of this turn are for: ``main``, ``child``, ``direct`` (no model), ``compact``, …
    :ivar profile: ``local``, or ``remote`` for a user who is not at this machine.
    :ivar headless: whether there is nobody to ask.
    :ivar plugin_set: content hash of the generation: the loaded plugins and what they contribute.
    :ivar state: JSON of this plugin for this turn; `session_state` for the session. Both are committed with the
        next node and restored on resume; module globals are not state.
    """

    id: str
    session: str
    parent: str | None
    spawned: Spawned | None
    vault: Path
    home: Path
    agent: Agent
    model: ModelInfo | None
    purpose: Purpose
    profile: str
    step: int
    headless: bool
    plugin_set: str
    data_dir: Path
    config: Any
    log: Logger
    state: dict[str, Any]
    session_state: dict[str, Any]

    @property
    def node(self) -> str:
        """The id of the model message whose tool calls are running or ran last; empty before the first."""
        ...

    @property
    def watched(self) -> tuple[Path, ...]:
        """Files and folders outside :attr:`home` whose code runs as soon as it is saved."""
        ...

    @property
    def mode(self) -> str:
        """``agent`` or ``full_access``: the mode now, not the one when the turn began."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the user has stopped the turn."""
        ...

    @property
    def grants(self) -> tuple[Rule, ...]:
        """Rules that the user granted for this session, in order."""
        ...

    @property
    def files(self) -> Files:
        """The service ``files``: resolve, open, read and change exactly the files that were judged."""
        ...

    @property
    def artifacts(self) -> Artifacts:
        """The service ``artifacts``: outputs too large for the context."""
        ...

    @property
    def history(self) -> History:
        """The service ``history``: read the session's tree, switch its active node."""
        ...

    @property
    def rules(self) -> Rules:
        """The service ``rules``: read the permission rules, add a rule."""
        ...

    @property
    def spawn(self) -> Spawn:
        """The service ``spawn``: start a child session."""
        ...

    @property
    def complete(self) -> Complete:
        """The service ``complete``: ask a model once, without hooks and tools."""
        ...

    @property
    def info(self) -> SessionInfo:
        """The service ``info``: set the session's title, append notes to it."""
        ...

    @property
    def emit(self) -> Emit:
        """The service ``emit``: publish an event."""
        ...


class ToolContext(Turn, Protocol):
    """The turn, with what a running tool needs in addition.

    :ivar call: the call as it was judged; pass its targets to :attr:`Turn.files`.
    :ivar mark: the value of ``MORYFLOW_CALL`` for every program that the tool starts
        (:func:`moryflow_sdk.support.processes.marked_environment`). The next host finds programs that still run by this
        mark, and ends them.
    """

    call: ToolCall
    mark: str

    def progress(self, text: str) -> None:
        """Show ``text`` to the user while the tool runs. Works from any thread; never stored."""
        ...

    def metadata(self, **values: Any) -> None:
        """Add JSON to the result's metadata."""
        ...

    async def ask(self, question: Ask) -> None:
        """Ask the user a question in the middle of a tool.

        :raises Denied: the user refused, or nobody could be asked.
        """
        ...


Settings = TypeVar("Settings")


def config_of(context: PluginContext | Turn, model: type[Settings]) -> Settings:
    """Return the plugin's settings, typed as `model`, its ``config_model``.

    :raises TypeError: the plugin has another ``config_model``, or none.
    """
    if not isinstance(context.config, model):
        raise TypeError(f"the settings are {type(context.config).__name__}, not {model.__name__}: name it config_model")
    return context.config
