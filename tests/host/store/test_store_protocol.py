"""Whoever uses the store depends on its protocol, never on the database behind it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import moryflow
from moryflow.store import SessionLock, Store

HOST = Path(moryflow.__file__).parent
CHOOSES, LOOKS = HOST / "store" / "__init__.py", HOST / "cli" / "commands" / "doctor.py"
"""What chooses the implementation, and what asks whether the file system has locks."""


def public(kind: type) -> set[str]:
    """The names of what a class offers."""
    return {name for name in (*dir(kind), *inspect.get_annotations(kind)) if not name.startswith("_")}


# Reads the database of another system, of which it takes over the sessions.
OTHERS = HOST / "imports" / "transcripts.py"


def test_only_the_implementation_knows_its_database():
    """No statement, error or import of a database stands outside the folder of its implementation (issue 16)."""
    mine = HOST / "store" / "sqlite"
    elsewhere = [path for path in HOST.rglob("*.py") if mine not in path.parents and path not in (CHOOSES, LOOKS, OTHERS)]
    assert [path for path in elsewhere if re.search(r"\bsqlite3\.|store\.sqlite|from \.sqlite", path.read_text("utf-8"))] == []


def test_an_implementation_offers_what_the_protocol_says_and_no_more(store, hold):
    """Nobody can come to depend on a method that only one implementation has (issue 16)."""
    assert public(type(store)) - {"open"} == public(Store)
    for name in public(Store) - {"notices"}:
        here, there = getattr(Store, name), getattr(type(store), name)
        assert [*inspect.signature(here).parameters] == [*inspect.signature(there).parameters], name
    assert {name for name in dir(hold) if not name.startswith("_")} == public(SessionLock)
