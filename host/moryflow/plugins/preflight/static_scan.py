"""What code that was run could have changed, read from the code itself: most plugins set nothing that is not their own.

Comparing everything that belongs to everyone takes a forked process some 10 ms, for it has to touch all of it. Code that
sets no attribute and uses nothing that could set one for it is spared that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from opcode import opmap
from types import CodeType
from typing import Any

_SETTING = frozenset(opmap[name] for name in ("STORE_ATTR", "DELETE_ATTR"))
_REACHING = frozenset({
    "__builtins__", "__code__", "__defaults__", "__delattr__", "__dict__", "__getattribute__", "__globals__", "__import__",
    "__kwdefaults__", "__setattr__", "_clear", "apply", "attrgetter", "captureWarnings", "compile", "ctypes", "delattr", "eval",
    "exec", "gc", "get_objects", "getattr", "globals", "import_module", "install", "modules", "monkey", "patch", "reload",
    "runpy", "setLoggerClass", "setattr", "update_wrapper", "vars",
})  # fmt: skip
"""Names by which attributes are set, or found, without being named."""


@dataclass
class Reading:
    """Looks at all code that is run from :meth:`begin` on, except that of modules that belong to everyone."""

    suspicious: bool = False
    running: list[bool] = field(default_factory=list[bool])
    """Whose module is being imported, innermost last: whether it belongs to everyone."""

    def begin(self) -> None:
        """Listen. For a process that only probes: it cannot be undone."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec" and not self.suspicious and not (self.running and self.running[-1]):
            code = arguments[0]
            self.suspicious = not isinstance(code, CodeType) or any(_reaches(each) for each in _all(code))


def _reaches(code: CodeType) -> bool:
    return not _REACHING.isdisjoint(code.co_names) or not _SETTING.isdisjoint(code.co_code[::2])


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _all(each)
