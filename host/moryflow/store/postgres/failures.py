"""Turns errors of PostgreSQL into sentences: what happened, in which database, what to do next."""

from __future__ import annotations

import psycopg
from psycopg import errors

from moryflow.store.protocol import StoreError

_CODES: dict[type[psycopg.Error], str] = {
    errors.DiskFull: "no_space",
    errors.ReadOnlySqlTransaction: "readonly",
    errors.InsufficientPrivilege: "readonly",
    errors.TooManyConnections: "locked",
    errors.LockNotAvailable: "locked",
    errors.SerializationFailure: "locked",
    errors.DeadlockDetected: "locked",
    errors.NumericValueOutOfRange: "too_large",
    errors.ProgramLimitExceeded: "too_large",
    errors.DataCorrupted: "corrupt",
    errors.IndexCorrupted: "corrupt",
    errors.InvalidPassword: "readonly",
    errors.InvalidAuthorizationSpecification: "readonly",
    errors.InvalidCatalogName: "gone",
}
_SENTENCES = {
    "no_space": ("the disk of the database is full; nothing was stored", "free some space there, then moryflow run -c"),
    "readonly": ("the database refuses this user, or any change", "moryflow doctor, and ask whoever runs the database"),
    "locked": ("the database cannot be reached, or is busy", "check that it runs, then moryflow doctor"),
    "gone": ("there is no such database", "createdb NAME, or correct store.url: moryflow config explain store.url"),
    "too_large": ("a value is larger than the database can hold", "make the output smaller"),
    "corrupt": ("the database is damaged", "restore it from a backup: docs/deploy/backup.md"),
    "invalid": ("the database refused the change", "moryflow doctor"),
}


def code_of(error: psycopg.Error) -> str:
    """Return our code for an error of PostgreSQL or of the connection to it."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    # Everything else that is operational has to do with the connection: refused, reset, timed out, shut down.
    return "locked" if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else "invalid"


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection was lost or refused, so that another one may succeed."""
    return code_of(error) == "locked"


def store_error(error: psycopg.Error, where: str) -> StoreError:
    """Return the :class:`StoreError` for `error`; the caller raises it ``from error``. It never has the password."""
    code = code_of(error)
    message, next_step = _SENTENCES[code]
    said = error.diag.message_primary or str(error).strip().partition("\n")[0]
    return StoreError(f"{message} ({said})", code=code, where=where, next_step=next_step)
