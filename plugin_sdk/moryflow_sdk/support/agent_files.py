"""A Markdown file is an agent: frontmatter says who it is, the body is its prompt.

A file that is wrong gives a :class:`Diagnostic` with file and line instead of an agent.
"""

from __future__ import annotations

from pathlib import Path

from moryflow_sdk.agents import Agent
from moryflow_sdk.diagnostics import Diagnostic

from .agent_fields import RESERVED, WrongAgent, agent_id, make_agent
from .markdown_files import MarkdownFile, WrongFile, parse_markdown, read_markdown, shown_path


def read_agent(path: Path, *, reserved: frozenset[str] = RESERVED) -> tuple[Agent | None, list[Diagnostic]]:
    """Return the agent in the file at `path`, or ``None``, and what is wrong with it. Never raises.

    :param reserved: ids that it may not have; only the plugin that brings the built-in agents gives another set.
    """
    source = shown_path(path)
    try:
        read = read_markdown(path)
    except WrongFile as wrong:
        return None, [_said(wrong, source)]
    return _agent(read, source, path.stem, reserved)


def parse_agent(
    data: bytes, source: str, *, default_id: str = "", reserved: frozenset[str] = RESERVED, distrusted: str = ""
) -> tuple[Agent | None, list[Diagnostic]]:
    """Return the agent that `data` describes, or ``None``, and what is wrong with it.

    :param default_id: used for files of other systems, which have a ``name`` and no ``id``; only when it is valid.
    :param distrusted: why the file may not be the person's own; it then allows nothing.
    """
    try:
        read = parse_markdown(data, distrusted)
    except WrongFile as wrong:
        return None, [_said(wrong, source)]
    return _agent(read, source, default_id, reserved)


def _agent(read: MarkdownFile, source: str, default_id: str, reserved: frozenset[str]) -> tuple[Agent | None, list[Diagnostic]]:
    try:
        name = agent_id(read.metadata, default_id, reserved)
        agent, warnings = make_agent(read.metadata, read.body, source, name, read.distrusted)
    except WrongAgent as wrong:
        line = (read.line_of(wrong.field) if wrong.field else None) or 2
        return None, [Diagnostic(file=source, code=wrong.code, message=str(wrong), line=line)]
    return agent, [
        Diagnostic(file=source, code="agent_field", message=text, line=read.line_of(*field)) for field, text in warnings
    ]


def _said(wrong: WrongFile, source: str) -> Diagnostic:
    return Diagnostic(file=source, code=f"agent_{wrong.code}", message=str(wrong), line=wrong.line, column=wrong.column)
