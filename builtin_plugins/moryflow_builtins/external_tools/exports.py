"""The tools that a file exports: as ``create_tools(ctx)``, ``tools``, ``tool`` or ``default``, else every ``@tool`` in it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import ModuleType
from typing import Any

import moryflow_sdk
from moryflow_sdk import Tool
from moryflow_sdk.arguments import parameters

# How many items of one export are read; an iterator may be endless, and the host accepts no more tools of one file.
MAX_TOOLS = 256
EXPORTS = ("tools", "tool", "default")


@dataclass(frozen=True)
class Wrong:
    """An export that cannot be used, and why."""

    message: str
    line: int | None = None


def exported_tools(module: ModuleType, ctx: Any, *, source: str = "", revision: str = "") -> list[Tool | Wrong]:
    """Return the tools of `module`, each with a schema and its `source`, and the exports that cannot be used."""
    found: dict[Any, Tool | Wrong] = {}
    for name, value in _exports_of(module, ctx):
        for item in _items(name, value):
            key = item.function if isinstance(item, Tool) else item
            found[key] = _with_schema(replace(item, source=source, revision=revision)) if isinstance(item, Tool) else item
    if not found:
        return [Wrong("it exports no tool: mark a function with @tool, or export tools, tool, default or create_tools(ctx)")]
    return list(found.values())


def has_factory(module: ModuleType) -> bool:
    """Whether the module makes its tools in a function, which has to be called each time."""
    return "create_tools" in vars(module) or inspect.isfunction(vars(module).get("tools"))


def _exports_of(module: ModuleType, ctx: Any) -> Iterator[tuple[str, Any]]:
    """Yield the exports of a module, by name; if it has none of these names, all tools in it."""
    there = vars(module)  # not getattr: a module may have a __getattr__ that never returns
    names = [name for name in EXPORTS if there.get(name) is not None and there[name] is not moryflow_sdk.tool]
    factory = there.get("create_tools")
    for name in names:
        value = there[name]
        yield name, _call_factory(name, value, ctx) if name == "tools" and inspect.isfunction(value) else value
    if factory is not None:
        yield "create_tools", _call_factory("create_tools", factory, ctx)
    if not names and factory is None:
        yield "@tool", [value for value in there.values() if isinstance(value, Tool)]


def _call_factory(name: str, factory: Any, ctx: Any) -> Any:
    """Return the result of a factory, which may be asynchronous and need not take the context."""
    if not callable(factory):
        return Wrong(f"{name} is not a function")
    try:
        made = factory(ctx) if parameters(factory) else factory()
        return asyncio.run(made) if inspect.iscoroutine(made) else made
    except BaseException as error:  # the boundary around the user's code; the other exports are still used
        return Wrong(f"{name}: {_reason(error)}", _line(error, factory))


def _items(name: str, value: Any) -> Iterable[Tool | Wrong]:
    """Return `value` as tools; it may be one or several tools, or plain functions, from which tools are made."""
    if isinstance(value, Mapping):
        value = list(value.values())
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    return [_tool_of(name, item) for item in (islice(value, MAX_TOOLS + 1) if several else [value])]


def _tool_of(name: str, item: Any) -> Tool | Wrong:
    if isinstance(item, Tool | Wrong):
        return item
    if not inspect.isfunction(item):
        return Wrong(f"{name}: {item!r:.80} is not a tool; make it with @tool")
    try:
        return moryflow_sdk.tool(item)
    except Exception as error:  # a function without type hints, for example
        return Wrong(f"{item.__name__}: {error}", item.__code__.co_firstlineno)


def _with_schema(item: Tool) -> Tool | Wrong:
    """Return `item` after its schema was made, so that errors in its type hints are reported now and not in a turn."""
    try:
        if not isinstance(item.parameters, Mapping):
            return Wrong(f"{item.name}: its schema is not an object")
    except Exception as error:  # pydantic and typing raise many kinds of errors for type hints
        code = getattr(inspect.unwrap(item.function), "__code__", None)
        return Wrong(f"{item.name}: no schema can be made of its type hints: {_reason(error)}", code and code.co_firstlineno)
    return item


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]


def _line(error: BaseException, factory: Any) -> int | None:
    file, line, trace = getattr(getattr(factory, "__code__", None), "co_filename", ""), None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
