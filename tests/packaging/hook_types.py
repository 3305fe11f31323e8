"""The types of ``moryflow_sdk.hooks``, from the hook specifications: one protocol per subset of a hook's arguments."""

from __future__ import annotations

import inspect
from itertools import combinations

from moryflow_sdk import HOOKS, hookspecs

HEAD = """# Made by tests/packaging/refresh_docs.py from moryflow_sdk.hookspecs; do not edit.
# fmt: off
# ruff: noqa
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, overload

from .agents import Agent
from .calls import ToolCall, ToolResult
from .commands import Command
from .context import PluginContext, Turn
from .errors import Diagnostic
from .events import Event
from .hookspecs import CompactionPlan, OnFailure
from .models import ChatParams, Message, ModelProvider, SystemBlock, SystemPrompt
from .tools import Tool
from .verdicts import Ruling, Stop, Verdict
"""
OPTIONS = """\
    before: Sequence[str] | str = (), after: Sequence[str] | str = (), on_failure: OnFailure = "skip",
    timeout: float | None = None, blocking: bool = False, events: Sequence[str] | str = (),
"""


def stub() -> str:
    """Return the text of ``hooks.pyi``."""
    return "\n".join([HEAD, *(_hook(name) for name in HOOKS)])


def _hook(name: str) -> str:
    specification = getattr(hookspecs, name)
    signature = inspect.signature(specification)
    result = str(signature.return_annotation).replace("Iterable[Tool]", "Iterable[Tool | Diagnostic]")
    result = f"{result} | Awaitable[{result}]"
    shape = "".join(part.title() for part in name.split("_"))
    parameters, lines, shapes = list(signature.parameters.values()), list[str](), [f"Callable[[], {result}]"]
    for count in range(1, len(parameters) + 1):
        for chosen in combinations(parameters, count):
            shapes.append(f"_{shape}{''.join(item.name.title() for item in chosen)}")
            given = ", ".join(f"{item.name}: {item.annotation}" for item in chosen)
            lines += [f"class {shapes[-1]}(Protocol):", f"    def __call__(self, *, {given}) -> {result}: ..."]
    lines.append(f'_{shape} = TypeVar("_{shape}", bound={" | ".join(shapes)})')
    doc = (inspect.getdoc(specification) or "").split("\n", 1)[0]
    lines += ["@overload", f"def {name}(function: _{shape}, /) -> _{shape}:", f'    """{doc}"""']
    lines += ["@overload", f"def {name}(\n    *,\n{OPTIONS}) -> Callable[[_{shape}], _{shape}]: ...\n"]
    return "\n".join(lines)
