"""How risky a write is, and how a plugin replaces the built-in judgement with its own.

This is a function and not a hook because another plugin, the memory bank, calls it, and only the host calls hooks. A replaced
judgement applies to the whole process: all hosts in one process share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from moryflow_sdk.calls import ToolCall

Risk = Literal["low", "medium", "high"]
RiskFunction = Callable[["ToolCall"], "Risk | None"]
"""A call that writes → its risk, or ``None`` to leave the judgement to the function set before. It must not block."""

_chosen: list[RiskFunction] = []


def replace_risk(function: RiskFunction) -> Callable[[], None]:
    """Let `function` judge how risky a write is; return a function that undoes this.

    Call it in ``plugin_start`` and return its result, so that the judgement ends when the plugin is unloaded. The function
    that was set last is asked first. If a function raises or returns something else, the risk counts as ``high``.
    """
    _chosen.append(function)

    def undo() -> None:
        if function in _chosen:
            _chosen.remove(function)

    return undo


def risk_functions() -> tuple[RiskFunction, ...]:
    """Return the functions that plugins have set, the last one set first: that is the order in which they are asked."""
    return tuple(reversed(_chosen))
