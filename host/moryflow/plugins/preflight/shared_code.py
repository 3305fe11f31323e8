"""Functions, classes and methods that the host has loaded too: noted when the helper begins, compared after a probe.

What it buys: a plugin that puts its own ``json.loads`` in place of Python's is refused and named with its line, where it
would otherwise break the host later, at a place that nobody connects with it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_IMMUTABLE = 1 << 8
"""Flag of types that cannot be changed."""
_MOVING = frozenset({"_", "__abstractmethods__", "__signature__"})
"""Names that Python and libraries set when they are first needed."""


@dataclass
class SharedCode:
    """The modules that are loaded when this is made, and their classes, each with what it holds."""

    modules: dict[str, Any] = field(default_factory=lambda: dict(sys.modules))
    _held: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list[tuple[str, Any, dict[str, Any]]])

    def __post_init__(self) -> None:
        classes: dict[type, str] = {}
        for name, module in self.modules.items():
            if isinstance(module, ModuleType):
                self._held.append((name, module, _callables(module)))
                found = [value for value in vars(module).values() if isinstance(value, type)]
                own = [each for each in found if str(each.__module__).startswith(name) and not each.__flags__ & _IMMUTABLE]
                classes = {**{each: f"{name}.{each.__qualname__}" for each in own}, **classes}
        self._held += [(name, each, _callables(each)) for each, name in classes.items()]

    def changes(self) -> Iterator[str]:
        """Say what is not any more as it was. Python's own names are put back first: the comparison needs them too."""
        held, now = next((held, vars(module)) for _, module, held in self._held if module is builtins)
        yield from [f"builtins.{name}" for name, value in {**held}.items() if _put_back(now, name, value)]
        yield from (f"sys.modules[{name!r}]" for name, module in self.modules.items() if sys.modules.get(name) is not module)
        planted = [name for name, module in sys.modules.items() if module is None and name not in self.modules]
        yield from (f"sys.modules[{name!r}]" for name in planted)
        for name, where, held in self._held:
            now = vars(where)
            lost = [each for each, value in held.items() if now.get(each) is not value]
            if lost:
                yield f"{name}.{lost[0]}" if len(lost) == 1 else f"{name} ({', '.join(lost[:3])})"


def _callables(where: Any) -> dict[str, Any]:
    """Return what is called by name: functions and classes of a module, methods and properties of a class."""
    if isinstance(where, ModuleType):
        kinds: tuple[type, ...] = (FunctionType, BuiltinFunctionType, type)
    else:
        kinds = (FunctionType, BuiltinFunctionType, classmethod, staticmethod, property)
    return {name: value for name, value in vars(where).items() if isinstance(value, kinds) and name not in _MOVING}


def _put_back(now: dict[str, Any], name: str, value: Any) -> bool:
    if now.get(name) is value:
        return False
    now[name] = value
    return True
