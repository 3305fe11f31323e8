"""The markers: ``@hookspec`` for us, ``@hookimpl`` for plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    **unknown: Any,
) -> Any:
    """Mark a function as the implementation of the hook it is named after (or of `specname`).

    :param before: names of plugins of the same tier that should come later; `after`, those that should come earlier.
    :param on_failure: ``withhold`` for redactors: when this transform fails, nothing is sent on.
    :param timeout: seconds, instead of the default for this kind of hook.
    :param blocking: a plain function of a built-in that must not run on the loop.
    :param events: for the hook ``event``: the types it wants to be told of, also by the names of
        :data:`~moryflow_sdk.events.OTHER_NAMES` (``session.idle``); without them, all.
    """

    if unknown:
        raise TypeError(_unknown(unknown))

    def mark(target: Any) -> Any:
        _must_be_function(target)
        options = HookOptions(_names(before), _names(after), on_failure, timeout, blocking, frozenset(_names(events)))
        target.moryflow_options = options
        return pluggy.HookimplMarker(PROJECT)(target, specname=specname)

    return mark(function) if function is not None else mark


def _must_be_function(target: object) -> None:
    if isinstance(target, type) or not callable(target):
        kind = f"the class {target.__name__}" if isinstance(target, type) else type(target).__name__
        raise TypeError(f"@hookimpl marks a function, not {kind}")


def _unknown(options: Mapping[str, Any]) -> str:
    """Say what is wrong with options that there are not; those of pluggy have an explanation of their own."""
    names = ", ".join(options)
    if options.keys() & {"tryfirst", "trylast", "wrapper", "hookwrapper", "optionalhook"}:
        return f"hookimpl has no {names}: that is pluggy's way of ordering; use before= and after= with names of plugins"
    return f"hookimpl has no {names}; it has specname, before, after, on_failure, timeout, blocking and events"


def _names(value: Sequence[str] | str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
