"""Manage plugins without running them: install, list, lock, update, remove.

Nothing in this room imports a third-party plugin. What a plugin is, is read from its metadata, its ``plugin.toml`` and
what was remembered of its last load; its code runs in the probe (``plugins/preflight/``) or in a host, nowhere else.
"""

from __future__ import annotations

import logging
from pathlib import Path

from moryflow_sdk import MoryflowError

log = logging.getLogger(__name__)

NO_SPACE = "free some space, then try again"
INSTALLING = "installing"
"""Folder of the home that is there while something is installed, and after an installation that was killed."""


class InstallError(MoryflowError):
    """A plugin was not installed, updated or removed; what was there before is there still (exit code 1)."""

    code = "install"


def put_back(home: Path) -> None:
    """Put back what an installation was changing when it was killed; nothing of it stops a start. Costs a look."""
    if not (home / INSTALLING).is_dir():
        return
    from .rollback import recover

    try:
        names = recover(home)
    except MoryflowError as error:
        log.warning("%s", error)
        return
    if names:
        log.warning("an installation was cut off; what was there before is there again (%s)", ", ".join(names))
