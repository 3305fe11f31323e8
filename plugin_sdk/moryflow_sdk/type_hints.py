"""Parameters and type hints of a plugin's function, also where a hint names what only a type checker imports.

From Python 3.14 on hints are evaluated when they are asked for, not when the function is made: one that names something
imported under ``TYPE_CHECKING`` is as good there as under ``from __future__ import annotations`` before (PEP 649).
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

if sys.version_info >= (3, 14):
    from annotationlib import Format


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `function` by name, without asking what their hints mean."""
    if sys.version_info >= (3, 14):
        return inspect.signature(function, annotation_format=Format.FORWARDREF).parameters
    return inspect.signature(function).parameters


def type_hints(function: Callable[..., Any], late: Mapping[str, Any], *, include_extras: bool = False) -> dict[str, Any]:
    """Return what the hints of `function` mean; `late` are names that its module need not import.

    :raises NameError: a hint names something else that is not there.
    """
    names = dict(late)
    if sys.version_info < (3, 14):
        return typing.get_type_hints(function, localns=names, include_extras=include_extras)
    hints = typing.get_type_hints(function, localns=names, include_extras=include_extras, format=Format.FORWARDREF)
    for reference in _unresolved(list(hints.values())):
        reference.evaluate(globals=inspect.unwrap(function).__globals__, locals=names)  # raises, and names what is missing
    return hints


def _unresolved(hint: Any) -> Iterator[Any]:
    """Yield what stands in `hint`, at any depth, for names that are not there."""
    if isinstance(hint, typing.ForwardRef):
        yield hint
    for part in cast("list[Any]", hint) if isinstance(hint, list) else typing.get_args(hint):
        yield from _unresolved(part)
