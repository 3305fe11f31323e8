"""The hooks, and the markers: ``@hookspec`` for us, ``@hookimpl`` for plugins.

A hook function may be ``def`` or ``async def``, may take any subset of the arguments, receives frozen values, and
returns a new value or ``None``. The host calls implementations one at a time: built-in, then installed, then user
plugins, within a tier by declared ``before=``/``after=``, then by name. Deadlines: transform 1 s, gate 2 s,
observer 1 s, contribute 5 s, ``compaction`` 60 s.

The table :data:`HOOKS` is the only place that defines each hook's kind and its spelling in configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, overload

import pluggy

from moryflow_sdk.calls import ToolCall, ToolResult
from moryflow_sdk.tools import Tool

from ._frozen import Frozen
from .agents import Agent
from .commands import Command
from .context import PluginContext, Turn
from .events import Event
from .models import ChatParams, Message, ModelProvider, SystemBlock, SystemPrompt
from .verdicts import Ruling, Stop, Verdict

PROJECT = "moryflow"
hookspec = pluggy.HookspecMarker(PROJECT)

F = TypeVar("F", bound=Callable[..., Any])
OnFailure = Literal["skip", "withhold"]


HookKind = Literal["life", "contribute", "transform", "gate", "observe"]


class HookInfo(NamedTuple):
    """One row of the hook table: `value` names the argument that a transform replaces, `timeout` is in seconds."""

    name: str
    dotted: str
    kind: HookKind
    value: str = ""
    timeout: float = 1.0


HOOKS: dict[str, HookInfo] = {
    info.name: info
    for info in (
        HookInfo("plugin_start", "plugin.start", "life", timeout=5.0),
        HookInfo("tools", "tools", "contribute", timeout=5.0),
        HookInfo("agents", "agents", "contribute", timeout=5.0),
        HookInfo("models", "models", "contribute", timeout=5.0),
        HookInfo("commands", "commands", "contribute", timeout=5.0),
        HookInfo("system_blocks", "system.blocks", "contribute", timeout=5.0),
        HookInfo("chat_messages", "chat.messages", "transform", "messages"),
        HookInfo("chat_system", "chat.system", "transform", "system"),
        HookInfo("chat_params", "chat.params", "transform", "params"),
        HookInfo("tool_before", "tool.before", "transform", "call"),
        HookInfo("tool_gate", "tool.gate", "gate", timeout=2.0),
        HookInfo("tool_decided", "tool.decided", "gate", timeout=2.0),
        HookInfo("tool_after", "tool.after", "transform", "result"),
        HookInfo("compaction", "compaction", "transform", "plan", timeout=60.0),
        HookInfo("event", "event", "observe"),
    )
}
"""Every hook by its Python name: its spelling in configuration, its kind and its deadline."""

OTHER_NAMES = {
    "tool.execute.before": "tool_before",
    "tool.execute.after": "tool_after",
    "session.compacting": "compaction",
    "permission.ask": "tool_gate",
}
"""The names that other agent hosts use for a hook, and ours."""

# ------------------------------------------------------------------------------------------------
# Life cycle
# ------------------------------------------------------------------------------------------------


@hookspec
def plugin_start(ctx: PluginContext) -> Callable[[], Any] | None:  # type: ignore[empty-body]
    """Open what the plugin needs while it is loaded.

    Called once per new plugin object, after the whole plugin was registered and before its other hooks.

    :param ctx: name, data folder, settings and log of this plugin.
    :returns: a function that closes it again, called when the last turn that used this plugin has ended; or ``None``.

    For connections and watches. Leave out work that a turn may never need.
    """


# ------------------------------------------------------------------------------------------------
# Contribute: items that belong to the plugin, and are removed with it
# ------------------------------------------------------------------------------------------------


@hookspec
def tools(ctx: PluginContext) -> Iterable[Tool]:  # type: ignore[empty-body]
    """Add tools.

    Called once at the start and once after each reload.

    :param ctx: this plugin's context; call ``ctx.invalidate()`` when the list of tools changes.
    :returns: tools made with :func:`moryflow_sdk.tool`. Any other item is left out and reported; the name of a
        built-in tool is refused.

    For anything the model should be able to call.
    """


@hookspec
def agents(ctx: PluginContext) -> Iterable[Agent]:  # type: ignore[empty-body]
    """Add agents.

    Called once at the start and once after each reload.

    :param ctx: this plugin's context.
    :returns: agents. An agent whose id is reserved, or taken by an earlier tier, is left out and reported. Other agents
        can start one only with ``mode`` ``subagent`` or ``all``; the default in Python is ``primary``.

    For plugins that add a way of working, not only a tool.
    """


@hookspec
def models(ctx: PluginContext) -> Iterable[ModelProvider]:  # type: ignore[empty-body]
    """Add model providers.

    Called once at the start and once after each reload.

    :param ctx: this plugin's context.
    :returns: providers. For a model name that begins with a provider's ``name`` or ``prefixes``, this provider is asked first;
        otherwise providers are asked in order.

    For another model service, another protocol, or a stand-in for tests.
    """


@hookspec
def commands(ctx: PluginContext) -> Iterable[Command]:  # type: ignore[empty-body]
    """Add commands to the command line or to ``chat``.

    Called once at the start and once after each reload.

    :param ctx: this plugin's context.
    :returns: commands; a command with the name of one of the host's is refused.

    For what the user, not the model, wants to do with the plugin.
    """


@hookspec
def system_blocks(turn: Turn) -> Iterable[SystemBlock]:  # type: ignore[empty-body]
    """Add blocks to the system prompt that no transform can remove.

    Called once per turn, after ``chat_system``; the blocks stay the same for all steps of the turn, so that prompt
    caches stay valid.

    :param turn: the turn that begins.
    :returns: blocks, stable ones first; their ids must be unique.

    For safety texts, protocols and instructions. To change the rest of the prompt use :func:`chat_system`.
    """


# ------------------------------------------------------------------------------------------------
# Chat: what the model receives. A transform that fails is skipped.
# ------------------------------------------------------------------------------------------------


@hookspec
def chat_messages(messages: Sequence[Message], turn: Turn) -> Sequence[Message] | None:  # type: ignore[empty-body]
    """Change the messages of the next request.

    Called before every model call of the conversation or of a sub-agent (purpose main or child).

    :param messages: the view built from the session, without the system prompt. A call and its result stay together.
    :param turn: the turn.
    :returns: the new sequence, or ``None`` to leave it. It changes this request only, never the session.

    For inserting context or hiding parts. If the text of old messages differs in every step, prompt caches are useless. If the
    first remaining message is not a user's, the host puts a line before it, as providers require.
    """


@hookspec
def chat_system(system: SystemPrompt, turn: Turn) -> SystemPrompt | None:  # type: ignore[empty-body]
    """Change the system prompt.

    Called once per turn, for the conversation and for sub-agents (purpose main and child).

    :param system: the blocks of the prompt, in order.
    :param turn: the turn.
    :returns: the new prompt, or ``None`` to leave it. The last value wins.

    For house rules and roles. If it is called twice for the same turn, it must return the same text.
    """


@hookspec
def chat_params(params: ChatParams, turn: Turn) -> ChatParams | None:  # type: ignore[empty-body]
    """Change temperature, top-p, output limit or extra fields of the next model call.

    Called before every model call except those of :class:`~moryflow_sdk.services.Complete`.

    :param params: the parameters from agent and configuration; a field that is ``None`` means the model's default.
    :param turn: the turn.
    :returns: the new parameters, or ``None`` to leave them.

    For the defaults of a team and for experiments. Write the parameters of a single agent into its file.
    """


# ------------------------------------------------------------------------------------------------
# Tools: from the call that the model writes to the result that it reads
# ------------------------------------------------------------------------------------------------


@hookspec
def tool_before(call: ToolCall, turn: Turn) -> ToolCall | Verdict | None:  # type: ignore[empty-body]
    """Change the arguments of a call before anyone judges it.

    Called once per call, before schema validation.

    :param call: the call as the model wrote it; targets are not resolved yet.
    :param turn: the turn.
    :returns: the call with other ``args``, or ``None``. Id and tool cannot be changed. A ``Deny``, ``Stop`` or ``Ask`` counts
        as if a gate had returned it; an ``Allow`` lifts nothing.

    For defaults and rewriting. To forbid a call use :func:`tool_gate`: only a gate that fails denies the call.
    """


@hookspec
def tool_gate(call: ToolCall, turn: Turn) -> Verdict | None:  # type: ignore[empty-body]
    """Judge a call.

    Called once per call, in call order; every implementation is called. It is called again if, after the user's answer, the
    call leads to other files or folders than before, and when a call that waited is continued later.

    :param call: exactly what will run: validated arguments, resolved targets, hash.
    :param turn: the turn; ``turn.mode`` and ``turn.grants`` are current.
    :returns: ``Allow``, ``Ask``, ``Deny``, ``Stop``, or ``None`` for no opinion. The most severe verdict counts.

    For rules that patterns cannot express. ``turn.rules.commands(target.given)`` names every command in a shell line, also in
    ``sh -c "…"`` and after ``cd x &&``; the gate on pushes to main in the cookbook uses it.
    """


@hookspec
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> Verdict | None:  # type: ignore[empty-body]
    """Learn the final ruling before the tool runs, and make it stricter if necessary.

    Called once per call, after the mode, the user's answer, or the absence of the user was applied.

    :param call: the call.
    :param ruling: what was decided, by whom and why.
    :param turn: the turn.
    :returns: a stricter verdict, or ``None``. A looser one is ignored.

    For audit.
    """


@hookspec
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | Stop | None:  # type: ignore[empty-body]
    """Change what a tool returned before the model sees it.

    Called once per finished call, also for errors (``result.status == "error"``), before truncation.

    :param call: the call as it ran; its arguments are final. A call that no gate has seen, because there is no such tool or
        the arguments do not fit, has no ``hash`` and no arguments.
    :param result: the complete result, as the previous implementation returned it.
    :param turn: the turn.
    :returns: the new result, or ``None`` to leave it; the last value wins. A ``Stop`` ends the turn after this result.

    For redaction (with ``on_failure="withhold"``), formatting, annotation. To forbid a call use :func:`tool_gate`. To
    keep output short you need do nothing: truncation runs after every plugin.
    """


# ------------------------------------------------------------------------------------------------
# Long conversations
# ------------------------------------------------------------------------------------------------


@hookspec
def compaction(plan: CompactionPlan, turn: Turn) -> CompactionPlan | None:  # type: ignore[empty-body]
    """Change a compaction before it runs: protect nodes, add context, change instructions, supply the summary, decline.

    Called once per compaction.

    :param plan: what will be summarised and what is kept.
    :param turn: the turn.
    :returns: the new plan, or ``None`` to leave it. A plan that is not valid is skipped.

    For facts of your kind of work that a summary must not lose.
    """


# ------------------------------------------------------------------------------------------------
# Observe
# ------------------------------------------------------------------------------------------------


@hookspec
def event(event: Event, turn: Turn | None) -> None:
    """Receive an event.

    Called for durable events (``turn.*``, ``step.*``, ``tool.*``, ``session.*`` …) in order, after they were committed;
    deltas come through a bounded queue and may be dropped.

    :param event: the event.
    :param turn: the turn that the event belongs to, or ``None`` if it belongs to none.
    :returns: nothing; what it returns or raises has no effect.

    For notification and metrics.
    """


def spelled(name: str) -> str | None:
    """Return the Python name of a hook written as ``chat.params`` or ``chat_params``; ``None`` if there is no such hook.

    It also accepts the names of other agent hosts (:data:`OTHER_NAMES`).
    """
    candidate = OTHER_NAMES.get(name, name.replace(".", "_"))
    return candidate if candidate in HOOKS else None


class CompactionPlan(Frozen):
    """A compaction that is about to run.

    :param covered: ids of the nodes the summary will stand for, oldest first.
    :param first_kept: id of the first node that stays verbatim (inclusive).
    :param protect: ids of nodes that must stay verbatim although they are covered.
    :param instructions: the prompt of the summarizer.
    :param context: extra texts that the summarizer receives as data.
    :param summary: a ready summary; the summarizer is then not called.
    :param decline: a reason not to compact now; if it is empty, the compaction runs.
    :param tokens_before: estimated tokens of the conversation now.
    :param previous_summary: the summary of the last compaction, which the new summary has to include.
    """

    covered: tuple[str, ...]
    first_kept: str
    tokens_before: int
    previous_summary: str = ""
    protect: tuple[str, ...] = ()
    instructions: str = ""
    context: tuple[str, ...] = ()
    summary: str | None = None
    decline: str = ""


@dataclass(frozen=True)
class HookOptions:
    """The options of an implementation; see :func:`hookimpl`."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    on_failure: OnFailure = "skip"
    timeout: float | None = None
    blocking: bool = False
    events: frozenset[str] = frozenset()


