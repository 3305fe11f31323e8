"""Resume sub-agents that waited for a person's answer together with their parent, without asking the model.

Each becomes a call of the tool ``task`` with its id, judged like any other; the open call of the sub-agent is judged again.
They go on side by side, and each lets those below it go on that wait too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ToolRequest

from .mentions import TOOL

if TYPE_CHECKING:
    from moryflow.store import Node

GO_ON = "The question that was open has been settled. Go on with your task."
"""What such a call gives a sub-agent to do; one that is given it lets those below it go on first."""
WAITING = "approval_required"


def waiting_children(path: Sequence[Node]) -> tuple[ToolRequest, ...]:
    """Return the calls that let the sub-agents go on which the last prompt's work left waiting."""
    prompts = (place for place, node in enumerate(path) if node.kind == "user" and not node.payload.get("synthetic"))
    waiting: dict[str, str] = {}
    for node in path[max(prompts, default=0) :]:
        about = _ended(node)
        if about.get("end_reason") == WAITING:
            waiting[about["session"]] = about["agent"]
        for call in node.payload.get("calls") or () if node.kind == "assistant" else ():
            waiting.pop(_resumed_by(call), None)
    return tuple(_go_on(session, agent) for session, agent in waiting.items())


def _ended(node: Node) -> Mapping[str, Any]:
    """Return what a node says of a sub-agent that has ended: a result of ``task``, or the note of one in the background."""
    if node.kind == "tool" and node.payload["tool"] == TOOL:
        return node.payload.get("metadata") or {}
    return (node.payload.get("task") or {}) if node.kind == "note" else {}


def _go_on(session: str, agent: str) -> ToolRequest:
    arguments = json.dumps({"agent": agent, "prompt": GO_ON, "task_id": session})
    return ToolRequest(id=f"call_{secrets.token_hex(6)}", name=TOOL, arguments=arguments)


def _resumed_by(call: Mapping[str, Any]) -> str:
    """Return the id of the sub-agent that a call goes on with, whatever became of it."""
    try:
        arguments = json.loads(call["arguments"]) if call["name"] == TOOL else {}
    except ValueError:
        return ""
    return str(arguments.get("task_id") or "") if isinstance(arguments, dict) else ""
