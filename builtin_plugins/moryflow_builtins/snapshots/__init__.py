"""Undo for files: what they were before and after each step that may change them, in a shadow git repository (S4.8).

The repository lies in the plugin's data folder, outside the vault. A step is recorded when its first call that may change
files is about to run; steps that only read cost nothing. Without git there is no undo of files, and one notice says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moryflow_sdk import Command, Event, Turn, hookimpl

from .settings import SnapshotSettings

name = "snapshots"
services = ("emit", "files", "history")
config_model = SnapshotSettings
config_path = "agents.runtime.snapshots"

_READS = frozenset({"read", "web_fetch", "web_search"})
"""Domains whose tools change no files of the vault."""


@hookimpl(timeout=60.0, events=("tool.start", "step.finish", "turn.finish"))
async def event(event: Event, turn: Turn | None) -> None:
    """Record the files when the first call of a step that may change them begins, and when the step has ended."""
    if turn is None or not turn.config.enabled:
        return
    match event.type:
        case "tool.start" if event.data["state"] == "running" and event.data["domain"] not in _READS:
            from .taking import begin

            await begin(turn)
        case "step.finish" | "turn.finish" if "before" in turn.state:
            from .taking import finish

            await finish(turn, event.data.get("node", ""))
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
        from .slash import slash

        return await slash(verb, rest, turn)

    return run
