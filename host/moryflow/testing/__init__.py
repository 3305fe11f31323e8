"""Tools for plugin authors' tests: a pytest plugin, an isolated host, a scripted model and a loopback model server.

Each is imported on first use, because pytest loads this package in every run of an environment that has Moryflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moryflow_sdk.support.scripted import ScriptedModel as scripted_model

    from .isolated import IsolatedHost
    from .replies import LoopbackServer, Reply

__all__ = ["IsolatedHost", "LoopbackServer", "Reply", "scripted_model"]

_HOMES = {
    "IsolatedHost": ("moryflow.testing.isolated", "IsolatedHost"),
    "LoopbackServer": ("moryflow.testing.replies", "LoopbackServer"),
    "Reply": ("moryflow.testing.replies", "Reply"),
    "scripted_model": ("moryflow_sdk.support.scripted", "ScriptedModel"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
