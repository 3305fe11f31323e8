"""The tables and their migrations, and how values are stored in them: JSON, hashes, ids.

A migration is one function and one transaction: a process killed in the middle of it leaves the previous version.
``number`` is the row's place on disk; ``seq`` is the order that callers may rely on. Rows are identified by
``(session, id)``, so that a fork can keep its nodes' ids.

No text of a model, a tool or a file name may make a commit fail: lone surrogates are stored as JSON escapes, as is NUL.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ForwardRef, Generic, TypeVar, cast

from moryflow_sdk import Artifact, FrozenDict

from moryflow.store.protocol import invalid
from moryflow.store.records import ApprovalRow, CallRow, HookCallRow, Node, RunRow, SessionRow

from .failures import Damaged

APPLICATION_ID = 0x4D4F5259  # "MORY", so that `file` and we can tell the database from another program's
Migration = Callable[[sqlite3.Connection], None]

_VERSION_1 = (
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, vault TEXT NOT NULL, agent TEXT NOT NULL,
        model TEXT NOT NULL, mode TEXT NOT NULL, parent TEXT, purpose TEXT NOT NULL, active TEXT, created TEXT NOT NULL,
        updated TEXT NOT NULL, origin TEXT, grants TEXT NOT NULL, epoch INTEGER NOT NULL,
        used INTEGER NOT NULL, held_back TEXT)""",
    """CREATE TABLE nodes (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, parent TEXT,
        kind TEXT NOT NULL, payload TEXT NOT NULL, tokens INTEGER NOT NULL, hash TEXT NOT NULL, created TEXT NOT NULL,
        UNIQUE (session, id), UNIQUE (session, seq))""",
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, purpose TEXT NOT NULL, agent TEXT NOT NULL,
        model TEXT NOT NULL, plugin_set TEXT NOT NULL, state TEXT NOT NULL, end_reason TEXT, usage TEXT, cost REAL,
        steps INTEGER NOT NULL, started TEXT NOT NULL, ended TEXT, UNIQUE (session, id))""",
    """CREATE TABLE calls (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, node TEXT NOT NULL, id TEXT NOT NULL, turn TEXT NOT NULL,
        step INTEGER NOT NULL, tool TEXT NOT NULL, args TEXT NOT NULL, hash TEXT NOT NULL, state TEXT NOT NULL, decision TEXT,
        cause TEXT, ruling TEXT, created TEXT NOT NULL, updated TEXT NOT NULL, UNIQUE (session, node, id))""",
    """CREATE TABLE hook_calls (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, turn TEXT NOT NULL, step INTEGER NOT NULL, hook TEXT NOT NULL,
        plugin TEXT NOT NULL, plugin_hash TEXT NOT NULL, position INTEGER NOT NULL, outcome TEXT NOT NULL,
        us INTEGER NOT NULL, call_id TEXT, delta TEXT, count INTEGER NOT NULL)""",
    # AUTOINCREMENT: a client resumes from the last number it saw, so the number of a purged event must not be used again.
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, type TEXT NOT NULL, ts TEXT NOT NULL,
        body TEXT NOT NULL)""",
    """CREATE TABLE artifacts (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, call_id TEXT NOT NULL, tool TEXT NOT NULL,
        path TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT NOT NULL, created TEXT NOT NULL, expires TEXT,
        state TEXT NOT NULL, imported INTEGER NOT NULL DEFAULT 0, UNIQUE (session, id))""",
    """CREATE TABLE approvals (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, call_id TEXT NOT NULL, turn TEXT NOT NULL,
        kind TEXT NOT NULL, request TEXT NOT NULL, state TEXT NOT NULL, reply TEXT, message TEXT NOT NULL, by TEXT,
        created TEXT NOT NULL, replied_at TEXT, imported INTEGER NOT NULL DEFAULT 0, UNIQUE (session, id))""",
    """CREATE TABLE plugin_state (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, plugin TEXT NOT NULL, scope TEXT NOT NULL, value TEXT NOT NULL,
        UNIQUE (session, plugin, scope))""",
    """CREATE TABLE purges (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, started TEXT NOT NULL, finished TEXT)""",
    "CREATE TABLE search_progress (until INTEGER NOT NULL)",
    "INSERT INTO search_progress VALUES (0)",
    "CREATE INDEX sessions_used ON sessions (purpose, used)",
    "CREATE INDEX sessions_vault ON sessions (vault, purpose, used)",
    "CREATE INDEX sessions_parent ON sessions (parent, used)",
    "CREATE INDEX sessions_all ON sessions (used)",
    "CREATE INDEX calls_state ON calls (state, created)",
    "CREATE INDEX events_session ON events (session, seq)",
    "CREATE INDEX hook_calls_session ON hook_calls (session, turn)",
    "CREATE INDEX artifacts_id ON artifacts (id)",
    "CREATE INDEX approvals_id ON approvals (id)",
    "CREATE INDEX approvals_pending ON approvals (session) WHERE state = 'pending'",
    "CREATE INDEX purges_open ON purges (session) WHERE finished IS NULL",
    """CREATE TRIGGER nodes_never_change BEFORE UPDATE ON nodes
        BEGIN SELECT RAISE(ABORT, 'nodes are append-only'); END""",
    """CREATE TRIGGER nodes_never_vanish BEFORE DELETE ON nodes
        WHEN NOT EXISTS (SELECT 1 FROM purges WHERE session = OLD.session AND finished IS NULL)
        BEGIN SELECT RAISE(ABORT, 'nodes are append-only; only a whole session can be purged'); END""",
    """CREATE TRIGGER purges_are_whole BEFORE UPDATE OF finished ON purges
        WHEN EXISTS (SELECT 1 FROM nodes WHERE session = OLD.session)
        BEGIN SELECT RAISE(ABORT, 'a purge removes the whole session'); END""",
)

