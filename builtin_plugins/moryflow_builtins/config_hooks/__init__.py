"""Hooks that need no code: `agents.runtime.hooks` in the configuration.

They are the user's, so the host calls them among the user's hooks. A wrong entry is left out and named, with
its line, by the check of the configuration; the others hold. Aliases are written out and nothing is built before it is
needed: this is imported at every start.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

from moryflow_sdk import ChatParams, SystemBlock, SystemPrompt, ToolCall, ToolResult, Turn, hookimpl
from moryflow_sdk.support.settings import Meta, Settings

ToolName = Annotated[str, Meta("a tool's name, or a glob over names", min_length=1)]


class SystemText(Settings):
    """Text for the system prompt, and where it goes.

    :ivar mode: put the text after the prompt, before it, or in its place.
    :ivar text: the text for the model.
    """

    mode: Literal["append", "prepend", "replace"] = "append"
    text: str = ""


class Params(Settings):
    """Parameters that override the model's; one that is absent is left as it is.

    :ivar temperature: 0 is the least random.
    :ivar top_p: the share of likely words that the model chooses from.
    :ivar max_tokens: the most tokens of one answer.
    """

    temperature: Annotated[float, Meta(ge=0, le=2, strict=True)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, strict=True)] | None = None
    max_tokens: Annotated[int, Meta(gt=0, le=10_000_000, strict=True)] | None = None


class ChatHooks(Settings):
    """What happens to every model call."""

    system: SystemText | None = None
    params: Params | None = None


class BeforeToolHook(Settings):
    """Arguments that a call gets when it does not give them itself.

    :ivar merge_input: values for arguments that the call does not give, by name.
    """

    tool: ToolName
    merge_input: dict[str, Any] = {}


class AfterToolHook(Settings):
    """Text around what a tool returned, taken as it is.

    :ivar prepend_text: put before the output.
    :ivar append_text: put after the output.
    """

    tool: ToolName
    prepend_text: str = ""
    append_text: str = ""


class ToolHooks(Settings):
    """What happens to tool calls; entries apply in the order they are written."""

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
    """Add the text as a block of its own, or put it in place of all; ``system_blocks`` come after it."""
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
    """Override the parameters that are given."""
    settings: HookSettings = turn.config
    if settings.chat is None or settings.chat.params is None:
        return None
    given = {key: value for key, value in settings.chat.params.model_dump().items() if value is not None}
    return params.replace(**given) if given else None


@hookimpl
def tool_before(call: ToolCall, turn: Turn) -> ToolCall | None:
    """Add the arguments that the call does not give; what it gives stays."""
    settings: HookSettings = turn.config
    if settings.tool is None:
        return None
    args = dict(call.args)
    for hook in _for(call.tool, settings.tool.before):
        args = {**hook.merge_input, **args}
    return call.replace(args=args) if len(args) > len(call.args) else None


@hookimpl
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Put text around an output that is text: not around errors, nor what the host wrote as JSON."""
    settings: HookSettings = turn.config
    if settings.tool is None or result.status != "ok" or result.format != "text" or result.spool:
        return None
    output = result.output
    for hook in _for(call.tool, settings.tool.after):
        output = f"{hook.prepend_text}{output}{hook.append_text}"
    return result.replace(output=output) if output != result.output else None


def _for(tool: str, entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if fnmatchcase(tool, entry.tool)]
