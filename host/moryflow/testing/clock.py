"""A clock for the modules of plugins that a test can set ahead; the host's own code keeps the real one."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

_FUNCTIONS = {"time": 1, "monotonic": 1, "time_ns": 10**9, "monotonic_ns": 10**9}


class PluginClock:
    """Replaces, in the modules of plugins, what tells the time: of :mod:`time` and of :mod:`datetime`."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._swaps = _swaps(lambda: self.ahead)
        self._undo: list[tuple[ModuleType, str, Any]] = []

    def advance(self, packages: Iterable[str], seconds: float) -> None:
        """Set the clock of the modules in `packages` ahead."""
        self.ahead += seconds
        tops = tuple(packages)
        for module in [each for name, each in sys.modules.items() if name.startswith(tops) and _is_below(name, tops)]:
            for name, value in list(vars(module).items()):
                if (swap := self._swaps.get(id(value))) is not None:
                    self._undo.append((module, name, value))
                    setattr(module, name, swap)

    def restore(self) -> None:
        """Give every module its own names back."""
        while self._undo:
            module, name, value = self._undo.pop()
            setattr(module, name, value)


def _is_below(name: str, tops: tuple[str, ...]) -> bool:
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def _swaps(ahead: Callable[[], float]) -> dict[int, Any]:
    def moved(real: Callable[[], Any], unit: int) -> Callable[[], Any]:
        return lambda: real() + type(real())(ahead() * unit)

    class AnyDatetime(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime.datetime)

    class Datetime(datetime.datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=ahead())

        @classmethod
        def utcnow(cls) -> Any:
            return datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=ahead())

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    functions = {name: moved(getattr(time, name), unit) for name, unit in _FUNCTIONS.items()}
    swaps: dict[int, Any] = {id(getattr(time, name)): function for name, function in functions.items()}
    swaps[id(datetime.datetime)] = Datetime
    swaps[id(time)] = _copy(time, functions)
    swaps[id(datetime)] = _copy(datetime, {"datetime": Datetime})
    return swaps


def _copy(module: ModuleType, changed: dict[str, Any]) -> ModuleType:
    copy = ModuleType(module.__name__)
    vars(copy).update({**vars(module), **changed})
    return copy
