"""Checks of the plugin's hooks: their type hints, and what they do with values that arrive sooner or later."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

import moryflow_sdk
from moryflow_sdk import (
    HOOKS,
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
    hookspecs,
)
from moryflow_sdk.arguments import type_hints
from moryflow_sdk.calls import Target

from . import Subject


def test_its_arguments_have_the_types_of_the_hook(plugin_subject: Subject) -> None:
    """A wrong type hint misleads readers and type checkers."""
    for hook, function in plugin_subject.functions():
        try:
            hints = type_hints(function, {**vars(hookspecs), **vars(moryflow_sdk)})
        except NameError as error:
            to_do = "import what it names at module level"
            plugin_subject.fail(f"{hook}: a type hint cannot be read: {error}", to_do, function)
        given = get_type_hints(getattr(hookspecs, hook))
        for name, hint in hints.items():
            expected = given.get(name)
            if name == "return" or expected is None or hint is Any or not inspect.isclass(hint):
                continue
            members = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)
            if hint not in members:
                wanted = getattr(expected, "__name__", str(expected))
                plugin_subject.fail(f"{hook}: {name} is a {wanted}, not a {hint.__name__}", f"write {name}: {wanted}", function)


def test_its_hooks_take_what_arrives(plugin_subject: Subject) -> None:
    """Hooks accept ordinary and empty input, and that of calls that fail: errors, bad arguments, unknown tools."""
    tools = [tool.name for tool in plugin_subject.tools]
    for hook in HOOKS:
        for kind in KINDS if plugin_subject.implementations(hook) else ():
            for failure in plugin_subject.failures(hook, list(inputs(hook, kind, tools))):
                place = f"{failure.file}:{failure.line}" if failure.line else failure.file
                plugin_subject.fail(f"{hook} fails with {kind} input: {failure.error}", _remedy(hook, kind), place)


def _remedy(hook: str, kind: str) -> str:
    if kind == "failed" and hook in ("tool_after", "tool_decided"):
        return "look at result.status (or the ruling) first: errors pass through the hook as well"
    if kind != "ordinary":
        return 'expect fields to be missing: call.args.get("path"), not call.args["path"]; a model writes what it likes'
    return "return None for what is not yours, and keep the work small"


KINDS = ("ordinary", "empty", "failed")
_TEXT = "naïve café \U0001f469‍\U0001f4bb 你好\nsecond line"


def inputs(hook: str, kind: str, tools: Sequence[str] = ()) -> Iterator[Mapping[str, Any]]:
    """Yield the inputs of `kind` with which to call `hook`; none for a hook that is called while plugins load.

    :param tools: the plugin's own tools; its hooks are called for them too.
    """
    text = _TEXT if kind == "ordinary" else ""
    match hook:
        case "chat_messages":
            yield {"messages": _messages(kind, text)}
        case "chat_system":
            blocks = (SystemBlock(id="base", text=text), SystemBlock(id="place", text="", stable=False))
            yield {"system": SystemPrompt(blocks=() if kind == "empty" else blocks)}
        case "chat_params":
            yield {"params": ChatParams(temperature=0.2, top_p=0.9, max_tokens=64) if kind == "ordinary" else ChatParams()}
        case "tool_before" | "tool_gate" | "tool_decided" | "tool_after":
            for name in ("read", "bash", "no_such_tool", *tools):
                yield _tool(hook, kind, text, name)
        case "compaction":
            covered = () if kind == "empty" else ("n1", "n2")
            yield {"plan": CompactionPlan(covered=covered, first_kept="n3", tokens_before=1000, instructions=text)}
        case "event":
            data = {} if kind == "empty" else {"call_id": "call_1", "tool": "read", "status": "error", "output": text}
            yield {"event": Event(type="tool.result" if data else "unknown.kind", session="s", turn="t", data=data)}
        case "system_blocks":
            yield {}
        case _:
            return


def _messages(kind: str, text: str) -> tuple[Message, ...]:
    if kind == "empty":
        return ()
    call = ToolRequest(id="call_1", name="read", arguments="{broken" if kind == "failed" else '{"path": "a.md"}')
    return (
        Message(role="user", text=text),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", call_id="call_1", text=text),
        Message(role="assistant", text="done"),
    )


def _tool(hook: str, kind: str, text: str, name: str) -> dict[str, Any]:
    args: dict[str, Any] = {"path": "a.md", "command": "echo hi", "name": text, "content": text}
    if kind == "failed":
        args = {"path": None, "command": 7, "nested": [{"a": [1, 2.5, None, True]}]}
    call = ToolCall(id="call_1", tool=name, args={} if kind == "empty" else args, step=1)
    if hook == "tool_before":
        return {"call": call}
    target = Target(kind="file", domain="read", given=file_target("a.md").value, text="vault:/a.md")
    given: dict[str, Any] = {"call": call.replace(targets=() if kind == "empty" else (target,), hash="0" * 64)}
    if hook == "tool_decided":
        given["ruling"] = Ruling(decision="deny" if kind == "failed" else "allow", reason=text)
    if hook == "tool_after":
        failed = ToolResult(status="error", code="not_found", output="there is no such file")
        given["result"] = failed if kind == "failed" else ToolResult(output=text, title=text[:40])
    return given
