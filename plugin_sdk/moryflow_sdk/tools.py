"""Tools: a typed function with a docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, overload

from .arguments import ToolArguments, check_parameter, parameters
from .calls import Domain, DomainName, TargetRequest, target_request

if TYPE_CHECKING:
    from .context import ToolContext, Turn
    from .models import ModelInfo

Requests = Sequence[TargetRequest | str] | TargetRequest
TargetsFunction = Callable[[Mapping[str, Any]], Requests] | Callable[[Mapping[str, Any], Any], Requests]


@dataclass(frozen=True)
class Tool:
    """A tool as the host keeps it; made by :func:`tool`.

    :param targets: arguments → what the call touches (``file_target(…)`` and the like, or texts: a path in `domain` ``read``, a
        command in ``bash`` …); without it the tool itself is the target, ``tool:<name>``. A second argument of the function
        receives the plugin's settings.
    :param offered: whether the tool is described to a model; one that is not is refused.
    :param offered_in: whether the tool is useful in a turn, else it is not described and not run. Called often.
    :param found_in: for tools that are described to a model only after it found them, as with ``tool_search``: the names of
        those that this session has found. The tools of a plugin share one function.
    :param mentions: what the user typed → the arguments of each call that it asks for, such as ``@server:uri``. These calls
        come before the model is asked, and pass every gate.
    :param preview: what the question shows of a call, such as a diff; by default the arguments. It must change
        nothing. It is called again after the answer; if the text has changed, the user is asked again.
    :param remarks: parameters that only comment on a call; calls that differ in nothing else count as equal.
    :param retry_safe: whether the body may run again after its process died, with the same ``call.id`` (let that be the key of
        the effect); otherwise the result is ``interrupted``.
    :param timeout: seconds the body may run, not counting :meth:`ToolContext.ask`; ``None`` means 60 (600 for tools that
        come with the host).
    :param more_time: what the error says the user can do if ``timeout`` is too short.
    :param source: the file or part of the plugin that the tool comes from; ``revision`` identifies its version.
    """

    name: str
    description: str
    function: Callable[..., Any]
    domain: Domain = "tool"
    targets: TargetsFunction | None = None
    parallel_safe: bool = False
    retry_safe: bool = False
    timeout: float | None = None
    more_time: str = ""
    offered: Callable[[ModelInfo], bool] | None = None
    offered_in: Callable[[Turn], bool] | None = None
    found_in: Callable[[Turn], Sequence[str]] | None = None
    mentions: Callable[[str], Sequence[Mapping[str, Any]]] | None = None
    preview: Callable[[ToolContext], str] | None = None
    remarks: tuple[str, ...] = ()
    context_parameter: str | None = None
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    source: str = ""
    revision: str = ""

    @cached_property
    def arguments(self) -> ToolArguments:
        """The arguments, as the type hints of the function define them."""
        return ToolArguments(self.name, self.function, self.context_parameter)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of the arguments."""
        return self.arguments.schema if self.schema is None else self.schema

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return `args` checked and converted to plain JSON types; defaults are not filled in.

        :raises pydantic.ValidationError: an argument is missing, unknown or has the wrong type.
        """
        if self.schema is not None:
            return dict(args)
        return self.arguments.validate(args)

    def with_settings(self, config: Any) -> Tool:
        """Return the tool with the plugin's settings bound to `targets`, if that function takes them as a second argument."""
        given: Any = self.targets

        def targets(args: Mapping[str, Any]) -> Requests:
            return given(args, config)

        return replace(self, targets=targets) if _needs_settings(given) else self

    def target_requests(self, args: Mapping[str, Any]) -> tuple[TargetRequest, ...]:
        """Return what a call with `args` touches: the declared targets, or the tool itself in its domain."""
        targets: Any = self.targets
        given = targets(args) if targets else ()
        items = (given,) if isinstance(given, str | TargetRequest) else given
        requests = tuple(target_request(item, self.domain) for item in items)
        return requests or (TargetRequest(kind="tool", value=self.name, domain=self.domain),)

    def bind(self, canonical: bytes, context: ToolContext) -> dict[str, Any]:
        """Return fresh keyword arguments for the body, built from the canonical JSON that was judged."""
        keywords: dict[str, Any] = json.loads(canonical) if self.schema is not None else self.arguments.bind(canonical)
        if self.context_parameter:
            keywords[self.context_parameter] = context
        return keywords


