"""Manage plugins without running them: install, list, lock, update, remove.

Nothing in this room imports a third-party plugin. What a plugin is, is read from its metadata, its ``plugin.toml`` and
what was remembered of its last load; its code runs in the probe (``probing/``) or in a host, nowhere else.
"""

from __future__ import annotations

from moryflow_sdk import MoryflowError

INSTALLING = "installing"
"""Folder of the home that is there while something is installed, and after an installation that was killed."""


class InstallError(MoryflowError):
    """A plugin was not installed, updated or removed; what was there before is there still (exit code 1)."""

    code = "install"
