"""Type checkers know hooks, domains and settings: what a plugin gets wrong there is named before it is loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from moryflow.testing import IsolatedHost
from moryflow_sdk import ToolCall, config_of
from pydantic import BaseModel

GOOD = '''
from collections.abc import Iterable

from pydantic import BaseModel

from moryflow_sdk import (
    Agent, Ask, ChatParams, CompactionPlan, Deny, Event, PluginContext, Ruling, Tool, ToolCall, ToolResult, Turn, Verdict,
    config_of, hookimpl, hooks, tool,
)


class Settings(BaseModel):
    limit: int = 3


config_model = Settings


@tool(domain="read")
def hello(name: str) -> str:
    """Greet."""
    return name


@hooks.plugin_start
async def start(ctx: PluginContext) -> None:
    ctx.log.info("%d", config_of(ctx, Settings).limit + 1)


@hooks.tools
def tools() -> list[Tool]:
    return [hello]


@hooks.agents
def agents(ctx: PluginContext) -> Iterable[Agent]:
    return ()


@hooks.tool_gate
async def protect(call: ToolCall, turn: Turn) -> Verdict | None:
    return Deny("no") if config_of(turn, Settings).limit < 1 else None


@hooks.tool_gate(before="other", timeout=3)
def swapped(turn: Turn, call: ToolCall) -> Ask | None:
    return None


@hooks.tool_after(on_failure="withhold")
def after(result: ToolResult) -> ToolResult | None:
    return result.replace(output="")


@hooks.tool_decided
def decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None: ...


@hooks.chat_params
def cooler(params: ChatParams) -> ChatParams:
    return params


@hooks.compaction
async def keep(plan: CompactionPlan, turn: Turn) -> CompactionPlan | None:
    return None


@hooks.event(events="turn.end")
def told(event: Event) -> None: ...


@hookimpl
def tool_before(call: ToolCall) -> ToolCall | None:
    return None

'''
BAD = '''
from pydantic import BaseModel

from moryflow_sdk import PluginContext, ToolCall, ToolResult, Turn, config_of, file_target, hooks, tool


class Settings(BaseModel):
    limit: int = 3


@tool(domain="reed")  # bad
def hello(name: str) -> str:
    """Greet."""
    return name


@hooks.tool_gat  # bad
def gate(call: ToolCall) -> None: ...


@hooks.tool_gate  # bad
def result(call: ToolCall, turn: Turn) -> bool:
    return True


@hooks.tool_gate  # bad
async def later(call: ToolCall) -> str:
    return ""


@hooks.tool_gate  # bad
def argument(cal: ToolCall) -> None: ...


@hooks.tool_gate(timeout=1)  # bad
def kind(call: ToolResult) -> None: ...


@hooks.tool_after(on_failure="withold")  # bad
def option(result: ToolResult) -> None: ...


@hooks.tools  # bad
def tools(ctx: PluginContext) -> list[int]:
    return [1]


@hooks.plugin_start
def start(ctx: PluginContext) -> None:
    limit: str = config_of(ctx, Settings).limit  # bad


target = file_target("a", "edits")  # bad
'''
CHECKERS = {
    "pyright": ["--outputjson", "--pythonpath", sys.executable],
    "mypy": ["--strict", "--no-error-summary", "--no-incremental", "--cache-dir", "/dev/null"],
}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_find_each_mistake_and_nothing_else(checker: str, tmp_path: Path) -> None:
    """Names of hooks and arguments, results, options, domains and settings, in strict mode."""
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(GOOD, encoding="utf-8")
    bad.write_text(BAD, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    command = [sys.executable, "-m", checker, *CHECKERS[checker], "good.py", "bad.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if checker == "pyright":
        said = json.loads(done.stdout)["generalDiagnostics"]
        found = {(Path(item["file"]).name, item["range"]["start"]["line"] + 1) for item in said if item["severity"] == "error"}
    else:
        found = {(name, int(line)) for name, line in re.findall(r"(?m)^(\w+\.py):(\d+): error", done.stdout)}
    expected = {("bad.py", number) for number, line in enumerate(BAD.splitlines(), 1) if line.endswith("# bad")}
    assert found == expected, done.stdout + done.stderr


def test_a_typed_marker_is_hookimpl_for_that_hook(moryflow: IsolatedHost) -> None:
    """The function may have any name, options hold, and what is wrong is an error while loading."""
    moryflow.plugin(GOOD, "good")
    with pytest.raises(AttributeError, match="tool_gat"):
        exec(BAD, {"__name__": "bad"})
    records = {record.name: record for record in moryflow.host.plugin_set.records}
    assert records["good"].status == "loaded", records["good"]
    assert {"plugin_start", "tools", "agents", "tool_gate", "tool_after", "event"} <= set(records["good"].hooks)
    assert "hello" in moryflow.host.tools
    assert moryflow.call_tool("hello", name="you").result.output == ""


class Limits(BaseModel):
    limit: int = 3


def test_settings_are_what_they_are_said_to_be() -> None:
    """The same object, typed; another model is a mistake of the plugin's."""

    class Context:
        config = Limits(limit=5)

    assert config_of(Context(), Limits) is Context.config  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Limits, not ToolCall: name it config_model"):
        config_of(Context(), ToolCall)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("str", "tool_gate: its return type is str, but the hook takes Allow, Ask, Deny, Stop, None"),
        ("bool | None", "tool_gate: its return type is bool, but the hook takes"),
        ("Deny | None", ""),
        ("object", ""),
        ("OnlyForTypeCheckers", ""),
    ],
)
def test_a_wrong_result_is_an_error_at_load(moryflow: IsolatedHost, result: str, problem: str) -> None:
    """What pyright and mypy refuse is refused with its line, where it can be read at all (issue C, 2)."""
    source = f"""
        from __future__ import annotations

        from moryflow_sdk import Deny, hookimpl

        @hookimpl
        def tool_gate(call) -> {result}:
            return None
    """
    moryflow.plugin(source, "gate")
    (record,) = [record for record in moryflow.host.plugin_set.records if record.name == "gate"]
    assert (record.status, record.line if problem else None) == (("failed", 6) if problem else ("loaded", None))
    assert problem in record.error
