"""What goes wrong while plugins are managed (exit code 1)."""

from __future__ import annotations

from moryflow_sdk import MoryflowError


class InstallError(MoryflowError):
    """A plugin was not installed, updated or removed; what was there before is there still."""

    code = "install"


__all__ = ["InstallError"]
