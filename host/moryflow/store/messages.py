"""Turns the active path into the messages of a request, as a pure function.

Prunes and compactions are nodes on the path; they change this view, never the history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Message, ToolRequest
from moryflow_sdk.models import SUMMARY_MARKS

from moryflow.store.records import effective

if TYPE_CHECKING:
    from moryflow.store import Node

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class ContextBuilder:
    """Builds the view and caches it: while the path only grows, only new nodes are converted, and a message keeps its
    encoded bytes. The cache never changes the result, because nodes are immutable."""

    def __init__(self) -> None:
        self._messages: dict[str, Message | None] = {}
        self._placeholders: Mapping[str, str] = {}
        self._settled: list[Message] = []
        self._until = 0
        self._last: Node | None = None

    def build(self, path: Sequence[Node]) -> list[Message]:
        """Return the messages for `path`, root first, without the system prompt."""
        fresh = self._unsettled_nodes(path)
        if fresh is None:
            return self._rebuild(path)
        # Pair again from the last settled place on: the results of the newest calls may only now have come.
        recent = pair_results([m for m in (self.message(node) for node in fresh) if m is not None])
        view = [*self._settled, *recent]
        self._settle(path, view, len(self._settled))
        return view

    def message(self, node: Node, placeholder: str = "") -> Message | None:
        """Return the message of one node; the form that the view uses is made only once."""
        if placeholder != self._placeholders.get(node.id, ""):
            return message_of(node, placeholder)
        if node.id not in self._messages:
            self._messages[node.id] = message_of(node, placeholder)
        return self._messages[node.id]

    def _rebuild(self, path: Sequence[Node]) -> list[Message]:
        head, visible = effective(path)
        shown = [node for node in visible if node.kind != "compaction"]
        if head is not None:
            shown.insert(0, head)
        known, before, now = self._messages, self._placeholders, placeholders(path)
        made = [
            known[id] if (id := node.id) in known and before.get(id) == now.get(id) else message_of(node, now.get(id, ""))
            for node in shown
        ]
        view = begin_with_prompt(pair_results([message for message in made if message is not None]))
        self._messages = {node.id: message for node, message in zip(shown, made, strict=True)}
        self._settled, self._until, self._placeholders = [], 0, now
        self._settle(path, view, 0)
        return view

    def _unsettled_nodes(self, path: Sequence[Node]) -> Sequence[Node] | None:
        """Return the nodes after the settled ones, or ``None`` if the whole view must be rebuilt."""
        last = self._last
        if last is None or not self._until:
            return None
        if len(path) < self._until or path[self._until - 1] is not last:
            return None
        fresh = path[self._until :]
        calls = {call["id"] for node in fresh if node.kind == "assistant" for call in node.payload.get("calls", ())}
        for node in fresh:
            if node.kind in ("compaction", "prune") or node.voids:
                return None
            if node.kind == "tool" and node.payload["call_id"] not in calls:
                return None
        return fresh

    def _settle(self, path: Sequence[Node], view: Sequence[Message], known: int) -> None:
        """Remember the view before the last prompt or answer; messages from there on may still change."""
        place = next((index for index in range(len(view) - 1, known - 1, -1) if view[index].role != "tool"), None)
        if place is None:
            return
        node = view[place].node
        until = next((index for index in range(len(path) - 1, -1, -1) if path[index].id == node), 0)
        if until and all(item.kind != "compaction" for item in path[until:]):
            self._settled, self._until, self._last = list(view[:place]), until, path[until - 1]


def placeholders(path: Sequence[Node]) -> dict[str, str]:
    """Return node id → the text that replaces the content which prune nodes removed: outputs, images of a prompt, old texts.

    A prune node applies only to nodes before it.
    """
    found: dict[str, str] = {}
    if not any(node.kind == "prune" for node in path):
        return found
    passed: set[str] = set()
    for node in path:
        if node.kind == "prune":
            found.update({id: line for id, line in node.payload.get("nodes", {}).items() if id in passed})
        passed.add(node.id)
    return found


def message_of(node: Node, placeholder: str = "") -> Message | None:
    """Return the message of a node, or ``None`` if the model does not see it."""
    make = _MESSAGES.get(node.kind)
    return make(node, placeholder) if make is not None else None


def _user(node: Node, placeholder: str) -> Message:
    payload = node.payload
    text = with_files(payload) if payload.get("files") else payload.get("text", "")
    if placeholder:
        text = f"{text}\n{placeholder}".lstrip("\n") if payload.get("images") else placeholder
    elif payload.get("images"):
        return Message(role="user", text=text, node=node.id, images=payload["images"])
    return Message(role="user", text=text, node=node.id)


def with_files(payload: Mapping[str, Any]) -> str:
    """Return a prompt with its attached files, as the model reads it."""
    files = [f'<file path="{item["path"]}">\n{item["text"]}\n</file>' for item in payload.get("files", ())]
    return "\n\n".join([*files, payload.get("text", "")] if payload.get("text") or not files else files)


def _assistant(node: Node, placeholder: str) -> Message | None:
    payload = node.payload
    text, calls = placeholder or payload.get("text", ""), payload.get("calls")
    if not (text or calls):
        return None
    fields: dict[str, Any] = {"role": "assistant", "text": text, "node": node.id}
    if calls:
        fields["tool_calls"] = [_request(call) for call in calls]
    fields |= {name: payload[name] for name in ("reasoning", "extra", "origin") if payload.get(name)}
    return Message(**fields)


def _tool(node: Node, placeholder: str) -> Message:
    payload = node.payload
    text, call = placeholder or payload.get("output", ""), payload["call_id"]
    if payload.get("images") and not placeholder:
        return Message(role="tool", text=text, call_id=call, node=node.id, images=payload["images"])
    return Message(role="tool", text=text, call_id=call, node=node.id)


def _note(node: Node, placeholder: str) -> Message:
    return Message(role="user", text=f"[note from the host]\n{node.payload.get('text', '')}", node=node.id)


def _summary(node: Node, placeholder: str) -> Message:
    summary = node.payload["summary"]
    text = summary if summary.startswith(tuple(SUMMARY_MARKS.values())) else f"{SUMMARY_MARKS['en']}\n{summary}"
    return Message(role="system", text=text, node=node.id)


_MESSAGES: Mapping[str, Callable[[Node, str], Message | None]] = {
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
    "note": _note,
    "compaction": _summary,
}


def _request(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored call in a form that every provider accepts, even if the model wrote an invalid name or arguments."""
    name = call["name"] if _TOOL_NAME.match(call["name"]) else "unknown_tool"
    arguments = call.get("arguments", "")
    made = {"id": call["id"], "name": name, "arguments": arguments if _is_object(arguments) else "{}"}
    return {**made, "extra": call["extra"]} if call.get("extra") else made


