"""A session and its child sessions as JSON Lines, complete: exporting an imported session gives the same bytes.

Each session is a block: the first line is the session, the last line counts the lines; between them are all nodes of all
branches and the records beside them. The blocks of child sessions follow, each after its parent; the last line of the first
block says how many. `epoch` and event numbers are not exported: they belong to the database, not to the session.

An import checks all lines, then stores all of them or none. Values that must not take effect from a foreign file are kept
only for the next export: folder, mode, grants, origin, a missing parent (``held_back``), answers, file names (``imported``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from moryflow_sdk import Artifact, Event, ValidationError

from .messages import message_of
from .protocol import StoreError, invalid
from .queries import call_of, descendants, each_hook_call, nodes_of, session_row
from .records import CALL_STATES, KINDS, Node, SessionRow, is_session_id
from .statements import insert_session
from .tables import (
    APPROVALS,
    ARTIFACTS,
    CALLS,
    HOOK_CALLS,
    NODES,
    RUNS,
    SESSIONS,
    SqlConnection,
    TableSpec,
    decode,
    decode_stored,
    encode,
    execute,
    has_its_arguments,
    node_hash,
    random_id,
    text,
)

FORMAT = 1
TABLES: dict[str, TableSpec[Any]] = {
    "node": NODES, "run": RUNS, "call": CALLS, "approval": APPROVALS, "hook_call": HOOK_CALLS, "artifact": ARTIFACTS,
}  # fmt: skip
_BREAKS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def export_lines(connection: SqlConnection, session: str) -> Iterator[str]:
    """Yield the lines of a session and of the sessions below it, without their newlines."""
    root, *below = descendants(connection, session)
    yield from _block(connection, root, {"sessions": len(below)} if below else {})
    for child in below:
        yield from _block(connection, child, {})


def _block(connection: SqlConnection, session: str, about: Mapping[str, int]) -> Iterator[str]:
    lines = 0
    for value in _values(connection, session):
        lines += 1
        # Some programs that read the file end a line at these characters too.
        yield encode(value).translate(_BREAKS)
    yield encode({"type": "end", "lines": lines + 1, **about})


def _values(connection: SqlConnection, session: str) -> Iterator[dict[str, Any]]:
    yield _header(connection, session)
    for node in nodes_of(connection, session):
        yield {"type": "node", **{name: getattr(node, name) for name in NODES.columns if name != "session"}}
    for kind, table in TABLES.items():
        if table is NODES:
            continue
        for row in execute(connection, f"{table.select} WHERE session = ? ORDER BY number", (session,)):
            for fields in _records(table, row):
                del fields["session"]
                yield {"type": kind, **fields}
    for row in execute(connection, "SELECT type, ts, body FROM events WHERE session = ? ORDER BY seq", (session,)):
        yield {"type": "event", "name": text(row[0]), "ts": text(row[1]), "body": decode_stored(row[2])}
    statement = "SELECT plugin, scope, value FROM plugin_state WHERE session = ? ORDER BY number"
    for row in execute(connection, statement, (session,)):
        yield {"type": "plugin_state", "plugin": text(row[0]), "scope": text(row[1]), "value": decode_stored(row[2])}


def _records(table: TableSpec[Any], row: Sequence[Any]) -> list[dict[str, Any]]:
    if table is CALLS:
        return [call_of(row)._asdict()]
    if table is HOOK_CALLS:
        return [{name: value for name, value in each._asdict().items() if name != "input"} for each in each_hook_call(row)]
    return [table.fields(row)]


def _header(connection: SqlConnection, session: str) -> dict[str, Any]:
    row = session_row(connection, session)
    fields = {name: getattr(row, name) for name in SESSIONS.columns if name != "epoch"}
    held_back = execute(connection, "SELECT held_back FROM sessions WHERE id = ?", (session,)).fetchone()[0]
    return {"type": "session", "format": FORMAT, **fields, **(decode_stored(held_back) if held_back else {})}


_DEFAULTS: dict[str, Any] = {"mode": "agent", "grants": ()}
# How deep the sessions of a file may nest; no host nests them deeper.
_DEEPEST = 32
_IMPORTED = frozenset({"approval", "artifact"})
_SHAPES: dict[str, dict[str, type]] = {
    "event": {"name": str, "ts": str, "body": dict},
    "plugin_state": {"plugin": str, "scope": str, "value": object},
    "end": {"lines": int},
}


@dataclass(frozen=True)
class ExportedLine:
    """A checked line: its number, its kind, its fields."""

    number: int
    kind: str
    fields: dict[str, Any]


@dataclass
class _BlockState:
    """What the lines of a session read so far contain: node hashes and the last `seq`; `first` is its first line's number."""

    first: int = 1
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    seq: int = 0


