"""Inputs for hooks: an ordinary one, and the odd ones that arrive sooner or later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moryflow_sdk import (
    ChatParams,
    CompactionPlan,
    Event,
    Message,
    Ruling,
    SystemBlock,
    SystemPrompt,
    ToolCall,
    ToolRequest,
    ToolResult,
    file_target,
)
from moryflow_sdk.calls import Target

Given = Mapping[str, Any]
KINDS = ("ordinary", "empty", "unicode", "huge", "sparse", "failed")

_UNICODE = "naïve café \U0001f469‍\U0001f4bb עברית 你好 e\u0301 \u202e \u200b\ufeff line\u2028end\r\n\ttab"
_TEXTS = {"ordinary": "hello world\nsecond line", "empty": "", "unicode": _UNICODE, "huge": "lorem ipsum 123\n" * 65_536}


def inputs(hook: str, kind: str, tools: Sequence[str] = ()) -> list[Given]:
    """Return what `hook` is called with; none where a kind makes no sense for it.

    :param tools: the plugin's own tools, which its hooks will meet too.
    """
    text = _TEXTS.get(kind, "")
    match hook:
        case "chat_messages":
            return [{"messages": _messages(kind, text)}]
        case "chat_system":
            return [{"system": _system(kind, text)}]
        case "chat_params":
            return [{"params": ChatParams() if kind != "ordinary" else ChatParams(temperature=0.2, top_p=0.9, max_tokens=64)}]
        case "tool_before" | "tool_gate" | "tool_decided" | "tool_after":
            names = ("read", "bash", "no_such_tool", *tools)
            return [_tool(hook, kind, text, name) for name in names]
        case "compaction":
            return [{"plan": _plan(kind, text)}]
        case "event":
            return [{"event": event} for event in _events(text)]
        case "system_blocks":
            return [{}]
        case _:
            return []


def _messages(kind: str, text: str) -> tuple[Message, ...]:
    if kind == "empty":
        return ()
    if kind == "sparse":
        return (Message(role="user"), Message(role="assistant"))
    call = ToolRequest(id="call_1", name="read", arguments='{"path": "a.md"}' if kind != "failed" else "{broken")
    exchange = (
        Message(role="user", text=text),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", call_id="call_1", text=text),
        Message(role="assistant", text="done"),
    )
    return exchange if kind != "huge" else tuple(message for _ in range(2) for message in exchange[:1]) + exchange


def _system(kind: str, text: str) -> SystemPrompt:
    if kind in ("empty", "sparse"):
        return SystemPrompt()
    return SystemPrompt(blocks=(SystemBlock(id="base", text=text), SystemBlock(id="place", text="", stable=False)))


def _tool(hook: str, kind: str, text: str, name: str) -> dict[str, Any]:
    args: dict[str, Any] = {"path": "a.md", "command": "echo hi", "name": text, "content": text}
    if kind in ("empty", "sparse"):
        args = {}
    elif kind == "failed":
        args = {"path": None, "command": 7, "nested": [{"a": [1, 2.5, None, True]}]}
    call = ToolCall(id="call_1", tool=name, args=args, step=1)
    given: dict[str, Any] = {"call": call}
    if hook == "tool_before":
        return given
    given["call"] = call.replace(targets=_targets(kind), hash="0" * 64)
    if hook == "tool_decided":
        given["ruling"] = Ruling(decision="deny" if kind == "failed" else "allow", reason=text[:200])
    if hook == "tool_after":
        given["result"] = _result(kind, text)
    return given


def _targets(kind: str) -> tuple[Target, ...]:
    if kind in ("empty", "sparse"):
        return ()
    request = file_target("a.md")
    return (Target(kind="file", domain="read", given=request.value, text="vault:/a.md"),)


def _result(kind: str, text: str) -> ToolResult:
    if kind == "failed":
        return ToolResult(status="error", code="not_found", output="there is no such file")
    return ToolResult() if kind == "sparse" else ToolResult(output=text, title=text[:40])


def _plan(kind: str, text: str) -> CompactionPlan:
    covered = () if kind in ("empty", "sparse") else ("n1", "n2")
    return CompactionPlan(covered=covered, first_kept="n3", tokens_before=1000, instructions=text[:4000])


def _events(text: str) -> list[Event]:
    """Return an event of each kind with the fields that it always has, one of a later version, and one of no session."""
    text = text[:2000]
    call = {"call_id": "call_1", "tool": "read"}
    usage = {"input": 10, "output": 1, "cached": 0}
    asked = {
        "approval_id": "a1",
        "call_id": "call_1",
        "domain": "edit",
        "targets": ["vault:/a.md"],
        "reason": text,
        "remember": [],
    }
    kinds: dict[str, dict[str, Any]] = {
        "turn.start": {"purpose": "main", "plugin_set": "0" * 16},
        "session.status": {"status": "busy"},
        "step.start": {},
        "text.delta": {"text": text},
        "tool.start": {**call, "args": {"path": "a.md"}, "state": "pending"},
        "permission.asked": asked,
        "permission.replied": {"approval_id": "a1", "call_id": "call_1", "reply": "once", "by": "user"},
        "tool.result": {**call, "state": "completed", "status": "ok", "output": text, "truncated": False, "ms": 1},
        "step.finish": {"usage": usage, "cost": None, "node": "n1"},
        "compaction": {"kind": "compact", "state": "done", "tokens_before": 1000, "tokens_after": 100, "dropped": {}},
        "turn.finish": {"end_reason": "completed", "steps": 1, "cost": None},
        "unknown.kind": {},
    }
    told = [Event(type=kind, session="s", turn="t", data=data) for kind, data in kinds.items()]
    return [*told, Event(type="error", session="", data={"code": "io", "message": text, "where": "", "next": ""})]
