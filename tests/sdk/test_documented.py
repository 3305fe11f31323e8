"""What the SDK promises is said where an editor shows it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import moryflow_sdk
import pytest
from moryflow import testing
from moryflow_sdk import services

PUBLIC = [(module, name) for module in (moryflow_sdk, services, testing) for name in module.__all__]


def _unsaid(owner: Any, name: str) -> Iterator[str]:
    """Yield `name`, and what is public of it, where nobody has written what it is."""
    if not inspect.isclass(owner) and not inspect.isfunction(owner):
        return
    if not inspect.getdoc(owner):
        yield name
    for key, member in tuple(vars(owner).items()) if inspect.isclass(owner) else ():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        inherited = any(key in vars(base) for base in owner.__mro__[1:])
        if not (key.startswith("_") or inherited or not inspect.isfunction(function) or inspect.getdoc(getattr(owner, key))):
            yield f"{name}.{key}"


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[f"{module.__name__}.{name}" for module, name in PUBLIC])
def test_every_public_name_says_what_it_is(module: Any, name: str) -> None:
    """A docstring on the class or function, and on each of its public methods and properties (CONTRACT §3)."""
    assert list(_unsaid(getattr(module, name), name)) == []
