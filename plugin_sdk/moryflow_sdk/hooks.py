"""``@hookimpl`` for each hook by name, so that type checkers and editors know its arguments and its result.

``@hooks.tool_gate`` does the same as ``@hookimpl(specname="tool_gate")``, and takes the same options. The types are in
``hooks.pyi``, which ``tests/packaging/refresh_docs.py`` generates from :mod:`moryflow_sdk.hookspecs`.
"""

from __future__ import annotations

from functools import partial

from .hookspecs import HOOKS, hookimpl

globals().update({name: partial(hookimpl, specname=name) for name in HOOKS})
