"""How services want to be told how long a model should reason; the sources are in ``docs/services.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from moryflow_sdk.models import Effort

EffortStyle = Literal["reasoning_effort", "reasoning", "thinking", "off_or_effort", "enable_thinking", "template"]
"""The form of the request.

``reasoning_effort``: OpenAI and most others. ``reasoning``: OpenRouter. ``thinking``: DeepSeek and GLM, a switch and an effort.
``off_or_effort``: Kimi, whose newest models know no switch. ``enable_thinking``: Qwen, a switch and a number of tokens.
``template``: vLLM and llama.cpp, arguments of the model's chat template.
"""

_BUDGETS: Mapping[Effort, int] = {
    "minimal": 512, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 81_920,
}  # fmt: skip
"""Tokens of Qwen's ``thinking_budget``; 81,920 is the longest reasoning of its models."""


def _thinking(effort: Effort) -> dict[str, Any]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


_FIELDS: Mapping[EffortStyle, Callable[[Effort], dict[str, Any]]] = {
    "reasoning_effort": lambda effort: {"reasoning_effort": effort},
    "reasoning": lambda effort: {"reasoning": {"effort": effort}},
    "thinking": _thinking,
    "off_or_effort": lambda effort: _thinking(effort) if effort == "none" else {"reasoning_effort": effort},
    "enable_thinking": lambda effort: {
        "enable_thinking": effort != "none",
        **({"thinking_budget": _BUDGETS[effort]} if effort != "none" else {}),
    },
    "template": lambda effort: {
        "chat_template_kwargs": {
            "enable_thinking": effort != "none",
            **({"reasoning_effort": effort} if effort != "none" else {}),
        }
    },
}


def effort_fields(style: EffortStyle, effort: Effort | None) -> dict[str, Any]:
    """Return the parameters that ask for `effort`; none if nobody asked."""
    return _FIELDS[style](effort) if effort else {}