def read_lines(lines: Iterable[str | bytes]) -> list[list[ExportedLine]]:
    """Return the checked lines of an export, one list for each session.

    :raises StoreError: ``invalid``, with the number of the first wrong line.
    """
    seen, blocks = _BlockState(), list[list[ExportedLine]]()
    depths: dict[str, int] = {}
    for number, kind, fields in _parsed_lines(lines):
        begins = not blocks or blocks[-1][-1].kind == "end"
        if begins and blocks and len(blocks) > blocks[0][-1].fields.get("sessions", 0):
            raise _line_error(number, "the file continues after its last line")
        if (kind == "session") != begins:
            raise _line_error(number, "an export begins with one line of type 'session'")
        if begins:
            seen = _BlockState(first=number)
            blocks.append([])
        blocks[-1].append(ExportedLine(number, kind, _checked_fields(number, kind, fields, seen)))
        if begins:
            _check_place(number, fields, depths)
        elif kind == "end":
            _check_active(blocks[-1][0], seen)
    _check_end(blocks)
    return blocks


def _check_place(number: int, fields: dict[str, Any], depths: dict[str, int]) -> None:
    """Check that a session occurs once, after the session that started it, and not nested too deeply."""
    session, parent = fields["id"], fields["parent"]
    if session in depths:
        raise _line_error(number, f"session {session!r} appears twice")
    if depths and parent not in depths:
        raise _line_error(number, f"session {session!r} was started by {parent!r}, which does not come before it")
    depths[session] = depths.get(parent, -1) + 1
    if depths[session] > _DEEPEST:
        raise _line_error(number, f"sessions nest more than {_DEEPEST} deep")


def _check_active(header: ExportedLine, seen: _BlockState) -> None:
    active = header.fields["active"]
    if active is not None and active not in seen.hashes:
        raise _line_error(header.number, f"the active node {active!r} is not in the file")


def _check_end(blocks: list[list[ExportedLine]]) -> None:
    if not blocks:
        raise invalid("there is nothing to import", next_step="moryflow session export ID > FILE makes such a file")
    last = blocks[-1][-1]
    if last.kind != "end":
        raise _line_error(last.number, "the file ends early: its closing line is missing")
    missing = blocks[0][-1].fields.get("sessions", 0) - (len(blocks) - 1)
    if missing:
        raise _line_error(last.number, f"the file ends early: {missing} of its sessions are missing")


