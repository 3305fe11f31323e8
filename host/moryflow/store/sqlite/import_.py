"""Check the lines of an exported session and of those it started, then store all of them or none.

What a file from elsewhere must not bring along is kept for the next export but has no effect: its mode, its grants, what
started it and a parent that is not in the file (``held_back``), and its answers and file names (``imported``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moryflow_sdk import Artifact, Event
from pydantic import ValidationError

from moryflow.store.errors import StoreError, invalid
from moryflow.store.json_text import decode, encode, has_its_arguments, node_hash, random_id
from moryflow.store.payloads import counts, payload_problem
from moryflow.store.records import CALL_STATES, KINDS, SessionRow, is_session_id

from .export import FORMAT, TABLES
from .queries import session_row
from .statements import insert_session
from .tables import SESSIONS, execute

_DEFAULTS: dict[str, Any] = {"mode": "agent", "grants": ()}
_DEEPEST = 32
"""How deep sessions of a file may nest; no host makes deeper ones."""
_IMPORTED = frozenset({"approval", "artifact"})
_SHAPES: dict[str, dict[str, type]] = {
    "event": {"name": str, "ts": str, "body": dict},
    "plugin_state": {"plugin": str, "scope": str, "value": object},
    "end": {"lines": int},
}


@dataclass(frozen=True)
class Line:
    """A line that was checked: its number, its kind, its fields."""

    number: int
    kind: str
    fields: dict[str, Any]


@dataclass
class _Seen:
    """What the lines of a session so far have established; `first` is the number of its first one."""

    first: int = 1
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    seq: int = 0


def read_lines(lines: Iterable[str | bytes]) -> list[list[Line]]:
    """Return the checked lines of an export, those of each session together.

    :raises StoreError: ``invalid``, with the number of the first line that is wrong.
    """
    seen, blocks = _Seen(), list[list[Line]]()
    depths: dict[str, int] = {}
    for number, kind, fields in _parsed(lines):
        begins = not blocks or blocks[-1][-1].kind == "end"
        if begins and blocks and len(blocks) > blocks[0][-1].fields.get("sessions", 0):
            raise _wrong(number, "there is more after the last line")
        if (kind == "session") != begins:
            raise _wrong(number, "an export begins with one line of type 'session'")
        if begins:
            seen = _Seen(first=number)
            blocks.append([])
        blocks[-1].append(Line(number, kind, _checked(number, kind, fields, seen)))
        if begins:
            _check_place(number, fields, depths)
        elif kind == "end":
            _check_active(blocks[-1][0], seen)
    _check_end(blocks)
    return blocks


def _check_place(number: int, fields: dict[str, Any], depths: dict[str, int]) -> None:
    """Check that a session is there once, and behind the one that started it."""
    session, parent = fields["id"], fields["parent"]
    if session in depths:
        raise _wrong(number, f"session {session!r} is there twice")
    if depths and parent not in depths:
        raise _wrong(number, f"session {session!r} was started by {parent!r}, which does not come before it")
    depths[session] = depths.get(parent, -1) + 1
    if depths[session] > _DEEPEST:
        raise _wrong(number, f"sessions nest more than {_DEEPEST} deep")


def _check_active(header: Line, seen: _Seen) -> None:
    active = header.fields["active"]
    if active is not None and active not in seen.hashes:
        raise _wrong(header.number, f"the active node {active!r} is not in the file")


def _check_end(blocks: list[list[Line]]) -> None:
    if not blocks:
        raise invalid("there is nothing to import", next_step="moryflow session export ID > FILE makes such a file")
    last = blocks[-1][-1]
    if last.kind != "end":
        raise _wrong(last.number, "the file ends early: its closing line is missing")
    missing = blocks[0][-1].fields.get("sessions", 0) - (len(blocks) - 1)
    if missing:
        raise _wrong(last.number, f"the file ends early: {missing} of its sessions are missing")


def _parsed(lines: Iterable[str | bytes]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    number, source = 0, iter(lines)
    while True:
        number += 1
        try:
            line = next(source)
            value = decode(line.decode() if isinstance(line, bytes) else line) if line.strip() else None
        except StopIteration:
            return
        except (ValueError, RecursionError) as error:
            raise _wrong(number, f"this is not JSON ({error})") from error
        if value is None:
            continue
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise _wrong(number, "a line is an object with a 'type'")
        fields = dict(value)
        yield number, fields.pop("type"), fields


def _checked(number: int, kind: str, fields: dict[str, Any], seen: _Seen) -> dict[str, Any]:
    """Return the fields of one line, or raise the sentence that says what is wrong with it."""
    if kind == "session":
        return _checked_header(number, fields)
    if kind in TABLES:
        problem = TABLES[kind].problem({**fields, "session": ""})
    elif kind in _SHAPES:
        more = {"sessions": int} if kind == "end" and "sessions" in fields else {}
        problem = _shape_problem(fields, {**_SHAPES[kind], **more})
    else:
        problem = f"there is no record of type {kind!r}"
    if problem:
        raise _wrong(number, problem)
    match kind:
        case "end" if fields["lines"] != number - seen.first + 1:
            raise _wrong(number, f"{fields['lines']} lines were exported, {number - seen.first + 1} are here")
        case "call" if fields["state"] not in CALL_STATES:
            raise _wrong(number, f"there is no call state {fields['state']!r}")
        case "call" if not has_its_arguments(fields["args"], fields["hash"]):
            raise _wrong(number, f"the arguments of call {fields['id']!r} do not match their hash")
        case "run" if not counts(fields["usage"]):
            raise _wrong(number, "'usage' must hold whole numbers")
        case "node":
            _check_node(number, fields, seen)
        case "event" | "artifact":
            _check_value(number, kind, fields)
    return fields


def _checked_header(number: int, fields: dict[str, Any]) -> dict[str, Any]:
    if fields.pop("format", None) != FORMAT:
        message = "this export has a format that this Moryflow does not know"
        raise StoreError(f"line {number}: {message}", code="newer", next_step="`python -m pip install -U moryflow`")
    problem = SESSIONS.problem({**fields, "epoch": 0})
    if problem:
        raise _wrong(number, problem)
    if not is_session_id(fields["id"]):
        raise _wrong(number, f"{fields['id']!r} cannot be the id of a session")
    if not all(isinstance(grant, dict) for grant in fields["grants"]):
        raise _wrong(number, "'grants' must hold objects")
    return fields


def _shape_problem(fields: dict[str, Any], shape: dict[str, type]) -> str:
    for name in sorted(shape.keys() ^ fields.keys()):
        return f"the field {name!r} is missing" if name in shape else f"there is no field {name!r}"
    wrong = (name for name, kind in shape.items() if not isinstance(fields[name], kind))
    return next((f"the field {name!r} must be {shape[name].__name__}" for name in wrong), "")


def _check_value(number: int, kind: str, fields: dict[str, Any]) -> None:
    try:
        if kind == "event":
            Event(type=fields["name"], session="", ts=fields["ts"], **fields["body"])
        else:
            Artifact(session="", **fields)
    except (ValidationError, TypeError) as error:
        raise _wrong(number, f"this is not an {kind}") from error


def _check_node(number: int, fields: dict[str, Any], seen: _Seen) -> None:
    node, parent = fields["id"], fields["parent"]
    if not node or not node.isascii() or not node.isprintable() or node in seen.hashes:
        raise _wrong(number, f"the node id {node!r} is not new, or not printable ASCII")
    if parent is not None and parent not in seen.hashes:
        raise _wrong(number, f"the parent {parent!r} does not come before its child")
    if fields["kind"] not in KINDS:
        raise _wrong(number, f"there is no node kind {fields['kind']!r}")
    if fields["seq"] <= seen.seq:
        raise _wrong(number, "the nodes are not in the order of their 'seq'")
    above = seen.hashes[parent] if parent else ""
    if node_hash(above, fields["kind"], encode(fields["payload"])) != fields["hash"]:
        raise _wrong(number, f"the content of node {node!r} does not match its hash")
    if problem := payload_problem(fields["kind"], fields["payload"]):
        raise _wrong(number, f"node {node!r}: {problem}")
    seen.hashes[node], seen.seq = fields["hash"], fields["seq"]


def _wrong(number: int, problem: str) -> StoreError:
    next_step = "moryflow session export ID -o FILE, where it comes from, makes a whole one"
    return invalid(f"line {number}: {problem}; nothing was imported", next_step=next_step)


def store_lines(connection: sqlite3.Connection, blocks: Iterable[Sequence[Line]]) -> SessionRow:
    """Store checked lines as sessions and return the first; each gets a new id where its own is taken."""
    names: dict[str, str] = {}
    for header, *records in blocks:
        session = names[header.fields["id"]] = _insert_header(connection, header.fields, names)
        for line in records:
            try:
                _insert(connection, session, line)
            except sqlite3.IntegrityError as error:
                raise _wrong(line.number, f"this record is there twice ({error})") from error
    return session_row(connection, next(iter(names.values())))


def _insert_header(connection: sqlite3.Connection, fields: dict[str, Any], names: Mapping[str, str]) -> str:
    """Store a session's own row.

    :param names: the ids that the sessions of the file have here. One under a new id says which it was, for what was
        written in its parent names it so.
    """
    taken = execute(connection, "SELECT 1 FROM sessions WHERE id = ?", (fields["id"],)).fetchone()
    session = random_id() if taken else fields["id"]
    changed = {**_DEFAULTS, "origin": {"session": fields["id"], "imported": True} if taken else _harmless(fields["origin"])}
    parent = names.get(fields["parent"])
    if parent is None and fields["parent"] is not None:
        changed |= {"parent": None, "purpose": "main"}
    held_back = {name: fields[name] for name, value in changed.items() if fields[name] != value}
    kept = {**fields, **changed, "id": session}
    insert_session(connection, SessionRow(**(kept if parent is None else {**kept, "parent": parent})))
    if held_back:
        execute(connection, "UPDATE sessions SET held_back = ? WHERE id = ?", (encode(held_back), session))
    return session


def _harmless(origin: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return where a session comes from, unless that would say what it may do."""
    return None if "spawn" in (origin or {}) else origin


def _insert(connection: sqlite3.Connection, session: str, line: Line) -> None:
    match line.kind:
        case "end":
            return
        case "event":
            columns = {"type": line.fields["name"], "ts": line.fields["ts"], "body": encode(line.fields["body"])}
            _insert_row(connection, "events", {"session": session, **columns})
        case "plugin_state":
            value = encode(line.fields["value"])
            _insert_row(connection, "plugin_state", {"session": session, **line.fields, "value": value})
        case kind:
            table = TABLES[kind]
            columns = {k: encode(v) if k in table.json and v is not None else v for k, v in line.fields.items()}
            marks = {"imported": 1} if kind in _IMPORTED else {}
            _insert_row(connection, table.name, {"session": session, **columns, **marks})


def _insert_row(connection: sqlite3.Connection, table: str, columns: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(columns))
    execute(connection, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", list(columns.values()))
