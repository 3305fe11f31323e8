"""Hooks that need no code: `agents.runtime.hooks` in the configuration (S0.96-S0.100).

They are the user's, so the host calls them among the user's hooks (S0.95). A wrong entry is left out and named, with
its line, by the check of the configuration; the others hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from moryflow_sdk import ChatParams, SystemBlock, SystemPrompt, ToolCall, ToolResult, Turn, hookimpl

from .settings import HookSettings

name = "config_hooks"
config_model = HookSettings
config_path = "agents.runtime.hooks"

_PARAMS = {"temperature": "temperature", "topP": "top_p", "maxTokens": "max_tokens"}
Entry = TypeVar("Entry", bound=Any)


@hookimpl
def chat_system(system: SystemPrompt, turn: Turn) -> SystemPrompt | None:
    """Add the text as a block of its own, or put it in place of all (S0.96); ``system_blocks`` come after it (D52)."""
    hook = turn.config.chat.get("system", {})
    if not hook.get("text"):
        return None
    block = SystemBlock(id=name, text=hook["text"])
    match hook.get("mode", "append"):
        case "replace":
            return SystemPrompt(blocks=(block,))
        case "prepend":
            return SystemPrompt(blocks=(block, *system.blocks))
        case _:
            return system.append(block)


@hookimpl
def chat_params(params: ChatParams, turn: Turn) -> ChatParams | None:
    """Override the parameters that are given (S0.97)."""
    given = turn.config.chat.get("params")
    return params.replace(**{_PARAMS[key]: value for key, value in given.items()}) if given else None


@hookimpl
def tool_before(call: ToolCall, turn: Turn) -> ToolCall | None:
    """Add the arguments that the call does not give; what it gives stays (S0.98)."""
    args = dict(call.args)
    for hook in _for(call.tool, turn.config.tool.get("before", ())):
        args = {**hook.get("mergeInput", {}), **args}
    return call.replace(args=args) if len(args) > len(call.args) else None


@hookimpl
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Put text around an output that is text: not around errors, nor what the host wrote as JSON (S0.99)."""
    hooks = _for(call.tool, turn.config.tool.get("after", ()))
    if not hooks or result.status != "ok" or result.format != "text" or result.spool:
        return None
    output = result.output
    for hook in hooks:
        output = f"{hook.get('prependText', '')}{output}{hook.get('appendText', '')}"
    return result.replace(output=output) if output != result.output else None


def _for(tool: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries about `tool` (S0.100)."""
    return [entry for entry in entries if fnmatchcase(tool, entry["tool"])]
