"""Turns events and stored nodes into ``session/update`` messages for an editor: texts, and calls with title, places, diffs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Event, thaw
from moryflow_sdk.support.own_files import open_regular
from moryflow_sdk.support.texts import visible

if TYPE_CHECKING:
    from moryflow.runtime.session import Session
    from moryflow.store import Node


# The most characters of a call's title.
TITLE = 120
# The most bytes of a file whose texts before and after a change are sent.
MAX_FILE = 1 << 20

# The protocol's kind of a call, by the domain of its tool.
_KINDS = {
    "read": "read", "edit": "edit", "bash": "execute", "web_fetch": "fetch", "web_search": "search", "task": "think",
}  # fmt: skip
# The kind of calls whose tool's domain does not tell it, by the tool's name.
_OTHER_KINDS = {"delete": "delete", "move": "move", "glob": "search", "grep": "search", "search_in_file": "search"}


def kind_of(tool: str, domain: str) -> str:
    return _OTHER_KINDS.get(tool) or _KINDS.get(domain, "other")


def title_of(tool: str, args: Any) -> str:
    """Return a call in one line: the tool and its most telling argument."""
    values = (args.get("path"), args.get("command"), *args.values()) if isinstance(args, Mapping) else (args,)
    about = next((str(value) for value in values if isinstance(value, str) and value.strip()), "")
    line = visible(f"{tool} {about.strip().partition(chr(10))[0]}".strip())
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"


def path_of(target: str, vault: Path) -> Path | None:
    """Return the path of a target's text, or ``None`` if the target is not a file."""
    kind, _, rest = target.partition(":")
    if kind == "vault":
        return vault / rest.lstrip("/")
    return Path(rest) if kind == "fs" else None


def places_of(targets: Sequence[str], vault: Path, args: Any) -> list[dict[str, Any]]:
    """Return the files, with a line if it is known, that a call works on."""
    paths = [path for target in targets if (path := path_of(target, vault)) is not None]
    line = args.get("offset") if isinstance(args, Mapping) and len(paths) == 1 else None
    more = {"line": line} if isinstance(line, int) and line > 0 else {}
    return [{"path": str(path), **more} for path in paths]


def text_block(text: str) -> dict[str, Any]:
    """Return a text as a content block of a call."""
    return {"type": "content", "content": {"type": "text", "text": text}}


