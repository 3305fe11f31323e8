"""Every model call at a low temperature. Copy it to ``~/.moryflow/plugins/``."""

from __future__ import annotations

from moryflow_sdk import ChatParams, hookimpl


@hookimpl
def chat_params(params: ChatParams) -> ChatParams:
    """Change one parameter and leave the others."""
    return params.replace(temperature=0.2)
