"""The user's own tools: Python files and programs in ``~/.moryflow/tools``. They are off until the user turns them on.

They are ordinary tools: permission, truncation and every hook apply. The first call of each tool asks once, and names the
file. An edited Python file is not asked about again, because no tool may write there, so that edits are the user's own. A
tool of the same name from another file is asked about, and so is a program whose content or description has changed. A file
with dependencies runs in a separate process and environment, so that it cannot break the host.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import Ask, Diagnostic, PluginContext, Remember, Rule, Ruling, Tool, ToolCall, Turn, hookimpl
from moryflow_sdk.support.own_files import replace_file
from moryflow_sdk.support.patterns import compile_rule, escape

if TYPE_CHECKING:
    from .environment import Environment


name = "external_tools"
services = ("artifacts", "code_loader", "complete", "emit", "files", "info", "rules")
config_path = "agents.runtime.tools.external"


@hookimpl
async def tools(ctx: PluginContext) -> list[Tool | Diagnostic]:
    """Load every file separately; a file that is wrong is left out and reported."""
    if ctx.config.get("enabled") is not True:
        return []
    folder = ctx.home / "tools"
    for off, why in ((ctx.profile == "remote", "under the profile remote"), (ctx.safe_mode, "in safe mode")):
        if off:
            return [Diagnostic(file=str(folder), code="external_tools_off", message=f"external tools are not loaded {why}")]
    from .loader import load_all

    return await load_all(ctx, folder)


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Ask | None:
    """Ask before the first call of a tool, unless a rule allows it; the question names the tool's file."""
    if not _is_ours(call, turn):
        return None
    target = f"tool:{call.tool}"
    known = _allowed_tools(turn.data_dir).get(call.tool, "")
    changed = known.startswith(f"{call.source} ")
    if known == _consent_key(call) or (not changed and _rule_allows(turn.rules.all(), target)):
        return None
    if _is_python(call):
        rule = Remember(scope="user", domain="tool", pattern=escape(target))
        return Ask(f"first use of the external tool {call.tool!r}, from {call.source}", remember=(rule,))
    what = "changed since you agreed to it:" if changed else "first use of"
    return Ask(f"{what} the external tool {call.tool!r}, the program {call.source} ({call.revision[:12]})")


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None:
    """Record that the user allowed a tool, so that the question is asked only once."""
    if ruling.by != "user" or ruling.decision != "allow" or not _is_ours(call, turn):
        return
    known = _allowed_tools(turn.data_dir)
    if known.get(call.tool) == _consent_key(call):
        return
    changed = json.dumps({**known, call.tool: _consent_key(call)}, indent=2, sort_keys=True)
    replace_file(_file(turn.data_dir), changed.encode())


def _is_ours(call: ToolCall, turn: Turn) -> bool:
    return bool(call.source) and Path(call.source).parent == turn.home / "tools"


def _consent_key(call: ToolCall) -> str:
    """Return what the user agreed to: the file of a Python tool; for a program, also its content and description."""
    return call.source if _is_python(call) else f"{call.source} {call.revision}"


def _is_python(call: ToolCall) -> bool:
    return call.source.endswith(".py")


def _allowed_tools(folder: Path) -> dict[str, str]:
    try:
        known = json.loads(_file(folder).read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _file(folder: Path) -> Path:
    return folder / "allowed.json"


def _rule_allows(rules: Sequence[Rule], target: str) -> bool:
    """Whether the last rule about `target` allows it: then the question has been answered by that rule."""
    last = next((rule for rule in reversed(rules) if rule.domain == "tool" and compile_rule(rule).matches(target)), None)
    return last is not None and last.decision == "allow"


def tool_environment(file: Path, data_dir: Path) -> Environment | None:
    """Return the environment that `file` needs, or ``None``; for ``moryflow tool install``.

    :raises ToolError: the file cannot be read, or its block with dependencies is not valid.
    """
    from .environment import environment_of

    return environment_of(file, data_dir)
