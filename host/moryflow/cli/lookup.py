"""Find the session, node or name that a person means; show a session as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moryflow.cli.options import Flags
    from moryflow.store import Node, SessionRow, Store


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


async def with_title(store: Store, row: SessionRow) -> SessionRow:
    """Return `row` with a title to show: where its first turn was killed before it was named, its first prompt's words."""
    from .terminal.text import first_line

    return row if row.title else row._replace(title=first_line(await store.first_prompt(row.id), 60))


def summary(row: SessionRow) -> dict[str, Any]:
    """Return a session as JSON."""
    return row._asdict()


def node_json(node: Node) -> dict[str, Any]:
    """Return a node as JSON."""
    from moryflow_sdk import thaw

    return {**node._asdict(), "payload": thaw(node.payload)}


async def node_id_of(store: Store, session: str, name: str) -> str:
    """Return the id of the node that `name` means: a label, an id, or the beginning of one.

    :raises ConfigError: none or several.
    """
    import unicodedata

    from moryflow_sdk import ConfigError

    named = await store.labels(session)
    if (label := unicodedata.normalize("NFC", name)) in named:
        return named[label]
    nodes = await store.nodes(session)
    found = [node.id for node in nodes if node.id == name] or [node.id for node in nodes if name and node.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} nodes begin with {name!r}" if found else f"there is no node {name!r}"
    raise ConfigError(problem, where=f"session {session}", next_step=f"moryflow session tree {session}")
