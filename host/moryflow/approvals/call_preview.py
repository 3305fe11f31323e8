"""What a question shows of a call: the tool's own preview, or its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from moryflow_sdk import ToolCall, ToolContext, ToolError, thaw

from moryflow.base.foreign_errors import text_of
from moryflow.hooks.checks import copy_for_plugin
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.hooks.threads import CallTimeout, PluginUnresponsive
from moryflow.kernel.turn_context import TurnContext
from moryflow.services import View

TIMEOUT = 10.0
"""Seconds that a tool's preview may take; after that the arguments are shown."""
MOST = 4 * 1024 * 1024
"""Characters of a preview that are kept: as many as arguments may have."""
SAID = 200
"""Characters of a target up to which it is shown whole, so that the argument it was made of need not be."""


class PreviewView(View):
    """What a preview may use: the view of its plugin, and the call. Nothing runs, so that nothing can be asked or told."""

    def __init__(self, scope: TurnContext, plugin: str, call: ToolCall) -> None:
        super().__init__(scope, plugin)
        self.call = call


async def preview_of(scope: TurnContext, owned: RegisteredTool, call: ToolCall) -> str:
    """Return what `call` will do, for a person; a preview that fails is replaced by why it does, and the arguments."""
    arguments = arguments_text(call)
    if owned.tool.preview is None:
        return cut_middle(arguments)
    view = cast("ToolContext", PreviewView(scope, owned.plugin, copy_for_plugin(call) if owned.foreign else call))
    try:
        text = await owned.life.run(owned.tool.preview, (view,), TIMEOUT, body=True)
    except (CallTimeout, PluginUnresponsive):
        text = f"what it will do cannot be shown: its preview took longer than {TIMEOUT:g} s\n{arguments}"
    except ToolError as error:
        text = f"what it will do cannot be shown: {error.message}\n{arguments}"
    except Exception as error:  # the boundary around a tool's own code: the person is told, and sees the arguments
        text = f"what it will do cannot be shown: {type(error).__name__}: {text_of(error)}\n{arguments}"
    return cut_middle(text if isinstance(text, str) and text else arguments)


def arguments_text(call: ToolCall) -> str:
    """Return the arguments that the targets of `call` do not say already, one below the other."""
    said = {target.given for target in call.targets if "\n" not in target.given and len(target.given) <= SAID}
    values = cast("Mapping[str, Any]", thaw(call.args))
    return "\n".join(_argument(name, value) for name, value in values.items() if not (isinstance(value, str) and value in said))


def _argument(name: str, value: Any) -> str:
    """Return one argument; the lines of a longer text are indented, so that none of them looks like an argument."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "\n" not in text:
        return f"{name}: {text}"
    return "\n  ".join((f"{name}:", *text.split("\n")))


def cut_middle(text: str) -> str:
    """Return `text`, its middle cut out where it is longer than :data:`MOST`."""
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out here]\n{text[-half:]}"