def fenced(text: str, language: str = "") -> dict[str, Any]:
    """Return a text inside a fence, so that editors do not read it as Markdown, with invisible characters escaped."""
    longest = max((len(found) for found in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return text_block(f"{fence}{language}\n{visible(text, keep=chr(10) + chr(9))}\n{fence}")


def difference(path: Path, old: str | None, new: str) -> dict[str, Any]:
    """Return a diff block with a file's text before and after."""
    before = {} if old is None else {"oldText": old}
    return {"type": "diff", "path": str(path), **before, "newText": new}


def content_of(path: Path) -> str | None:
    """Return the text of a file, or ``None`` if it is missing, not a regular file, not text, or too large."""
    try:
        with open_regular(path, follow=False) as file:
            data = file.read(MAX_FILE + 1)
        return data.decode("utf-8") if len(data) <= MAX_FILE else None
    except (OSError, ValueError):
        return None


# Seconds between two updates of a running tool's output; each update sends all of it.
LIVE_SECONDS = 0.25
# How many characters, from the end of that output, are sent.
LIVE_CHARACTERS = 8_000
Update = dict[str, Any]


def chunk(kind: str, text: str, message: str = "") -> Update:
    """Return an update with a piece of a message."""
    named = {"messageId": message} if message else {}
    return {"sessionUpdate": f"{kind}_chunk", "content": {"type": "text", "text": text}, **named}


class RunningCall:
    """A call without a result: its title, the texts of its files before it, and its output so far."""

    def __init__(self, title: str = "", before: Mapping[Path, str | None] | None = None) -> None:
        self.title, self.before = title, before or {}
        self.shown = ""
        self.sent = 0.0


class UpdateMapper:
    """Sends an editor the updates of one session and its sub-agents.

    :param send: sends an update.
    :param domain: returns the domain of a tool.
    """

    def __init__(self, session: Session, send: Callable[[Update], None], domain: Callable[[str], str]) -> None:
        self._session, self._send, self._domain = session, send, domain
        self._vault = Path(session.row.vault)
        self._calls: dict[str, RunningCall] = {}

    def __call__(self, event: Event) -> None:
        """Send the updates for an event; of a sub-agent, only its calls are sent."""
        own, data = event.session == self._session.id, event.data
        match event.type:
            case "text.delta" if own:
                self._send(chunk("agent_message", data["text"], data["message_id"]))
            case "reasoning.delta" if own:
                self._send(chunk("agent_thought", data["text"], data["message_id"]))
            case "tool.start":
                self._on_start(event, "" if own else f"{event.agent}: ")
            case "tool.delta":
                self._show(data["call_id"], data["text"])
            case "tool.result":
                self._on_result(data)
            case _:
                pass

    # ---------------------------------------------------------------- calls

    def _on_start(self, event: Event, whose: str) -> None:
        data, call = event.data, event.data["call_id"]
        args = thaw(data["args"])
        title = f"{whose}{title_of(data['tool'], args)}"
        if data["state"] == "pending" or call not in self._calls:
            self._calls[call] = RunningCall(title)
            self._send({"sessionUpdate": "tool_call", **self._new_call(call, data["tool"], args, whose)})
        if data["state"] == "running":
            targets = data.get("targets", ())
            edits = data.get("domain") == "edit"
            paths = [path for target in targets if edits and (path := path_of(target, self._vault)) is not None]
            self._calls[call] = RunningCall(title, {path: content_of(path) for path in paths})
            places = places_of(targets, self._vault, args)
            shown = {"status": "in_progress", **({"locations": places} if places else {})}
            self._send({"sessionUpdate": "tool_call_update", "toolCallId": call, **shown})

    def _new_call(self, call: str, tool: str, args: Any, whose: str = "") -> Update:
        about = {"kind": kind_of(tool, self._domain(tool)), "status": "pending", "rawInput": args}
        return {"toolCallId": call, "title": f"{whose}{title_of(tool, args)}", **about}

    def _show(self, call: str, text: str) -> None:
        running = self._calls.get(call)
        if running is None:
            return
        running.shown = (running.shown + text)[-LIVE_CHARACTERS:]
        if time.monotonic() - running.sent >= LIVE_SECONDS:
            running.sent = time.monotonic()
            self._send({"sessionUpdate": "tool_call_update", "toolCallId": call, "content": [fenced(running.shown)]})

    def _on_result(self, data: Mapping[str, Any]) -> None:
        call = data["call_id"]
        running = self._calls.pop(call, RunningCall())
        status = "completed" if data["status"] == "ok" else "failed"
        changed = [
            difference(path, before, after or "")
            for path, before in running.before.items()
            if status == "completed" and (after := content_of(path)) != before
        ]
        output = str(data.get("output") or "")
        content = changed or ([fenced(output)] if output.strip() else [])
        update = {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status, "content": content}
        if title := self._title_after(data, running.title):
            update["title"] = title
        self._send(update)

    def _title_after(self, result: Mapping[str, Any], title: str) -> str:
        """Return the title of a finished call: the one the tool gives, or for a shell command the command and how it failed."""
        said = str(result.get("title") or "")
        if not title or not said or self._domain(str(result.get("tool"))) != "bash":
            return said
        return title if said == "exit code 0" else f"{title} ({said})"

    # ---------------------------------------------------------------- replay

    def replay(self, path: Sequence[Node]) -> Iterator[Update]:
        """Yield the updates for the nodes of `path`, oldest first; a call without a result is shown as failed."""
        results = {node.payload["call_id"]: node.payload for node in path if node.kind == "tool"}
        for node in path:
            match node.kind:
                case "user":
                    yield from self._prompt(node)
                case "assistant":
                    yield from self._answer(node, results)
                case _:
                    pass

    def _prompt(self, node: Node) -> Iterator[Update]:
        yield chunk("user_message", str(node.payload.get("text") or ""), node.id)
        for image in node.payload.get("images", ()):
            shown = {"type": "image", "data": image["data"], "mimeType": image["media_type"]}
            yield {"sessionUpdate": "user_message_chunk", "content": shown, "messageId": node.id}

    def _answer(self, node: Node, results: Mapping[str, Mapping[str, Any]]) -> Iterator[Update]:
        if thought := node.payload.get("reasoning"):
            yield chunk("agent_thought", str(thought), f"{node.id}-thought")
        if text := node.payload.get("text"):
            yield chunk("agent_message", str(text), node.id)
        for call in node.payload.get("calls", ()):
            result = results.get(call["id"], {})
            output = str(result.get("output") or "")
            status = "completed" if result.get("status") == "ok" else "failed"
            made = self._new_call(call["id"], call["name"], _arguments(call))
            title = {"title": said} if result and (said := self._title_after(result, made["title"])) else {}
            diff = (result.get("metadata") or {}).get("diff")
            content = [fenced(diff, "diff")] if isinstance(diff, str) else [fenced(output)] if output.strip() else []
            yield {"sessionUpdate": "tool_call", **made, **title, "status": status, "content": content}


def _arguments(call: Mapping[str, Any]) -> Any:
    try:
        return json.loads(call["arguments"])
    except (ValueError, RecursionError):
        return str(call["arguments"])
