"""The markers: ``@hookspec`` for us, ``@hookimpl`` for plugins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

import pluggy

PROJECT = "moryflow"
hookspec = pluggy.HookspecMarker(PROJECT)

F = TypeVar("F", bound=Callable[..., Any])
OnFailure = Literal["skip", "withhold"]


@dataclass(frozen=True)
class HookOptions:
    """What an implementation asks for; see :func:`hookimpl`."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    on_failure: OnFailure = "skip"
    timeout: float | None = None
    blocking: bool = False
    events: frozenset[str] = frozenset()


@overload
def hookimpl(function: F, /) -> F: ...


@overload
def hookimpl(
    *,
    specname: str | None = None,
    before: Sequence[str] | str = (),
    after: Sequence[str] | str = (),
    on_failure: OnFailure = "skip",
    timeout: float | None = None,
    blocking: bool = False,
    events: Sequence[str] | str = (),
) -> Callable[[F], F]: ...


def hookimpl(
    function: Any = None,
    /,
    *,
    specname: str | None = None,
    before: Sequence[str] | str = (),
    after: Sequence[str] | str = (),
    on_failure: OnFailure = "skip",
    timeout: float | None = None,
    blocking: bool = False,
    events: Sequence[str] | str = (),
) -> Any:
    """Mark a function as the implementation of the hook it is named after (or of `specname`).

    :param before: names of plugins of the same tier that should come later; `after`, those that should come earlier.
    :param on_failure: ``withhold`` for redactors: when this transform fails, nothing is sent on.
    :param timeout: seconds, instead of the default for this kind of hook.
    :param blocking: a plain function of a built-in that must not run on the loop.
    :param events: for the hook ``event``: the types it wants to be told of; without them, all.
    """

    def mark(target: Any) -> Any:
        options = HookOptions(_names(before), _names(after), on_failure, timeout, blocking, frozenset(_names(events)))
        target.moryflow_options = options
        return pluggy.HookimplMarker(PROJECT)(target, specname=specname)

    return mark(function) if function is not None else mark


def _names(value: Sequence[str] | str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
