"""Whether a tool that a plugin contributes can be offered: its name, its body, its schema, its words, its time."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

from moryflow_sdk import Tool

from moryflow.kernel.records import Implementation

from .tool_schemas import accepted, can_be_sent

MOST_TOOLS = 256
"""Tools of one plugin, or of one file; a model is told of each in every request."""
MOST_DESCRIPTION = 16_384
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_-]{0,63}")
_RULE = "a letter or _, then up to 63 letters, digits, _ and -"


class Refused(Exception):
    """The tool cannot be offered."""


def usable(item: Any, tier: str) -> tuple[Tool, str]:
    """Return the tool as it will be offered, and what had to be changed about it.

    :raises Refused: it cannot be offered.
    """
    if not isinstance(item, Tool):
        shown = f"the function {item.__name__}" if isinstance(item, FunctionType) else f"{item!r:.80}"
        raise Refused(f"{shown} is not a tool; make it with @tool")
    if not isinstance(item.name, str) or not _NAME.fullmatch(item.name):
        raise Refused(f"{item.name!a:.80} is not a tool name: {_RULE}")
    if not callable(item.function):
        raise Refused(f"{item.name!r} has no function")
    if problem := _time_problem(item.timeout):
        raise Refused(f"the timeout of {item.name!r} {problem}")
    return _described(_with_schema(item, tier))


def place_of(item: Any) -> tuple[str, int] | None:
    """Return file and line of what a plugin contributed, or the file it was taken from; ``None`` when it is not known."""
    source = _source(item)
    code = (
        getattr(inspect.unwrap(item.function), "__code__", None) if isinstance(item, Tool) and callable(item.function) else None
    )
    if code is None or (source and code.co_filename != source):
        return (source, 0) if source else None
    return code.co_filename, code.co_firstlineno


_LISTS = {"tools": "moryflow tool check", "agents": "moryflow agent check", "commands": "moryflow doctor"}
"""What looks again at what was made of a file, by the hook that gave it."""


def next_step(item: Any, by: Implementation) -> str:
    """Return the command that looks at what a plugin contributed again once its file was changed."""
    if (source := _source(item)) and by.hook in _LISTS:
        return f"change {Path(source).name}, then {_LISTS[by.hook]}"
    return f"moryflow plugin check {by.plugin}" if by.tier != "builtin" else ""


def _source(item: Any) -> str:
    """Return the file that an item names; looking at it may break, like anything of a plugin."""
    try:
        source = item.source
    except Exception:
        return ""
    return source if isinstance(source, str) else ""


def _time_problem(timeout: Any) -> str:
    if timeout is None:
        return ""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        return f"is {timeout!a:.40}, not a number of seconds"
    return "" if timeout > 0 and math.isfinite(timeout) else f"is {timeout}, not a number of seconds above 0"


def _with_schema(item: Tool, tier: str) -> Tool:
    """Return `item` with a schema that can be sent. What the host's own tools have comes from their type hints."""
    if item.schema is None and tier == "builtin" and not item.source:
        return item
    try:
        schema = accepted(item.parameters)
    except ValueError as error:
        raise Refused(f"the schema of {item.name!r} cannot be used: {error}") from error
    return item if item.schema is None else replace(item, schema=schema)


def _described(item: Tool) -> tuple[Tool, str]:
    if not isinstance(item.description, str) or not item.description.strip():
        return replace(item, description=""), f"{item.name!r} has no description, so a model can only guess what it is for"
    if len(item.description) > MOST_DESCRIPTION:
        cut = item.description[:MOST_DESCRIPTION]
        return replace(item, description=cut), f"the description of {item.name!r} is cut at {MOST_DESCRIPTION} characters"
    if not can_be_sent(item.description):
        sent = item.description.encode("utf-8", "replace").decode("utf-8")
        return replace(item, description=sent), f"the description of {item.name!r} holds what is no Unicode text"
    return item, ""
