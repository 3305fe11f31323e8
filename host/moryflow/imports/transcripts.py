"""The transcripts of other systems: the calls in them, and the sessions that they become.

Claude Code writes JSON Lines whose entries name their parent, so that a rewound conversation is a tree; Codex writes a list of
events; OpenCode keeps one file for each session, message and part, or a database with the same in tables.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from moryflow.store.tables import encode, node_hash

from . import ImportPlan
from .files import jsonl, mapping

MAX_TEXT = 256 * 1024
# What other systems print in place of the result of a call that the user refused.
_REFUSED = (
    "The user doesn't want to",
    "The user rejected",
    "Permission to use",
    "rejected by user",
    "The user has specified a rule",
)
_ARGUMENTS = {
    "file_path": "path",
    "filePath": "path",
    "cmd": "command",
    "notebook_path": "path",
    "url": "url",
    "query": "query",
}


class PastCall(NamedTuple):
    """A call in a transcript: the other system's name of the tool, its arguments, and whether the user refused it."""

    tool: str
    args: Mapping[str, Any]
    folder: str
    refused: bool
    where: str
    mode: str = ""


@dataclass
class PastMessage:
    """One message of a transcript.

    :ivar role: ``user``, ``assistant`` or ``tool``.
    :ivar calls: of an assistant, (id, name, arguments) each; of a tool result, `call` is the id.
    """

    id: str
    parent: str | None
    role: str
    text: str = ""
    calls: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list[tuple[str, str, Mapping[str, Any]]])
    call: str = ""
    failed: bool = False
    created: str = ""
    mode: str = ""
    model: str = ""


@dataclass
class Transcript:
    """One conversation; `active` is its newest entry."""

    id: str
    folder: str
    title: str
    entries: list[PastMessage] = field(default_factory=list[PastMessage])
    file: str = ""


def transcripts(plan: ImportPlan) -> Iterator[Transcript]:
    """Yield every conversation of the plan. A file that cannot be read is noted in the plan."""
    for file in plan.transcripts:
        try:
            if plan.system == "claude":
                found: Iterator[Transcript] = iter([_of_claude(file)])
            elif plan.system == "codex":
                found = iter([_of_codex(file)])
            else:
                found = _of_opencode_database(file) if file.suffix == ".db" else iter([_of_opencode(file)])
            for item in found:
                if item.entries:
                    yield item
        except (OSError, ValueError, KeyError, TypeError, AttributeError, sqlite3.Error) as error:
            plan.note("sessions", file.name, "error", why=f"{type(error).__name__}: {error}", where=str(file))


def calls(transcript: Transcript) -> Iterator[PastCall]:
    """Yield the calls of a transcript in order."""
    refused = {entry.call for entry in transcript.entries if entry.role == "tool" and entry.text.startswith(_REFUSED)}
    mode = ""
    for entry in transcript.entries:
        mode = entry.mode or mode
        for name, tool, args in entry.calls:
            yield PastCall(tool, args, transcript.folder, name in refused, f"{transcript.file}", mode)


