"""Manage plugins without running them: install, list, lock, update, remove.

Nothing in this room imports a third-party plugin. What is known about a plugin comes from its metadata, its ``plugin.toml``
and its remembered last load; its code runs only in the probe (``plugins/preflight/``) or in a host.
"""

from __future__ import annotations

import logging
from pathlib import Path

from moryflow_sdk import MoryflowError

log = logging.getLogger(__name__)

NO_SPACE = "free some space, then try again"
INSTALLING = "installing"
"""The folder of the home that exists during an installation, and after one that was killed."""


class InstallError(MoryflowError):
    """A plugin was not installed, updated or removed, and nothing has changed (exit code 1)."""

    code = "install"


def put_back(home: Path) -> None:
    """Undo an installation that was killed. Errors are logged and do not stop a start; otherwise it costs one ``stat``."""
    if not (home / INSTALLING).is_dir():
        return
    from .rollback import recover

    try:
        names = recover(home)
    except MoryflowError as error:
        log.warning("%s", error)
        return
    if names:
        log.warning("an interrupted installation was undone; the previous versions are back (%s)", ", ".join(names))