def _parsed_lines(lines: Iterable[str | bytes]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    number, source = 0, iter(lines)
    while True:
        number += 1
        try:
            line = next(source)
            value = decode(line.decode() if isinstance(line, bytes) else line) if line.strip() else None
        except StopIteration:
            return
        except (ValueError, RecursionError) as error:
            raise _line_error(number, f"this is not JSON ({error})") from error
        if value is None:
            continue
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise _line_error(number, "a line is an object with a 'type'")
        fields = dict(value)
        yield number, fields.pop("type"), fields


def _checked_fields(number: int, kind: str, fields: dict[str, Any], seen: _BlockState) -> dict[str, Any]:
    if kind == "session":
        return _checked_header(number, fields)
    if kind in TABLES:
        if kind == "hook_call":
            fields["input"] = None  # inputs are not exported
        problem = TABLES[kind].problem({**fields, "session": ""})
        if kind == "hook_call" and not problem and not fields["hook"]:
            problem = "the field 'hook' is empty"
    elif kind in _SHAPES:
        more = {"sessions": int} if kind == "end" and "sessions" in fields else {}
        problem = _shape_problem(fields, {**_SHAPES[kind], **more})
    else:
        problem = f"there is no record of type {kind!r}"
    if problem:
        raise _line_error(number, problem)
    match kind:
        case "end" if fields["lines"] != number - seen.first + 1:
            raise _line_error(number, f"{fields['lines']} lines were exported, {number - seen.first + 1} are here")
        case "call" if fields["state"] not in CALL_STATES:
            raise _line_error(number, f"there is no call state {fields['state']!r}")
        case "call" if not has_its_arguments(fields["args"], fields["hash"]):
            raise _line_error(number, f"the arguments of call {fields['id']!r} do not match their hash")
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
        raise _line_error(number, problem)
    if not is_session_id(fields["id"]):
        raise _line_error(number, f"{fields['id']!r} cannot be the id of a session")
    if not all(isinstance(grant, dict) for grant in fields["grants"]):
        raise _line_error(number, "'grants' must hold objects")
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
        raise _line_error(number, f"this is not an {kind}") from error


def _check_node(number: int, fields: dict[str, Any], seen: _BlockState) -> None:
    node, parent = fields["id"], fields["parent"]
    if not node or not node.isascii() or not node.isprintable() or node in seen.hashes:
        raise _line_error(number, f"the node id {node!r} is not new, or not printable ASCII")
    if parent is not None and parent not in seen.hashes:
        raise _line_error(number, f"the parent {parent!r} does not come before its child")
    if fields["kind"] not in KINDS:
        raise _line_error(number, f"there is no node kind {fields['kind']!r}")
    if fields["seq"] <= seen.seq:
        raise _line_error(number, "the nodes are not in the order of their 'seq'")
    above = seen.hashes[parent] if parent else ""
    if node_hash(above, fields["kind"], encode(fields["payload"])) != fields["hash"]:
        raise _line_error(number, f"the content of node {node!r} does not match its hash")
    try:
        message_of(Node(**fields, session=""))  # what a turn will do with it
    except (ValidationError, TypeError, KeyError, AttributeError) as error:
        raise _line_error(number, f"node {node!r} is not what a node of kind {fields['kind']!r} holds") from error
    seen.hashes[node], seen.seq = fields["hash"], fields["seq"]


def _line_error(number: int, problem: str) -> StoreError:
    next_step = "moryflow session export ID -o FILE, where it comes from, makes a whole one"
    return invalid(f"line {number}: {problem}; nothing was imported", next_step=next_step)


def number_events(blocks: Iterable[Sequence[ExportedLine]], first: int) -> int:
    """Give the events of checked lines numbers from `first` on, where the database does not; return how many there are."""
    numbers = count(first)
    for line in (line for block in blocks for line in block if line.kind == "event"):
        line.fields["seq"] = next(numbers)
    return next(numbers) - first


def store_lines(connection: SqlConnection, blocks: Iterable[Sequence[ExportedLine]], vault: str | None = None) -> SessionRow:
    """Store checked lines as sessions and return the first; a session whose id is already in use gets a new one."""
    names: dict[str, str] = {}
    for header, *records in blocks:
        session = names[header.fields["id"]] = _insert_header(connection, header.fields, names, vault)
        for line in records:
            try:
                _insert(connection, session, line)
            except connection.IntegrityError as error:
                raise _line_error(line.number, f"this record is there twice ({error})") from error
    return session_row(connection, next(iter(names.values())))


def _insert_header(connection: SqlConnection, fields: dict[str, Any], names: Mapping[str, str], vault: str | None) -> str:
    """Store a session's own row and return its id here.

    A session with a new id records the old one in its origin, because its parent's texts still use the old one.

    :param names: id in the file → id here, for the sessions stored so far.
    """
    taken = execute(connection, "SELECT 1 FROM sessions WHERE id = ?", (fields["id"],)).fetchone()
    session = random_id() if taken else fields["id"]
    changed = {
        **_DEFAULTS,
        "origin": {"session": fields["id"], "imported": True} if taken else _plain_origin(fields["origin"]),
    }
    if vault is not None:
        changed["vault"] = vault
    parent = names.get(fields["parent"])
    if parent is None and fields["parent"] is not None:
        changed |= {"parent": None, "purpose": "main"}
    held_back = {name: fields[name] for name, value in changed.items() if fields[name] != value}
    kept = {**fields, **changed, "id": session}
    insert_session(connection, SessionRow(**(kept if parent is None else {**kept, "parent": parent})))
    if held_back:
        execute(connection, "UPDATE sessions SET held_back = ? WHERE id = ?", (encode(held_back), session))
    return session


def _plain_origin(origin: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a session's origin, or ``None`` if it contains an agent, which would give the session permissions."""
    return None if "spawn" in (origin or {}) else origin


def _insert(connection: SqlConnection, session: str, line: ExportedLine) -> None:
    match line.kind:
        case "end":
            return
        case "event":
            columns = {"type": line.fields["name"], "ts": line.fields["ts"], "body": encode(line.fields["body"])}
            numbered = {"seq": line.fields["seq"]} if "seq" in line.fields else {}
            _insert_row(connection, "events", {"session": session, **columns, **numbered})
        case "plugin_state":
            value = encode(line.fields["value"])
            _insert_row(connection, "plugin_state", {"session": session, **line.fields, "value": value})
        case kind:
            table = TABLES[kind]
            columns = {k: encode(v) if k in table.json and v is not None else v for k, v in line.fields.items()}
            marks = {"imported": 1} if kind in _IMPORTED else {}
            _insert_row(connection, table.name, {"session": session, **columns, **marks})


def _insert_row(connection: SqlConnection, table: str, columns: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(columns))
    execute(connection, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", list(columns.values()))