# These triggers protect nodes from any program that opens the file. Another program's connection may not have set
# `recursive_triggers`, so its REPLACE deletes a row without firing delete triggers; and it may commit between two statements.
_VERSION_2 = (
    "DROP TRIGGER purges_are_whole",
    "UPDATE purges SET finished = started WHERE finished IS NULL",  # an open purge would allow deleting single nodes
    """CREATE TRIGGER nodes_never_replaced BEFORE INSERT ON nodes
        WHEN EXISTS (SELECT 1 FROM nodes WHERE number = NEW.number)
            OR EXISTS (SELECT 1 FROM nodes WHERE session = NEW.session AND id = NEW.id)
            OR EXISTS (SELECT 1 FROM nodes WHERE session = NEW.session AND seq = NEW.seq)
        BEGIN SELECT RAISE(ABORT, 'nodes are append-only; there is one with this number, id or seq'); END""",
    """CREATE TRIGGER purges_are_whole AFTER INSERT ON purges WHEN NEW.finished IS NULL
        BEGIN
            DELETE FROM nodes WHERE session = NEW.session;
            DELETE FROM runs WHERE session = NEW.session;
            DELETE FROM calls WHERE session = NEW.session;
            DELETE FROM hook_calls WHERE session = NEW.session;
            DELETE FROM events WHERE session = NEW.session;
            DELETE FROM artifacts WHERE session = NEW.session;
            DELETE FROM approvals WHERE session = NEW.session;
            DELETE FROM plugin_state WHERE session = NEW.session;
            DELETE FROM sessions WHERE id = NEW.session;
            UPDATE purges SET finished = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE number = NEW.number;
        END""",
    """CREATE TRIGGER purges_never_change BEFORE UPDATE ON purges WHEN OLD.finished IS NOT NULL
        BEGIN SELECT RAISE(ABORT, 'what was purged stays on record'); END""",
    """CREATE TRIGGER purges_never_vanish BEFORE DELETE ON purges
        BEGIN SELECT RAISE(ABORT, 'what was purged stays on record'); END""",
    """CREATE TRIGGER purges_never_replaced BEFORE INSERT ON purges
        WHEN EXISTS (SELECT 1 FROM purges WHERE number = NEW.number)
        BEGIN SELECT RAISE(ABORT, 'what was purged stays on record'); END""",
)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in _VERSION_1:
        connection.execute(statement)


def _seal(connection: sqlite3.Connection) -> None:
    for statement in _VERSION_2:
        connection.execute(statement)


