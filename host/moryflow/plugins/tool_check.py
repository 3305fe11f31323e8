"""Whether a tool that a plugin contributes can be offered: its name, its body, its schema, its words, its time."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from moryflow_sdk import Agent, Tool
from moryflow_sdk.arguments import parameters
from moryflow_sdk.calls import DOMAINS
from moryflow_sdk.support.texts import did_you_mean
from moryflow_sdk.support.tool_schemas import CheckedSchema, can_be_sent, plain_schema

from moryflow.base.foreign_errors import text_of
from moryflow.hooks.plugin_set import Implementation

from .manifest import nearest_or_all

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
    if not issubclass(type(item), Tool):  # isinstance would believe what the item says of itself
        shown = f"the function {item.__name__}" if isinstance(item, FunctionType) else f"{item!r:.80}"
        raise Refused(f"{shown} is not a tool; make it with @tool")
    if not isinstance(item.name, str) or not _NAME.fullmatch(item.name):
        raise Refused(f"{item.name!a:.80} is not a tool name: {_RULE}")
    if not callable(item.function):
        raise Refused(f"{item.name!r} has no function")
    if problem := _time_problem(item.timeout) or _declared_problem(item):
        what, _, wrong = problem.partition(" ")
        raise Refused(f"the {what} of {item.name!r} {wrong}")
    tool, remark = _described(_with_schema(item, tier))
    return tool, remark or _domain_remark(item)


def place_of(item: Any) -> tuple[str, int] | None:
    """Return file and line of what a plugin contributed, or the file it was taken from; ``None`` when it is not known."""
    source, code = source_of(item), _code_of(item)
    if code is None or (source and code.co_filename != source):
        return (source, 0) if source else None
    return code.co_filename, code.co_firstlineno


def _code_of(item: Any) -> CodeType | None:
    """Return the code of a tool's function; looking at it may break."""
    if not issubclass(type(item), Tool):
        return None
    try:
        code = getattr(inspect.unwrap(item.function), "__code__", None)
    except BaseException:
        return None
    return code if isinstance(code, CodeType) else None


_LISTS = {"tools": "moryflow tool check", "agents": "moryflow agent check", "commands": "moryflow doctor"}
"""What looks again at what was made of a file, by the hook that gave it."""


def next_step(item: Any, by: Implementation) -> str:
    """Return the command that looks at what a plugin contributed again once its file was changed."""
    if (source := source_of(item)) and by.hook in _LISTS:
        return f"change {Path(source).name}, then {_LISTS[by.hook]}"
    return f"moryflow plugin check {by.plugin}" if by.tier != "builtin" else ""


def source_of(item: Any) -> str:
    """Return the file that an item names; looking at it may break, like anything of a plugin."""
    try:
        source = item.source
    except BaseException:
        return ""
    return source if isinstance(source, str) else ""


def _time_problem(timeout: Any) -> str:
    if timeout is None:
        return ""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        return f"timeout is {timeout!a:.40}, not a number of seconds"
    return "" if timeout > 0 and math.isfinite(timeout) else f"timeout is {timeout}, not a number of seconds above 0"


def _declared_problem(item: Tool) -> str:
    """Say what else a tool declares that would be taken for something else: a text for a yes, a list for a function."""
    if not isinstance(item.domain, str):
        return f"domain is {item.domain!a:.40}, not a text"
    if not isinstance(item.parallel_safe, bool):
        return f"parallel_safe is {item.parallel_safe!a:.40}, not True or False"
    if not isinstance(item.remarks, tuple) or not all(isinstance(name, str) for name in item.remarks):
        return f"remarks is {item.remarks!a:.40}, not a tuple of names"
    names = ("targets", "offered", "offered_in", "found_in", "mentions", "preview")
    functions = {name: getattr(item, name) for name in names}
    wrong = next((name for name, value in functions.items() if value is not None and not callable(value)), "")
    return f"{wrong} is {functions[wrong]!a:.40}, not a function" if wrong else ""


def _domain_remark(item: Tool) -> str:
    if item.domain in DOMAINS:
        return ""
    return f"the domain of {item.name!r} is {item.domain!a:.40}, which no rule can name; {nearest_or_all(item.domain, DOMAINS)}"


def _with_schema(item: Tool, tier: str) -> Tool:
    """Return `item` with a schema that can be sent. What the host's own tools have comes from their type hints."""
    if tier == "builtin" and (isinstance(item.schema, CheckedSchema) or (item.schema is None and not item.source)):
        return item
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydantic's: of its own names (copy, json, schema), for those who derive models
            schema = plain_schema(item.parameters)
    except ValueError as error:
        raise Refused(f"the schema of {item.name!r} cannot be used: {error}") from error
    except Exception as error:  # what pydantic, or a type of the plugin's own, raises over a type hint
        raise Refused(f"no schema can be made of the type hints of {item.name!r}: {_briefly(error)}") from error
    if item.schema is not None:
        return replace(item, schema=schema)
    given = item.arguments.names
    lost = [name for name in parameters(item.function) if name not in given and name != item.context_parameter]
    if lost:  # pydantic keeps such names for itself and says nothing
        raise Refused(f"nothing can be given to the parameter {lost[0]!r} of {item.name!r}; rename it")
    return item


def _briefly(error: Exception) -> str:
    """Return what is said of a type hint, without what pydantic advises its own users to do."""
    said = " ".join(text_of(error).partition("\n\n")[0].partition(" Set `arbitrary_types_allowed")[0].split()).rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


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


def at(file: str, line: int) -> str:
    """Return a place as the beginning of a message."""
    return f"{file}:{line}: " if line else f"{file}: " if file else ""


_GLOB = frozenset("*?[")


def unknown_tools(agent: Agent, tools: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield a sentence, with file and line, for each name that is no tool; a glob may be about tools that will come."""
    known = sorted(tools)
    for name in _written(dict.fromkeys((*(agent.tools or ()), *agent.deny_tools)), known):
        line = _line_of(agent.source, name)
        hint = did_you_mean(name.lower(), known)
        text = f"{at(agent.source, line)}tools: there is no tool {name!a:.80}{hint}; next: moryflow agent check"
        yield text, agent.source, line


def _written(names: Iterable[str], known: Container[str]) -> Iterator[str]:
    """Yield the names that are no tool, as the file has them: of ``Gerp`` the agent has ``gerp`` too."""
    missing = [name for name in names if name not in known and not _GLOB & set(name)]
    spoken = {name.replace("_", "").casefold() for name in missing if name[:1].isupper()}
    present = {name.replace("_", "").casefold() for name in names if name in known}
    for name in missing:
        same = name.replace("_", "").casefold()
        if same not in present and (name[:1].isupper() or same not in spoken):
            yield name


def _line_of(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return 0
    return next((number for number, line in enumerate(lines, 1) if name in line), 0)
