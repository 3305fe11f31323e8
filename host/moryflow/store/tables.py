"""The tables as classes of rows, and how values are stored in them: JSON, hashes, ids. The same for every database.

No text of a model, a tool or a file name may make a commit fail: lone surrogates are stored as JSON escapes, as is NUL.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ForwardRef, Generic, Protocol, TypeVar, cast

from moryflow_sdk import Artifact, FrozenDict

from .protocol import StoreError, invalid
from .records import ApprovalRow, CallRow, HookCallRow, Node, RunRow, SessionRow

R = TypeVar("R")


class SqlCursor(Protocol):
    """What the queries use of a driver's cursor."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def close(self) -> object: ...


class SqlConnection(Protocol):
    """What the statements use of a driver's connection; parameters are marked by ``?``. SQLite's own has this form."""

    @property
    def IntegrityError(self) -> type[Exception]: ...
    def execute(self, statement: str, values: Sequence[Any] = (), /) -> SqlCursor: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object: ...


class DamagedRow(StoreError):
    """A row that is not what was stored, in a database that can be read: it costs its session, and nothing else.

    :param session: the session that the row belongs to.
    :param before: the last sound node before it, if that is known.
    """

    def __init__(self, message: str, session: str = "", before: str | None = None) -> None:
        keep = f"moryflow session fork {session} --node {before} keeps what is before it; " if before else ""
        next_step = f"{keep}moryflow session delete {session} removes the session" if session else "moryflow doctor"
        super().__init__(message, code="corrupt", next_step=next_step)


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
        """Return the row's columns as values that a database can store."""
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
    annotation = row.__annotations__[name]
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else str(annotation)


def decode_stored(value: Any) -> Any:
    """Return the value of a JSON column.

    :raises DamagedRow: the column does not hold JSON.
    """
    try:
        return decode(text(value))
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedRow(f"a stored value is not JSON ({error})") from error


def text(value: Any) -> Any:
    """Return a column's value; text with lone surrogates is stored as bytes, see :func:`execute`."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def execute(connection: SqlConnection, statement: str, values: Sequence[Any] = ()) -> SqlCursor:
    """Execute `statement`; text that UTF-8 cannot encode (in a file name or a model's text) is bound as bytes."""
    try:
        return connection.execute(statement, values)
    except UnicodeEncodeError:
        return connection.execute(statement, [_bindable(value) for value in values])


def write_all(connection: SqlConnection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
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
