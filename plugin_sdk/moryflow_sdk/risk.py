"""How risky a write is, and how a plugin puts its own judgement in place of the built-in one.

This is a function and not a hook because another plugin asks, the memory bank, and only the host calls hooks. What is put in
place holds for the process: hosts that live in one process share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from moryflow_sdk.calls import ToolCall

Risk = Literal["low", "medium", "high"]
RiskFunction = Callable[["ToolCall"], "Risk | None"]
"""A call that writes → its risk, or ``None`` to leave it to who was there before. It must not wait for anything."""

_chosen: list[RiskFunction] = []


def replace_risk(function: RiskFunction) -> Callable[[], None]:
    """Let `function` say how risky a write is; return a function that undoes it.

    Call it in ``plugin_start`` and return what it returns, so that it goes when the plugin goes. The last one that was
    put in place is asked first. One that raises, hangs or answers nonsense counts as ``high``.
    """
    _chosen.append(function)

    def undo() -> None:
        if function in _chosen:
            _chosen.remove(function)

    return undo


def risk_functions() -> tuple[RiskFunction, ...]:
    """Return what plugins have put in place, the first to be asked first."""
    return tuple(reversed(_chosen))
