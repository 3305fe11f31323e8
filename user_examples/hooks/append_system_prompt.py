"""House rules at the end of the system prompt. Copy it to ``~/.moryflow/plugins/``."""

from __future__ import annotations

from moryflow_sdk import SystemBlock, SystemPrompt, hookimpl


@hookimpl
def chat_system(system: SystemPrompt) -> SystemPrompt:
    """Add a block; the same text in every turn, so that the provider's cache holds."""
    return system.append(SystemBlock(id="house_rules", text="You must reply in short bullet points."))