def arguments_here(tool: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with our names, as far as rules look at them."""
    found = {_ARGUMENTS.get(key, key): value for key, value in args.items()}
    if isinstance(found.get("command"), list):  # Codex: ["bash", "-lc", "make"]
        import shlex

        words = [str(word) for word in found["command"]]
        found["command"] = words[2] if len(words) == 3 and words[1] in ("-c", "-lc") else shlex.join(words)
    return found


# ---------------------------------------------------------------- the three formats


def _of_claude(file: Path) -> Transcript:
    found = Transcript(file.stem, "", "", file=str(file))
    # Of two lines with one id, which a resumed conversation has, the first counts.
    last: dict[str, str | None] = {}  # an entry that is no message → what it follows, so that its children find a message
    for line in jsonl(file):
        kind, name = line.get("type"), str(line.get("uuid") or "")
        if name and name in last:
            continue
        if kind == "summary" and isinstance(line.get("summary"), str):
            found.title = line["summary"]
        parent = last.get(above, above) if (above := line.get("parentUuid")) else None
        if kind not in ("user", "assistant") or line.get("isMeta") or line.get("isSidechain") or not name:
            last[name] = parent
            continue
        found.folder = found.folder or str(line.get("cwd") or "")
        message = mapping(line.get("message"))
        about: dict[str, Any] = {"created": str(line.get("timestamp") or ""), "mode": str(line.get("permissionMode") or "")}
        content = message.get("content")
        parts = (
            [{"type": "text", "text": content}] if isinstance(content, str) else content if isinstance(content, list) else []
        )
        made = list(_claude_parts(name, kind, list(map(mapping, parts)), about, str(message.get("model") or "")))
        for entry in made:
            entry.parent, parent = parent, entry.id
            found.entries.append(entry)
        last[name] = parent
    return found


def _claude_parts(
    name: str, kind: str, parts: list[Mapping[str, Any]], about: dict[str, Any], model: str
) -> Iterator[PastMessage]:
    """Yield the entries of one line: the results of calls one by one, then the texts and calls together."""
    for number, part in enumerate(part for part in parts if part.get("type") == "tool_result"):
        text = part.get("content")
        if isinstance(text, list):
            text = "\n".join(str(item.get("text", "")) for item in map(mapping, text))
        own = f"{name}-{number}"
        yield PastMessage(
            own, None, "tool", str(text or ""), call=str(part.get("tool_use_id")), failed=bool(part.get("is_error")), **about
        )
    text = "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    made = [(str(p.get("id")), str(p.get("name")), mapping(p.get("input"))) for p in parts if p.get("type") == "tool_use"]
    if text.strip() or made:
        yield PastMessage(name, None, kind, text, made, model=model, **about)


def _of_codex(file: Path) -> Transcript:
    found, previous = Transcript(file.stem, "", "", file=str(file)), None
    for number, line in enumerate(jsonl(file)):
        body = mapping(line.get("payload")) or line
        kind = str(body.get("type") or line.get("type"))
        if line.get("type") in ("session_meta", "turn_context"):
            found.folder = found.folder or str(body.get("cwd") or "")
            found.id = str(body.get("id") or found.id) if line["type"] == "session_meta" else found.id
            continue
        entry = _codex_entry(f"n{number}", kind, body, str(line.get("timestamp") or ""))
        if entry is not None and line.get("type") != "event_msg":
            entry.parent, previous = previous, entry.id
            found.entries.append(entry)
    return found


def _codex_entry(name: str, kind: str, body: Mapping[str, Any], created: str) -> PastMessage | None:
    if kind == "message" and body.get("role") in ("user", "assistant"):
        parts = body.get("content")
        text = "\n".join(str(part.get("text", "")) for part in map(mapping, parts if isinstance(parts, list) else []))
        return (
            None
            if not text.strip() or text.startswith("<")
            else PastMessage(name, None, str(body["role"]), text, created=created)
        )
    if kind in ("function_call", "custom_tool_call", "local_shell_call"):
        given = body.get("arguments", body.get("input", body.get("action")))
        try:
            args = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            args = {"input": given}
        tool = str(body.get("name") or "shell")
        return PastMessage(name, None, "assistant", calls=[(str(body.get("call_id")), tool, mapping(args))], created=created)
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = body.get("output")
        text = output if isinstance(output, str) else json.dumps(output)
        return PastMessage(name, None, "tool", text, call=str(body.get("call_id")), created=created)
    return None


def _of_opencode(file: Path) -> Transcript:
    storage = file.parents[2]
    about = json.loads(file.read_bytes())
    found = Transcript(str(about["id"]), str(about.get("directory") or ""), str(about.get("title") or ""), file=str(file))
    messages = sorted((storage / "message" / found.id).glob("*.json"))
    rows = [(path.stem, json.loads(path.read_bytes())) for path in messages]
    parts = {
        name: [json.loads(path.read_bytes()) for path in sorted((storage / "part" / name).glob("*.json"))] for name, _ in rows
    }
    _opencode_entries(found, rows, parts)
    return found


def _of_opencode_database(file: Path) -> Iterator[Transcript]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        for name, folder, title in database.execute("SELECT id, directory, title FROM session").fetchall():
            found = Transcript(str(name), str(folder or ""), str(title or ""), file=str(file))
            query = "SELECT id, data FROM message WHERE session_id = ? ORDER BY id"
            rows = [(str(key), json.loads(data)) for key, data in database.execute(query, (name,))]
            parts: dict[str, list[Any]] = {key: [] for key, _ in rows}
            for key, data in database.execute("SELECT message_id, data FROM part WHERE session_id = ? ORDER BY id", (name,)):
                parts.setdefault(str(key), []).append(json.loads(data))
            _opencode_entries(found, rows, parts)
            yield found


def _opencode_entries(found: Transcript, rows: list[tuple[str, Any]], parts: Mapping[str, list[Any]]) -> None:
    previous: str | None = None
    for name, message in rows:
        own = list(map(mapping, parts.get(name, [])))
        text = "\n".join(str(part.get("text", "")) for part in own if part.get("type") == "text" and not part.get("synthetic"))
        used = [part for part in own if part.get("type") == "tool"]
        made = [(str(p.get("callID")), str(p.get("tool")), mapping(mapping(p.get("state")).get("input"))) for p in used]
        if text.strip() or made:
            found.entries.append(
                PastMessage(name, previous, "user" if message.get("role") == "user" else "assistant", text, made)
            )
            previous = name
        for part, (call, _, _) in zip(used, made, strict=True):
            state = mapping(part.get("state"))
            result = str(state.get("output") or state.get("error") or "")
            failed = state.get("status") == "error"
            found.entries.append(PastMessage(f"{name}-{call}", previous, "tool", result, call=call, failed=failed))
            previous = f"{name}-{call}"


# ---------------------------------------------------------------- sessions


def session_lines(transcript: Transcript, name: str, vault: str, now: str) -> list[str]:
    """Return a transcript as the lines of an exported session, with all of its branches."""
    first = next((entry.text for entry in transcript.entries if entry.role == "user"), "")
    title = (transcript.title or " ".join(first.split()))[:80]
    nodes: list[dict[str, Any]] = []
    hashes: dict[str, str] = {}
    tools = {call: tool for entry in transcript.entries for call, tool, _ in entry.calls}
    ids = {entry.id: f"i{number:06d}" for number, entry in enumerate(transcript.entries, 1)}
    for entry in transcript.entries:
        parent = ids.get(entry.parent or "") if entry.parent in ids and ids[str(entry.parent)] in hashes else None
        payload = _payload(entry, tools)
        if payload is None:
            ids[entry.id] = parent or ""
            continue
        node = ids[entry.id]
        kind = entry.role
        digest = node_hash(hashes[parent] if parent else "", kind, encode(payload))
        hashes[node] = digest
        nodes.append({
            "type": "node", "id": node, "seq": len(nodes) + 1, "parent": parent, "kind": kind, "payload": payload,
            "tokens": len(encode(payload)) // 4, "hash": digest, "created": entry.created or now,
        })  # fmt: skip
    header = {
        "type": "session", "format": 1, "id": name, "title": title, "vault": vault, "agent": "build", "model": "",
        "mode": "agent", "purpose": "main", "parent": None, "origin": None, "grants": [],
        "active": nodes[-1]["id"] if nodes else None,
        "created": nodes[0]["created"] if nodes else now, "updated": nodes[-1]["created"] if nodes else now,
    }  # fmt: skip
    return [encode(line) for line in (header, *nodes, {"type": "end", "lines": len(nodes) + 2})]


def _payload(entry: PastMessage, tools: Mapping[str, str]) -> dict[str, Any] | None:
    text = entry.text.replace("\0", "")[:MAX_TEXT].encode("utf-8", "replace").decode()
    if entry.role == "user":
        return {"text": text} if text.strip() else None
    if entry.role == "tool":
        if entry.call not in tools:
            return None
        status = "error" if entry.failed else "ok"
        return {"call_id": entry.call, "tool": tools[entry.call], "status": status, "output": text, "title": tools[entry.call]}
    calls = [{"id": call, "name": tool, "arguments": json.dumps(dict(args))} for call, tool, args in entry.calls]
    usage = {"cached": 0, "input": 0, "output": 0, "reasoning": 0}
    return {"calls": calls, "finish": "tool_calls" if calls else "stop", "model": entry.model, "text": text, "usage": usage}
