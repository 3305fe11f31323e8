"""The first call of each external tool is asked about, once: which file a name comes from is what a person agrees to.

Edits of the file are not asked about again: no tool may write there, so they are the person's own. A
tool of the same name from another file is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from moryflow_sdk import Ask, Remember, Rule, ToolCall, Turn
from moryflow_sdk.patterns import compile_rule, escape


def question(call: ToolCall, turn: Turn) -> Ask | None:
    """Return the question, ``None`` when it was answered before or a rule answers it."""
    target = f"tool:{call.tool}"
    if _known(turn.data_dir).get(call.tool) == call.source or _allowed(turn.rules.all(), target):
        return None
    return Ask(
        f"first use of the external tool {call.tool!r}, from {call.source}",
        remember=(Remember(scope="user", domain="tool", pattern=escape(target)),),
    )


def remember(call: ToolCall, turn: Turn) -> None:
    """Note that a person let the tool of this file run."""
    known = _known(turn.data_dir)
    if known.get(call.tool) == call.source:
        return
    file = _file(turn.data_dir)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_text(json.dumps({**known, call.tool: call.source}, indent=2, sort_keys=True), encoding="utf-8")
    fresh.replace(file)


def _known(folder: Path) -> dict[str, str]:
    try:
        known = json.loads(_file(folder).read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _file(folder: Path) -> Path:
    return folder / "allowed.json"


def _allowed(rules: Sequence[Rule], target: str) -> bool:
    """Whether the last rule about `target` allows it: somebody who writes that has answered already."""
    last = next((rule for rule in reversed(rules) if rule.domain == "tool" and compile_rule(rule).matches(target)), None)
    return last is not None and last.decision == "allow"
