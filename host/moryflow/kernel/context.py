"""From the active path to the messages of a request: a pure function (invariant 7).

Pruning and compaction are nodes on the path; they change this view and never the history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Image, Message, ToolRequest

if TYPE_CHECKING:
    from moryflow.sessions import Node

SUMMARY_MARK = "【会话摘要】"
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class ContextBuilder:
    """Builds the view. It keeps one message per node, and a message keeps its encoded bytes, so that a step of a long
    session costs what is new. The cache never changes the answer: a node is immutable."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, str], Message | None] = {}

    def build(self, path: Sequence[Node]) -> list[Message]:
        """Return the messages for `path`, root first, without the system prompt."""
        head, visible = effective(path)
        placeholders = pruned(path)
        messages = [] if head is None else [self._kept(head, "")]
        messages += [self._kept(node, placeholders.get(node.id, "")) for node in visible if node.kind != "compaction"]
        return paired([message for message in messages if message is not None])

    def _kept(self, node: Node, placeholder: str) -> Message | None:
        key = (node.id, placeholder)
        if key not in self._messages:
            self._messages[key] = message_of(node, placeholder)
        return self._messages[key]


def effective(path: Sequence[Node]) -> tuple[Node | None, Sequence[Node]]:
    """Return the compaction that counts, if any, and the nodes that stay visible beside its summary (S1.4, S1.5).

    The last valid, not voided compaction on the path wins; ``first_kept_node_id`` is inclusive (D20).
    """
    if not any(node.kind == "compaction" for node in path):
        return None, path
    voided = {node.payload.get("void") for node in path if node.kind == "marker"}
    position = {node.id: index for index, node in enumerate(path)}
    for index in range(len(path) - 1, -1, -1):
        node = path[index]
        if node.kind != "compaction" or node.id in voided:
            continue
        first = position.get(node.payload.get("first_kept_node_id", ""))
        if first is None or first > index or not node.payload.get("summary"):
            continue
        return node, [*path[first:index], *path[index + 1 :]]
    return None, path


def pruned(path: Sequence[Node]) -> dict[str, str]:
    """Return node id → one-line placeholder for every tool output that a prune node on the path replaced."""
    found: dict[str, str] = {}
    for node in path:
        if node.kind == "prune":
            found.update(node.payload.get("nodes", {}))
    return found


def message_of(node: Node, placeholder: str = "") -> Message | None:
    """Return the message a node stands for, or ``None`` when it is not for the model."""
    payload = node.payload
    match node.kind:
        case "user":
            return Message(role="user", text=_user_text(payload), images=_images(payload), node=node.id)
        case "assistant":
            return _assistant(node)
        case "tool":
            images = () if placeholder else _images(payload)
            text = placeholder or payload.get("output", "")
            return Message(role="tool", text=text, call_id=payload["call_id"], images=images, node=node.id)
        case "note":
            return Message(role="user", text=f"[note from the host]\n{payload.get('text', '')}", node=node.id)
        case "compaction":
            summary = payload["summary"]
            text = summary if summary.startswith(SUMMARY_MARK) else f"{SUMMARY_MARK}\n{summary}"
            return Message(role="system", text=text, node=node.id)
        case _:
            return None


def _user_text(payload: Mapping[str, Any]) -> str:
    files = [f'<file path="{item["path"]}">\n{item["text"]}\n</file>' for item in payload.get("files", ())]
    return "\n\n".join([*files, payload.get("text", "")] if payload.get("text") or not files else files)


def _images(payload: Mapping[str, Any]) -> tuple[Image, ...]:
    return tuple(Image(**image) for image in payload.get("images", ()))


def _assistant(node: Node) -> Message | None:
    payload = node.payload
    calls = tuple(_request(call) for call in payload.get("calls", ()))
    text = payload.get("text", "")
    if not text and not calls:
        return None
    return Message(role="assistant", text=text, tool_calls=calls, reasoning=payload.get("reasoning", ""), node=node.id)


def _request(call: Mapping[str, Any]) -> ToolRequest:
    """Return a stored call in a form that every provider accepts back, whatever the model had written."""
    name = call["name"] if _TOOL_NAME.match(call["name"]) else "unknown_tool"
    arguments = call.get("arguments", "")
    try:
        usable = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        usable = False
    return ToolRequest(id=call["id"], name=name, arguments=arguments if usable else "{}")


def paired(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with exactly one result right behind each call, in call order.

    A result whose call is not in view is left out; a call whose result is missing gets a sentence instead.
    """
    results = {message.call_id: message for message in messages if message.role == "tool"}
    view: list[Message] = []
    for message in messages:
        if message.role == "tool":
            continue
        view.append(message)
        view += [results.get(call.id) or _unknown(call) for call in message.tool_calls]
    return view


def _unknown(call: ToolRequest) -> Message:
    return Message(role="tool", call_id=call.id, text="interrupted: this call has no result")
