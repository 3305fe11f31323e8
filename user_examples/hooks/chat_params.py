"""Answers that can be repeated: no temperature, one seed."""

from __future__ import annotations

from moryflow_sdk import ChatParams, hookimpl


@hookimpl
def chat_params(params: ChatParams) -> ChatParams:
    """Change two parameters and leave the others; `extra` goes to the provider as it is."""
    return params.replace(temperature=0.0, extra={**params.extra, "seed": 7})
