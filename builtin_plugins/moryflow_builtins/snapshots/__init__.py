"""Undo for files: a shadow git repository holds the files before and after each call that may change them.

The repository is in the plugin's data folder, outside the vault. Calls that only read cost nothing. Without git there is no
undo of files, and one notice says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moryflow_sdk import Command, Event, Turn, hookimpl

from .shadow import SnapshotSettings

name = "snapshots"
services = ("emit", "files", "history")
config_model = SnapshotSettings
config_path = "agents.runtime.snapshots"

# Domains whose tools do not change files of the vault themselves; a sub-agent records its own changes.
_ELSEWHERE = frozenset({"read", "web_fetch", "web_search", "task"})


@hookimpl(timeout=60.0, events=("tool.start", "tool.result", "session.deleted"))
async def event(event: Event, turn: Turn | None) -> None:
    """Record the files before and after calls that may change them; when a session is deleted, delete its records."""
    if turn is None:
        return
    match event.type:
        case "tool.start" if (
            event.data["state"] == "running" and event.data["domain"] not in _ELSEWHERE and turn.config.enabled
        ):
            from .recorder import begin

            await begin(turn, event.data["call_id"])
        case "tool.result" if "change" in turn.state:
            from .recorder import end

            await end(turn, event.data["call_id"])
        case "session.deleted":
            from .recorder import forget

            await forget(turn, event.data["sessions"], event.data["heirs"])
        case _:
            pass


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``undo`` and ``redo`` to the command line (also as ``session undo``) and to ``chat``."""
    return [
        Command("undo", "Take back the last turn: its messages and its changes to files.", _cli("undo"), _slash("undo")),
        Command("redo", "Do again what the last undo took back.", _cli("redo"), _slash("redo")),
    ]


def _cli(verb: str) -> Any:
    def load() -> object:
        from . import cli

        return getattr(cli, verb)

    return load


def _slash(verb: str) -> Any:
    async def run(rest: str, turn: Turn) -> object:
        from .cli import slash

        return await slash(verb, rest, turn)

    return run
