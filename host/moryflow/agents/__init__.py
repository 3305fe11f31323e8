"""Agents the host knows: the default one, and what plugins contribute."""

from .default import DEFAULT_AGENT, DEFAULT_PROMPT

__all__ = ["DEFAULT_AGENT", "DEFAULT_PROMPT"]
