"""Hints that name what only a type checker imports: below 3.14 with the future import, from then on without."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from moryflow.testing import IsolatedHost
from moryflow_sdk.arguments import parameters, type_hints

FUTURE = "from __future__ import annotations\n"
LAZY = pytest.param("", marks=pytest.mark.skipif(sys.version_info < (3, 14), reason="hints are evaluated at once (PEP 649)"))
STYLES = pytest.mark.parametrize("style", [FUTURE, LAZY], ids=["future import", "as 3.14 has them"])

PLUGIN = '''
"""Names nothing at run time that it only needs for its type checker."""
from typing import TYPE_CHECKING, Annotated

from moryflow_sdk import hookimpl, tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moryflow_sdk import ChatParams, PluginContext, Tool, ToolContext, ToolResult, Turn


@hookimpl
def chat_params(params: ChatParams, turn: Turn) -> ChatParams | None:
    return None


@tool(domain="read")
async def shout(text: Annotated[str, "What to say"], turn: ToolContext, times: Times = 2) -> str:
    """Say it aloud."""
    return text.upper() * times


@hookimpl
def tools(ctx: PluginContext) -> Iterable[Tool]:
    return [shout]


Times = int
'''


@STYLES
def test_a_plugin_needs_at_run_time_only_what_runs(style: str, moryflow: IsolatedHost) -> None:
    """Its hooks are registered and its tools are called (S2.14, CONTRACT 1)."""
    moryflow.plugin(style + PLUGIN, "later")
    moryflow.allow_all()
    result = moryflow.run("go", [{"calls": [{"name": "shout", "arguments": {"text": "a"}}]}, "done"])
    assert result.end_reason == "completed" and moryflow.model.requests[-1].messages[-1].text == "AA"
    plugins = moryflow.host.plugin_set
    assert "later" in [item.plugin for item in plugins.ordered("chat_params")]
    fields = plugins.tools["shout"].tool.parameters["properties"]
    assert list(fields) == ["text", "times"]
    assert (fields["text"]["description"], fields["times"]["type"]) == ("What to say", "integer")


@STYLES
@pytest.mark.parametrize(
    "hint", ["Nowhere", "list[Nowhere]", "Nowhere | None", "dict[str, list[Nowhere]]", "Callable[[Nowhere], int]"]
)
def test_a_name_that_is_nowhere_is_named(style: str, hint: str) -> None:
    """However deep it stands (CONTRACT 1)."""
    names: dict[str, Any] = {}
    exec(f"{style}from collections.abc import Callable\ndef it(one: {hint}): ...", names)
    assert list(parameters(names["it"])) == ["one"]
    with pytest.raises(NameError, match="'Nowhere' is not defined"):
        type_hints(names["it"], {})
