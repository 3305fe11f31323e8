"""``@hookimpl`` for each hook by name, so that type checkers and editors know its arguments and its result.

``@hooks.tool_gate`` marks what ``@hookimpl(specname="tool_gate")`` does, with the same options. The types are in ``hooks.pyi``,
which ``tests/packaging/refresh_docs.py`` makes from :mod:`moryflow_sdk.hookspecs`.
"""

from __future__ import annotations

from functools import partial

from .hookspecs import HOOKS, hookimpl

globals().update({name: partial(hookimpl, specname=name) for name in HOOKS})