def _keep_inputs(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE hook_calls ADD COLUMN input TEXT")


# Migration n, counted from 1, leads to version n. Append new ones; never change one that was released.
MIGRATIONS: tuple[Migration, ...] = (_create, _seal, _keep_inputs)


def version_of(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply the `migrations` that a database lacks, each in its own transaction."""
    for number, step in enumerate(migrations, 1):
        if number <= version_of(connection):
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            step(connection)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


R = TypeVar("R")

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "str | None": (str, type(None)), "int": (int,), "float | None": (float, int, type(None)),
    "Mapping[str, Any]": (dict,), "Mapping[str, Any] | None": (dict, type(None)),
    "tuple[Mapping[str, Any], ...]": (tuple,),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class TableSpec(Generic[R]):
    """A table and the class of its rows.

    :ivar row: the class; its annotations give the types of the columns.
    :ivar columns: the names of the columns, which are also those of the fields; `json` names those stored as JSON text.
    :ivar key: the columns that identify a row; empty for a log that only grows.
    :ivar keep: columns that an upsert does not change; `guard` is an SQL condition without which it changes nothing.
    """

    name: str
    row: type[R]
    columns: tuple[str, ...]
    json: frozenset[str] = frozenset()
    key: tuple[str, ...] = ()
    keep: frozenset[str] = frozenset()
    guard: str = ""

    @property
    def select(self) -> str:
        """``SELECT columns FROM table``, to which callers append a condition."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}"

    @cached_property
    def insert(self) -> str:
        """The statement that adds a row."""
        marks = ", ".join("?" * len(self.columns))
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks})"

    @cached_property
    def upsert(self) -> str:
        """The statement that adds a row, or updates the row with the same key."""
        changed = [column for column in self.columns if column not in self.key and column not in self.keep]
        update = ", ".join(f"{column} = excluded.{column}" for column in changed)
        guard = f" WHERE {self.guard}" if self.guard else ""
        return f"{self.insert} ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {update}{guard}"

    def values(self, row: Any) -> list[Any]:
        """Return the row's columns as values that SQLite can store."""
        found = list(self._fields(row))
        for place in self._encoded:
            if found[place] is not None:
                found[place] = encode(found[place])
        return found

    @cached_property
    def _fields(self) -> Callable[[Any], tuple[Any, ...]]:
        in_order = getattr(self.row, "_fields", ()) == self.columns
        return tuple if in_order else attrgetter(*self.columns)

    @cached_property
    def _encoded(self) -> tuple[int, ...]:
        return tuple(place for place, column in enumerate(self.columns) if column in self.json)

    def load(self, values: Sequence[Any]) -> R:
        return self.row(**self.fields(values))

    def fields(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return a database row as field names and plain values."""
        pairs = zip(self.columns, values, strict=True)
        return {name: decode_stored(value) if name in self.json and value is not None else text(value) for name, value in pairs}

    def problem(self, fields: Mapping[str, Any]) -> str:
        """Return what is wrong with `fields` as a row of this table, or ``""``."""
        for name in sorted(set(self.columns) ^ fields.keys()):
            return f"the field {name!r} is missing" if name in self.columns else f"there is no field {name!r}"
        for name in self.columns:
            value, kind = fields[name], _type_of(self.row, name)
            if not isinstance(value, _TYPES.get(kind, object)) or (isinstance(value, bool) and kind != "Any"):
                return f"the field {name!r} must be {kind}"
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                return f"the field {name!r} is too large"
        return ""


def _type_of(row: type, name: str) -> str:
    """Return a field's annotation as source text."""
    annotation = row.__annotations__[name]
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else str(annotation)


def decode_stored(value: Any) -> Any:
    """Return the value of a JSON column.

    :raises Damaged: the column does not hold JSON.
    """
    try:
        return decode(text(value))
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"a stored value is not JSON ({error})") from error


def text(value: Any) -> Any:
    """Return a column's value; text with lone surrogates is stored as bytes, see :func:`execute`."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def execute(connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Execute `statement`; text that UTF-8 cannot encode (in a file name or a model's text) is bound as bytes."""
    try:
        return connection.execute(statement, values)
    except UnicodeEncodeError:
        return connection.execute(statement, [_bindable(value) for value in values])


