"""Manage plugins without running them: install, list, lock, update, remove.

Nothing in this room imports a third-party plugin. What is known about a plugin comes from its metadata, its ``plugin.toml``
and its remembered last load; its code runs only in the probe (``plugins/preflight/``) or in a host.
"""

from __future__ import annotations

from moryflow_sdk import MoryflowError


class InstallError(MoryflowError):
    """A plugin was not installed, updated or removed (exit code 1)."""

    code = "install"
