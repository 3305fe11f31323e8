"""A formatter that runs after every edit.

The file is formatted at once, and the model is told to read it again before the next edit.

Try it: ``moryflow tool run write --path a.py --content "x=1"``, then look at ``a.py``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from moryflow_sdk import ToolCall, ToolResult, Turn, hookimpl
from pydantic import BaseModel


class Settings(BaseModel, frozen=True):
    """What ``plugins.format_after_edit`` may say: the command for each ending; the file comes behind it."""

    commands: dict[str, list[str]] = {".py": ["ruff", "format", "-q"], ".go": ["gofmt", "-w"]}


config_model = Settings


@hookimpl(timeout=20)
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Format each file that the call has changed."""
    said: list[str] = []
    for target in call.targets if result.status == "ok" else ():
        command = turn.config.commands.get(Path(target.path or "").suffix)
        if target.domain != "edit" or target.path is None or command is None:
            continue
        before = Path(target.path).read_bytes()
        done = subprocess.run([*command, target.path], capture_output=True, text=True, timeout=15, check=False)
        if done.returncode:
            said.append(f"[{command[0]} failed: {done.stderr.strip()[:500]}]")
        elif Path(target.path).read_bytes() != before:
            said.append(f"[{target.given} was formatted by {command[0]}: read it again before you edit it]")
    return result.replace(output="\n".join([result.output, *said])) if said else None
