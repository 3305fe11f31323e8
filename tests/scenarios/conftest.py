"""A real host in a temporary home, see :mod:`rig`."""

from rig import rig  # noqa: F401
