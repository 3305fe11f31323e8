"""A sub-agent that waits for a person's answer goes on when its parent does, without the model being asked to (D65).

It becomes a call of the tool ``task`` with its id, judged like any other; the open call of the sub-agent is judged again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ToolRequest

from .mentions import TOOL

if TYPE_CHECKING:
    from .sessions import Node

GO_ON = "Your question was settled: your call has its result now. Go on with your task."


def waiting_child(path: Sequence[Node]) -> ToolRequest | None:
    """Return the call that lets a sub-agent go on which the last prompt's work left waiting; the first of several."""
    prompts = (place for place, node in enumerate(path) if node.kind == "user" and not node.payload.get("synthetic"))
    waiting: dict[str, str] = {}
    for node in path[max(prompts, default=0) :]:
        if node.kind == "tool" and node.payload["tool"] == TOOL and node.payload.get("code") == "approval_required":
            about = node.payload.get("metadata") or {}
            waiting[about["session"]] = about["agent"]
        for call in node.payload.get("calls") or () if node.kind == "assistant" else ():
            waiting.pop(_resumed_by(call), None)
    for session, agent in waiting.items():
        arguments = json.dumps({"agent": agent, "prompt": GO_ON, "task_id": session})
        return ToolRequest(id=f"call_{secrets.token_hex(6)}", name=TOOL, arguments=arguments)
    return None


def _resumed_by(call: Mapping[str, Any]) -> str:
    """Return the id of the sub-agent that a call goes on with, whatever became of it."""
    try:
        arguments = json.loads(call["arguments"]) if call["name"] == TOOL else {}
    except ValueError:
        return ""
    return str(arguments.get("task_id") or "") if isinstance(arguments, dict) else ""