def _needs_settings(targets: Any) -> bool:
    if type(targets) is FunctionType and not vars(targets):  # for a hundred tools, signatures would add 10 ms to a start
        return targets.__code__.co_argcount - len(targets.__defaults__ or ()) == 2
    try:
        found = parameters(targets).values() if targets else ()
    except (TypeError, ValueError):  # written in C, or not a function; a call will say what is wrong
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([one for one in found if one.kind in positional and one.default is one.empty]) == 2


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    domain: DomainName = "tool",
    targets: TargetsFunction | None = None,
    parallel_safe: bool = False,
    retry_safe: bool = False,
    timeout: float | None = None,
    offered: Callable[[ModelInfo], bool] | None = None,
    offered_in: Callable[[Turn], bool] | None = None,
    preview: Callable[[ToolContext], str] | None = None,
    remarks: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    domain: DomainName = "tool",
    targets: TargetsFunction | None = None,
    parallel_safe: bool = False,
    retry_safe: bool = False,
    timeout: float | None = None,
    offered: Callable[[ModelInfo], bool] | None = None,
    offered_in: Callable[[Turn], bool] | None = None,
    preview: Callable[[ToolContext], str] | None = None,
    remarks: Sequence[str] = (),
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function with type hints and a docstring.

    The model reads the docstring. Describe parameters with ``Annotated[str, "what it is"]``. A parameter may be a pydantic
    model, which may hold others; the function gets an instance, and ``moryflow tool show`` lists the fields. A parameter
    annotated as :class:`ToolContext` (or :class:`Turn`) receives the
    context.
    A plain function of a third-party plugin runs on the plugin's thread, an ``async`` one on the loop.

    :raises TypeError: a parameter has no type hint, the function takes ``*args``, or `remarks` names no parameter.
    """

    def make(target: Callable[..., Any]) -> Tool:
        source = description or target.__doc__
        doc = inspect.cleandoc(source) if isinstance(source, str) else ""
        return Tool(
            name=name or _name_of(target),
            description=doc,
            function=target,
            domain=domain,
            targets=targets,
            parallel_safe=parallel_safe,
            retry_safe=retry_safe,
            timeout=timeout,
            offered=offered,
            offered_in=offered_in,
            preview=preview,
            remarks=_remarks(target, remarks),
            context_parameter=_context_parameter(target),
        )

    return make(function) if function is not None else make


def _remarks(function: Callable[..., Any], names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f'remarks names parameters: write remarks=("{names}",)')
    unknown = next((name for name in names if name not in parameters(function)), None)
    if unknown is not None:
        raise TypeError(f"remarks names {unknown!r}, which is not a parameter of {_name_of(function)}")
    return tuple(names)


def _name_of(target: Any) -> str:
    if not callable(target):
        raise TypeError(f"@tool marks a function, not {target!r:.60}; a name is given as @tool(name=…)")
    found = getattr(target, "__name__", None)
    if not isinstance(found, str):
        raise TypeError(f"{type(target).__name__} has no name of its own; give one: tool(name=…)")
    return found


_CONTEXTS = ("ToolContext", "Turn")
"""Annotations that mark the parameter for the context; the context is a turn too."""


def _context_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that receives the context, if any."""
    found = None
    for parameter in parameters(function).values():
        annotation = parameter.annotation
        check_parameter(function, parameter, hinted=annotation is not parameter.empty)
        unresolved = getattr(annotation, "__forward_arg__", "")
        if (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", unresolved)) in _CONTEXTS:
            found = parameter.name
    return found
