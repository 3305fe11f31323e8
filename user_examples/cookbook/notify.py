"""A sign when a turn has ended.

After a turn that took so long that you may look elsewhere, the plugin runs a command of yours or rings the terminal's bell.

Try it: ``"plugins": {"notify": {"command": ["notify-send", "Moryflow"]}}``, then ``moryflow run "Hello"``.
"""

from __future__ import annotations

import subprocess
import sys

from moryflow_sdk import Event, Turn, hookimpl
from pydantic import BaseModel


class Settings(BaseModel, frozen=True):
    """What ``plugins.notify`` may say; how the turn ended comes behind the command."""

    command: list[str] = []


config_model = Settings


@hookimpl(events="turn.finish")
def event(event: Event, turn: Turn | None) -> None:
    """Tell the user of turns of their own; those of sub-agents have a parent."""
    if turn is None or event.parent is not None:
        return
    if turn.config.command:
        subprocess.Popen([*turn.config.command, event.data["end_reason"]], stdin=subprocess.DEVNULL)
    elif sys.stderr.isatty():
        sys.stderr.write("\a")
