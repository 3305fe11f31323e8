"""Find the session or the name that a person means."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moryflow.cli.options import Flags
    from moryflow.store import SessionRow, Store


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that was probably meant, or an empty text."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str], prefix: str | None = None) -> str:
    """Return the end of a message about an unknown name: what was probably meant, or an empty text.

    :param prefix: stands before the name, which is quoted where there is none.
    """
    near = nearest(name, known)
    if not near:
        return ""
    return f"; did you mean {near!r}?" if prefix is None else f"; did you mean {prefix}{near}?"


async def find(store: Store, session: str | None, flags: Flags) -> SessionRow:
    """Return the session called `session`, or the last one of the vault.

    :raises ConfigError: there is none.
    """
    if session is not None:
        return await store.session(session)
    from moryflow_sdk import ConfigError

    vault = (flags.vault or Path.cwd()).resolve()
    row = await store.latest(str(vault))
    if row is None:
        step = 'moryflow run "your question" begins one; moryflow session list shows those of other folders'
        raise ConfigError(f"there is no session of {vault}", next_step=step)
    return row
