"""Agents the host knows: the default one, and what plugins contribute."""

from .default import CHAT_ONLY_PROMPT, DEFAULT_AGENT, DEFAULT_PROMPT

__all__ = ["CHAT_ONLY_PROMPT", "DEFAULT_AGENT", "DEFAULT_PROMPT"]