def _is_object(text: str) -> bool:
    """Return whether `text` is a JSON object. pydantic's parser is five times faster, but takes 14 ms to import."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def pair_results(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with exactly one result for each call, right after the answer that made it, in call order.

    A result whose call is not in the view is left out; a call without a result gets a sentence instead.
    """
    if _in_order(messages):
        return list(messages)
    results = {message.call_id: message for message in messages if message.role == "tool"}
    view: list[Message] = []
    for message in messages:
        if message.role == "tool":
            continue
        view.append(message)
        view += [results.get(call.id) or _missing_result(call) for call in message.tool_calls]
    return view


def begin_with_prompt(messages: list[Message]) -> list[Message]:
    """Return `messages` beginning with a user message after the summary: providers refuse one that begins with an answer."""
    place = next((place for place, message in enumerate(messages) if message.role != "system"), None)
    if place is None or messages[place].role == "user":
        return messages
    return [
        *messages[:place],
        Message(role="user", text="[note from the host]\nThe conversation goes on below."),
        *messages[place:],
    ]


def _in_order(messages: Sequence[Message]) -> bool:
    """Return whether each call is followed by its results in order; it nearly always is."""
    calls: tuple[ToolRequest, ...] = ()
    answered = 0
    for message in messages:
        if message.role != "tool":
            if answered != len(calls):
                return False
            calls, answered = message.tool_calls, 0
        elif answered < len(calls) and calls[answered].id == message.call_id:
            answered += 1
        else:
            return False
    return answered == len(calls)


def _missing_result(call: ToolRequest) -> Message:
    return Message(role="tool", call_id=call.id, text="interrupted: this call has no result")
