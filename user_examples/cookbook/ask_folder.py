"""A question before anything in some folders changes.

A rule in the configuration can do the same for one pattern; a plugin can give a reason, and asks in ``full_access`` too.

Try it: ``moryflow tool run write --path contracts/a.md --content x``.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from moryflow_sdk import Ask, ToolCall, Turn, hookimpl
from pydantic import BaseModel


class Settings(BaseModel, frozen=True):
    """What ``plugins.ask_folder`` may say: folder of the vault → why one asks."""

    folders: dict[str, str] = {"contracts": "contracts are signed", "migrations": "migrations run once"}


config_model = Settings


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Ask | None:
    """Judge the resolved path: no link and no ``..`` leads around it."""
    settings: Settings = turn.config
    for target in call.targets:
        parents = {str(parent) for parent in PurePosixPath(target.text.removeprefix("vault:/")).parents}
        for folder, reason in settings.folders.items():
            if target.domain == "edit" and folder in parents:
                return Ask(f"{reason}: {target.text}", bypass="never")
    return None
