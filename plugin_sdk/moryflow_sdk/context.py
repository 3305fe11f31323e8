"""What hooks and tools are given to know where they are."""

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
        Terminal,
        Watch,
    )


class PluginContext(Protocol):
    """What a plugin is given while it is set up: ``plugin_start`` and the contribute hooks.

    :ivar environ: the environment of the host, where keys are looked for.
    :ivar profile: ``local`` or ``remote``.
    :ivar safe_mode: only built-in plugins run, and no code of the person's own.
    :ivar name: the plugin's name.
    :ivar home: Moryflow's own folder, ``~/.moryflow``.
    :ivar data_dir: a folder of the plugin's own, kept across updates; it is there already.
    :ivar config: the plugin's settings, an instance of its ``config_model`` (or a plain mapping).
    :ivar log: a logger of the plugin's own; the command line shows its warnings on standard error.
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
        """Ask for a new generation, because what this plugin contributes has changed."""
        ...


class Turn(Protocol):
    """The turn a hook runs in, as one plugin sees it.

    :ivar session: id of the session; `id` is the turn's, `step` counts model calls from 1.
    :ivar parent: the session that this one is a child of; `spawned` says which plugin started this very turn as a child's.
    :ivar vault: the folder the agent works in, resolved; `home` is Moryflow's own folder.
    :ivar agent: who answers in this turn; `model` is what it answers with, ``None`` where none is called.
    :ivar purpose: what the model calls of this turn are for: ``main``, ``child``, ``direct`` (no model), ``compact``, …
    :ivar profile: ``local``, or ``remote`` for a person who is not at this machine.
    :ivar headless: nobody can be asked.
    :ivar plugin_set: content hash of the generation.
    :ivar data_dir: a folder of the plugin's own, kept across updates.
    :ivar config: the plugin's settings, an instance of its ``config_model`` (or a plain mapping).
    :ivar log: a logger of the plugin's own; the command line shows its warnings on standard error.
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
        """The id of the model's answer whose calls are running, or ran last; empty before the first."""
        ...

    @property
    def watched(self) -> tuple[Path, ...]:
        """Files and folders of code outside :attr:`home` that runs as soon as it is saved."""
        ...

    @property
    def mode(self) -> str:
        """``agent`` or ``full_access``, read now and not when the turn began."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the person has stopped the turn."""
        ...

    @property
    def grants(self) -> tuple[Rule, ...]:
        """Rules that a person granted for this session, in order."""
        ...

    @property
    def files(self) -> Files:
        """The service ``files``: resolve, open, read and change files as they were judged."""
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
        """The service ``rules``: read the permission rules, add one."""
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
        """The service ``info``: the session's title, notes in it."""
        ...

    @property
    def emit(self) -> Emit:
        """The service ``emit``: publish an event."""
        ...

    @property
    def terminal(self) -> Terminal | None:
        """The service ``terminal``: run a program in a terminal of the editor; ``None`` where there is none for this turn."""
        ...


class ToolContext(Turn, Protocol):
    """What a running tool is given on top.

    :ivar call: the call as it was judged; its targets are what :attr:`Turn.files` opens.
    :ivar mark: the value of ``MORYFLOW_CALL`` for every program that the tool starts
        (:func:`moryflow_sdk.support.processes.marked_environment`): what still runs when the host was killed is found by it and
        ended before the session goes on.
    """

    call: ToolCall
    mark: str

    def progress(self, text: str) -> None:
        """Show `text` to the person while the tool runs; works from any thread, never stored."""
        ...

    def metadata(self, **values: Any) -> None:
        """Add JSON to the result's metadata."""
        ...

    async def ask(self, question: Ask) -> None:
        """Ask the person something in the middle of a tool.

        :raises Denied: it was refused, or nobody could be asked.
        """
        ...


Settings = TypeVar("Settings")


def config_of(context: PluginContext | Turn, model: type[Settings]) -> Settings:
    """Return the settings of the plugin as what they are: `model` is its ``config_model``.

    :raises TypeError: the plugin has another ``config_model``, or none.
    """
    if not isinstance(context.config, model):
        raise TypeError(f"the settings are {type(context.config).__name__}, not {model.__name__}: name it config_model")
    return context.config