@overload
def hookimpl(function: F, /) -> F: ...


@overload
def hookimpl(
    *,
    specname: str | None = None,
    before: Sequence[str] | str = (),
    after: Sequence[str] | str = (),
    on_failure: OnFailure = "skip",
    timeout: float | None = None,
    blocking: bool = False,
    events: Sequence[str] | str = (),
) -> Callable[[F], F]: ...


def hookimpl(
    function: Any = None,
    /,
    *,
    specname: str | None = None,
    before: Sequence[str] | str = (),
    after: Sequence[str] | str = (),
    on_failure: OnFailure = "skip",
    timeout: float | None = None,
    blocking: bool = False,
    events: Sequence[str] | str = (),
    **unknown: Any,
) -> Any:
    """Mark a function as the implementation of the hook it is named after (or of `specname`).

    :param before: names of plugins of the same tier that should run later; `after`, those that should run earlier.
    :param on_failure: ``withhold`` for redactors: if this transform fails, the value is withheld, not passed on unchanged.
    :param timeout: seconds, instead of the default for this kind of hook.
    :param blocking: a plain function of a built-in that must not run on the loop.
    :param events: for the hook ``event``: the types to receive, also by the names of :data:`~moryflow_sdk.events.OTHER_NAMES`
        (``session.idle``); without them, all.
    """

    if unknown:
        raise TypeError(_unknown(unknown))

    def mark(target: Any) -> Any:
        _must_be_function(target)
        options = HookOptions(_names(before), _names(after), on_failure, timeout, blocking, frozenset(_names(events)))
        target.moryflow_options = options
        return pluggy.HookimplMarker(PROJECT)(target, specname=specname)

    return mark(function) if function is not None else mark


def _must_be_function(target: object) -> None:
    if isinstance(target, type) or not callable(target):
        kind = f"the class {target.__name__}" if isinstance(target, type) else type(target).__name__
        raise TypeError(f"@hookimpl marks a function, not {kind}")


def _unknown(options: Mapping[str, Any]) -> str:
    """Return the error message for options that do not exist; pluggy's options get their own explanation."""
    names = ", ".join(options)
    if options.keys() & {"tryfirst", "trylast", "wrapper", "hookwrapper", "optionalhook"}:
        return f"hookimpl has no {names}: that is pluggy's way of ordering; use before= and after= with names of plugins"
    return f"hookimpl has no {names}; it has specname, before, after, on_failure, timeout, blocking and events"


def _names(value: Sequence[str] | str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
