"""Which column holds which field: the one place that turns rows into values and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ForwardRef, Generic, TypeVar

from moryflow_sdk import Artifact

from moryflow.store.errors import Damaged
from moryflow.store.json_text import decode, encode
from moryflow.store.records import ApprovalRow, CallRow, HookCallRow, Node, RunRow, SessionRow

R = TypeVar("R")

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "str | None": (str, type(None)), "int": (int,), "float | None": (float, int, type(None)),
    "Mapping[str, Any]": (dict,), "Mapping[str, Any] | None": (dict, type(None)),
    "tuple[Mapping[str, Any], ...]": (tuple,),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Table(Generic[R]):
    """A table and the value its rows become.

    :ivar row: the value; its annotations say what a column may hold.
    :ivar columns: names that are column and field alike; `json` names those kept as JSON text.
    :ivar key: what identifies a row; empty for a log that only grows.
    :ivar keep: columns that a later write does not touch; `guard` is the condition under which it may write at all.
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
        """``SELECT columns FROM table``, to be followed by a condition."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}"

    @property
    def insert(self) -> str:
        """The statement that adds a row."""
        marks = ", ".join("?" * len(self.columns))
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks})"

    @property
    def upsert(self) -> str:
        """The statement that adds a row or brings the one with the same key up to date."""
        changed = [column for column in self.columns if column not in self.key and column not in self.keep]
        update = ", ".join(f"{column} = excluded.{column}" for column in changed)
        guard = f" WHERE {self.guard}" if self.guard else ""
        return f"{self.insert} ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {update}{guard}"

    def values(self, row: Any) -> list[Any]:
        """Return the row's columns as SQLite takes them."""
        found = list(self._fields(row))
        for place in self._encoded:
            if found[place] is not None:
                found[place] = encode(found[place])
        return found

    @cached_property
    def _fields(self) -> Callable[[Any], tuple[Any, ...]]:
        return attrgetter(*self.columns)

    @cached_property
    def _encoded(self) -> tuple[int, ...]:
        return tuple(place for place, column in enumerate(self.columns) if column in self.json)

    def load(self, values: Sequence[Any]) -> R:
        """Return the value of a database row."""
        return self.row(**self.fields(values))

    def fields(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return a database row as field names and plain values."""
        pairs = zip(self.columns, values, strict=True)
        return {name: decode_stored(value) if name in self.json and value is not None else text(value) for name, value in pairs}

    def problem(self, fields: Mapping[str, Any]) -> str:
        """Return what is wrong with `fields` as a row of this table; empty when nothing is."""
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
    """Return a field's type as it is written."""
    annotation = row.__annotations__[name]
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else str(annotation)


def decode_stored(value: Any) -> Any:
    """Return the value of a JSON column.

    :raises Damaged: it is not what was stored.
    """
    try:
        return decode(text(value))
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(f"a stored value is not JSON ({error})") from error


def text(value: Any) -> Any:
    """Return a column's value; bytes are text with lone surrogates, see :func:`execute`."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def execute(connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Execute `statement`; text that UTF-8 cannot carry (a file name, a model's words) is bound as bytes."""
    try:
        return connection.execute(statement, values)
    except UnicodeEncodeError:
        return connection.execute(statement, [_bound(value) for value in values])


def write_all(connection: sqlite3.Connection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """Execute `statement` once for each row."""
    left, last = iter(rows), list[Sequence[Any]]()

    def taken() -> Iterator[Sequence[Any]]:
        for row in left:
            last[:] = [row]
            yield row

    while True:
        try:
            connection.executemany(statement, taken())
        except UnicodeEncodeError:  # of the row taken last; those before it are stored
            execute(connection, statement, last[0])
        else:
            return


def _bound(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


SESSIONS = Table(
    "sessions", SessionRow,
    ("id", "title", "vault", "agent", "model", "mode", "parent", "purpose", "active", "created", "updated", "origin", "grants",
     "epoch"),
    json=frozenset({"origin", "grants"}), key=("id",),
)  # fmt: skip
NODES = Table(
    "nodes", Node,
    ("id", "session", "seq", "parent", "kind", "payload", "tokens", "hash", "created"),
    json=frozenset({"payload"}),
)  # fmt: skip
RUNS = Table(
    "runs", RunRow,
    ("id", "session", "purpose", "agent", "model", "plugin_set", "state", "end_reason", "usage", "cost", "steps", "started",
     "ended"),
    json=frozenset({"usage"}), key=("session", "id"), keep=frozenset({"started"}),
)  # fmt: skip
CALLS = Table(
    "calls", CallRow,
    ("id", "session", "turn", "node", "step", "tool", "args", "hash", "state", "decision", "cause", "ruling", "created",
     "updated"),
    json=frozenset({"ruling"}), key=("session", "node", "id"), keep=frozenset({"created"}),
)  # fmt: skip
HOOK_CALLS = Table(
    "hook_calls", HookCallRow,
    ("session", "turn", "step", "hook", "plugin", "plugin_hash", "position", "outcome", "us", "call_id", "delta", "count"),
    json=frozenset({"delta"}),
)  # fmt: skip
# The first answer to a question stands, whatever is written later.
APPROVALS = Table(
    "approvals", ApprovalRow,
    ("id", "session", "call_id", "turn", "kind", "request", "state", "reply", "message", "by", "created", "replied_at"),
    json=frozenset({"request"}), key=("session", "id"), keep=frozenset({"created"}), guard="approvals.state = 'pending'",
)  # fmt: skip
ARTIFACTS = Table(
    "artifacts", Artifact,
    ("id", "session", "call_id", "tool", "path", "size", "sha256", "created", "expires", "state"),
    key=("session", "id"), keep=frozenset({"created"}),
)  # fmt: skip