def write_all(connection: sqlite3.Connection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """Execute `statement` once for each row."""
    left, last = iter(rows), list[Sequence[Any]]()

    def remembering_last() -> Iterator[Sequence[Any]]:
        for row in left:
            last[:] = [row]
            yield row

    while True:
        try:
            connection.executemany(statement, remembering_last())
        except UnicodeEncodeError:  # raised for the row taken last; the rows before it are stored
            execute(connection, statement, last[0])
        else:
            return


def _bindable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


SESSIONS = TableSpec(
    "sessions", SessionRow,
    ("id", "title", "vault", "agent", "model", "mode", "parent", "purpose", "active", "created", "updated", "origin", "grants",
     "epoch"),
    json=frozenset({"origin", "grants"}), key=("id",),
)  # fmt: skip
NODES = TableSpec(
    "nodes", Node,
    ("id", "session", "seq", "parent", "kind", "payload", "tokens", "hash", "created"),
    json=frozenset({"payload"}),
)  # fmt: skip
RUNS = TableSpec(
    "runs", RunRow,
    ("id", "session", "purpose", "agent", "model", "plugin_set", "state", "end_reason", "usage", "cost", "steps", "started",
     "ended"),
    json=frozenset({"usage"}), key=("session", "id"), keep=frozenset({"started"}),
)  # fmt: skip
CALLS = TableSpec(
    "calls", CallRow,
    ("id", "session", "turn", "node", "step", "tool", "args", "hash", "state", "decision", "cause", "ruling", "created",
     "updated"),
    json=frozenset({"ruling"}), key=("session", "node", "id"), keep=frozenset({"created"}),
)  # fmt: skip
HOOK_CALLS = TableSpec(
    "hook_calls", HookCallRow,
    ("session", "turn", "step", "hook", "plugin", "plugin_hash", "position", "outcome", "us", "call_id", "delta", "count",
     "input"),
    json=frozenset({"delta", "input"}),
)  # fmt: skip
# The guard keeps the first answer to a question.
APPROVALS = TableSpec(
    "approvals", ApprovalRow,
    ("id", "session", "call_id", "turn", "kind", "request", "state", "reply", "message", "by", "created", "replied_at"),
    json=frozenset({"request"}), key=("session", "id"), keep=frozenset({"created"}), guard="approvals.state = 'pending'",
)  # fmt: skip
ARTIFACTS = TableSpec(
    "artifacts", Artifact,
    ("id", "session", "call_id", "tool", "path", "size", "sha256", "created", "expires", "state"),
    key=("session", "id"), keep=frozenset({"created"}),
)  # fmt: skip


_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def encode(value: Any) -> str:
    """Return `value` as canonical JSON that UTF-8 can encode.

    :raises StoreError: `value` is not JSON, or nested too deeply to be read back.
    """
    try:
        text = _encode(value)
    except ValueError:
        text = _encode_finite(value)
    except (TypeError, RecursionError) as error:
        raise invalid(f"a value cannot be stored as JSON: {error}") from error
    return text if _is_utf8(text) else _encode_ascii(json.loads(text))


def _encode_finite(value: Any) -> str:
    """Encode `value` with ``null`` for NaN and infinities, which JSON lacks."""
    try:
        return _encode(_finite(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"a value cannot be stored as JSON: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_decode = json.JSONDecoder(object_hook=FrozenDict).decode


def decode(text: str) -> Any:
    """Return the frozen value of canonical JSON: mappings read-only, lists as tuples."""
    value = _decode(text)
    return _with_tuples(value) if "[" in text else value


def _with_tuples(value: Any) -> Any:
    """Return `value` with every list in it, at any depth, as a tuple."""
    if type(value) is list:
        return tuple([_with_tuples(item) for item in cast("list[Any]", value)])
    if type(value) is FrozenDict:
        for item in value.values():
            if type(item) is list or type(item) is FrozenDict:
                return FrozenDict({key: _with_tuples(item) for key, item in value.items()})
    return value


def node_hash(parent: str, kind: str, payload: str) -> str:
    """Return the hash of a node: SHA-256 over its parent's hash (empty for a root), its kind and its stored payload."""
    return hashlib.sha256(f"{parent}\n{kind}\n{payload}".encode("utf-8", "surrogatepass")).hexdigest()


def has_its_arguments(arguments: str, hash: str) -> bool:
    """Return whether the arguments of a call match its hash; a call that was never judged has no hash."""
    return not hash or hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest() == hash


def text_of(payload: Mapping[str, Any]) -> str:
    """Return the text that the user or a model reads in a node."""
    parts = [payload.get("text"), payload.get("output"), payload.get("summary")]
    parts += [item.get("text") for item in payload.get("files") or () if isinstance(item, Mapping)]
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def estimate_tokens(payload: Mapping[str, Any]) -> int:
    """Return an estimate of a node's tokens in the context: a quarter of its characters."""
    calls = payload.get("calls") or ()
    arguments = sum(len(str(call.get("arguments", ""))) for call in calls if isinstance(call, Mapping))
    return -(-(len(text_of(payload)) + arguments) // 4)


def random_id() -> str:
    """Return 64 random bits as hexadecimal text."""
    return os.urandom(8).hex()
