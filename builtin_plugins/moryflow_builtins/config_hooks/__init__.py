"""Hooks that need no code: `agents.runtime.hooks` in the configuration.

They belong to the user, so the host calls them among the user's hooks. A wrong entry is left out, and the check of the
configuration reports it with its line; the other entries apply. This module is imported at every start, so that it builds
nothing before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

from moryflow_sdk import ChatParams, SystemBlock, SystemPrompt, ToolCall, ToolResult, Turn, hookimpl
from moryflow_sdk.models import Effort
from moryflow_sdk.support.settings import Meta, Settings

ToolName = Annotated[str, Meta("a tool's name, or a glob over names", min_length=1)]


class SystemText(Settings):
    """Text for the system prompt, and its place.

    :ivar mode: put the text after the prompt, before it, or in its place.
    :ivar text: the text for the model.
    """

    mode: Literal["append", "prepend", "replace"] = "append"
    text: str = ""


class Params(Settings):
    """Parameters that override the model's; a parameter that is not given stays as it is.

    :ivar temperature: 0 is the least random.
    :ivar top_p: the share of likely words that the model chooses from.
    :ivar max_tokens: the most tokens of one answer.
    :ivar reasoning_effort: how long the model reasons before it answers.
    """

    temperature: Annotated[float, Meta(ge=0, le=2, strict=True)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, strict=True)] | None = None
    max_tokens: Annotated[int, Meta(gt=0, le=10_000_000, strict=True)] | None = None
    reasoning_effort: Effort | None = None


class ChatHooks(Settings):
    """Changes of every model call."""

    system: SystemText | None = None
    params: Params | None = None


class BeforeToolHook(Settings):
    """Default arguments for a call.

    :ivar merge_input: values for arguments that the call does not give, by name.
    """

    tool: ToolName
    merge_input: dict[str, Any] = {}


class AfterToolHook(Settings):
    """Text to put around the output of a tool, unchanged.

    :ivar prepend_text: put before the output.
    :ivar append_text: put after the output.
    """

    tool: ToolName
    prepend_text: str = ""
    append_text: str = ""


class ToolHooks(Settings):
    """Changes of tool calls; entries apply in the order in which they are written."""

    before: tuple[BeforeToolHook, ...] = ()
    after: tuple[AfterToolHook, ...] = ()


class HookSettings(Settings):
    """Hooks that need no code."""

    chat: ChatHooks | None = None
    tool: ToolHooks | None = None


name = "config_hooks"
config_model = HookSettings
config_path = "agents.runtime.hooks"

Entry = TypeVar("Entry", BeforeToolHook, AfterToolHook)


@hookimpl
def chat_system(system: SystemPrompt, turn: Turn) -> SystemPrompt | None:
    """Add the text as a separate block, or replace the prompt by it; blocks of ``system_blocks`` come after it."""
    settings: HookSettings = turn.config
    hook = settings.chat.system if settings.chat else None
    if hook is None or not hook.text:
        return None
    block = SystemBlock(id=name, text=hook.text)
    match hook.mode:
        case "replace":
            return SystemPrompt(blocks=(block,))
        case "prepend":
            return SystemPrompt(blocks=(block, *system.blocks))
        case _:
            return system.append(block)


@hookimpl
def chat_params(params: ChatParams, turn: Turn) -> ChatParams | None:
    """Override the parameters that the configuration gives."""
    settings: HookSettings = turn.config
    if settings.chat is None or settings.chat.params is None:
        return None
    given = {key: value for key, value in settings.chat.params.model_dump().items() if value is not None}
    return params.replace(**given) if given else None


@hookimpl
def tool_before(call: ToolCall, turn: Turn) -> ToolCall | None:
    """Add the default arguments that the call does not give; the arguments that it gives stay."""
    settings: HookSettings = turn.config
    if settings.tool is None:
        return None
    args = dict(call.args)
    for hook in _for(call.tool, settings.tool.before):
        args = {**hook.merge_input, **args}
    return call.replace(args=args) if len(args) > len(call.args) else None


@hookimpl
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Put text around the output of a successful call, if it is text and not JSON."""
    settings: HookSettings = turn.config
    if settings.tool is None or result.status != "ok" or result.format != "text" or result.spool:
        return None
    output = result.output
    for hook in _for(call.tool, settings.tool.after):
        output = f"{hook.prepend_text}{output}{hook.append_text}"
    return result.replace(output=output) if output != result.output else None


def _for(tool: str, entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if fnmatchcase(tool, entry.tool)]
