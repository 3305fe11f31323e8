"""Results that could not be stored because another program kept the database locked: in a file beside it until they are.

The file is there from the first refusal on, so that neither an end nor a kill of the process loses what a call gave. Whoever
holds the session next stores it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import Artifact, Event

from moryflow.store.errors import StoreError, invalid
from moryflow.store.json_text import encode
from moryflow.store.records import CallRow, Commit, NewNode

_FOLDER = "unstored"
_NODE = ("kind", "payload", "id", "tokens")
_NEVER_RAN = ("running", "pending", "waiting")


class Spooled(NamedTuple):
    """What a file holds: a commit, and the node that was active before it."""

    commit: Commit
    after: str | None


def spool_file(home: Path, session: str) -> Path:
    """Return the file that would hold what is not stored yet of a session."""
    return home / _FOLDER / f"{session}.json"


def write(path: Path, commit: Commit, after: str | None) -> None:
    """Keep the results of `commit`: its nodes, what ended, and what plugins keep. A call that is about to run is left out.

    :raises OSError: the file cannot be written.
    """
    ended = [call for call in commit.calls if call.state not in _NEVER_RAN]
    document = {
        "v": 1,
        "after": after,
        "nodes": [{name: getattr(node, name) for name in _NODE} for node in commit.nodes],
        "calls": [call._asdict() for call in ended],
        "artifacts": [artifact.model_dump(mode="json") for artifact in commit.artifacts],
        "events": [event.model_dump(mode="json") for event in commit.events if event.type != "tool.start"],
        "state": [[*key, value] for key, value in commit.plugin_state.items()],
    }
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(encode(document))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def read(path: Path) -> Spooled | None:
    """Return what is kept at `path`; ``None`` when there is nothing.

    :raises StoreError: ``invalid``, the file is not what :func:`write` wrote.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    try:
        return Spooled(_commit(found), found["after"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from error


def remove(path: Path) -> None:
    """Forget what is kept at `path`: it is stored."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another session has something there
        path.parent.rmdir()


def _commit(found: dict[str, Any]) -> Commit:
    return Commit(
        nodes=[NewNode(**node) for node in found["nodes"]],
        calls=[CallRow(**call) for call in found["calls"]],
        artifacts=[Artifact.model_validate(artifact) for artifact in found["artifacts"]],
        events=[Event.model_validate(event) for event in found["events"]],
        plugin_state={(plugin, scope): value for plugin, scope, value in found["state"]},
    )


def _unreadable(path: Path, error: Exception) -> StoreError:
    next_step = f"look at it, then move it away: {path}"
    return invalid(f"the results that wait to be stored cannot be read: {error}", where=str(path), next_step=next_step)
