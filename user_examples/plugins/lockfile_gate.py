"""Keep agents from writing lock files by hand.

Copy it to ``~/.moryflow/plugins/``. A gate that raises, or takes longer than two seconds, denies the call; if this
file ever fails to load, every call is asked about until you disable it by name.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from moryflow_sdk import Deny, ToolCall, hookimpl

GENERATED = {"Cargo.lock", "package-lock.json", "pnpm-lock.yaml", "poetry.lock", "uv.lock", "yarn.lock"}


@hookimpl
async def tool_gate(call: ToolCall) -> Deny | None:
    """Look at the resolved targets, not at the arguments: links and spellings are dealt with by then."""
    for target in call.targets:
        name = PurePosixPath(target.text).name
        if target.domain == "edit" and (name in GENERATED or name.endswith(".lock")):
            return Deny(f"{name} is generated", next_step="change what it is generated from, and run the tool that writes it")
    return None
