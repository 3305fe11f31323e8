"""The arguments of a tool, from the type hints of its function: their JSON Schema, their check, their values.

This module handles simple hints itself: texts, numbers, booleans, a choice of texts, lists of these, each also with ``None``,
and lists of SDK values. Pydantic handles everything else. Its import takes a tenth of a second, so a start without it is
worth the second implementation. Pydantic also has the last word: if the check here does not accept a value as it is, pydantic
converts it or says what is wrong.

Python 3.14 and later evaluate hints on demand, not when the function is defined. A hint may then use a name that is imported
under ``TYPE_CHECKING``, as before with ``from __future__ import annotations`` (PEP 649).
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import isfinite
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from ._frozen import REQUIRED, Frozen
from .field_types import Between

if TYPE_CHECKING:
    from pydantic import BaseModel

if sys.version_info >= (3, 14):
    from annotationlib import Format


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `function` by name, without evaluating their hints."""
    if sys.version_info >= (3, 14):
        return inspect.signature(function, annotation_format=Format.FORWARDREF).parameters
    return inspect.signature(function).parameters


def check_parameter(function: Callable[..., Any], parameter: inspect.Parameter, *, hinted: bool) -> None:
    """Check that a call can give `parameter`, by name and as its hint says.

    :raises TypeError: it has no type hint, or cannot be given by name.
    """
    where = getattr(function, "__qualname__", "the function")
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY, parameter.VAR_KEYWORD):
        raise TypeError(f"{where}: a tool takes named parameters only, not {parameter}")
    if not hinted:
        raise TypeError(f"{where}: parameter {parameter.name!r} needs a type hint; the schema is made from it")


def type_hints(function: Callable[..., Any], late: Mapping[str, Any], *, include_extras: bool = False) -> dict[str, Any]:
    """Return the evaluated hints of `function`; `late` holds names that its module need not import.

    :raises NameError: a hint uses another name that is not defined.
    """
    names = dict(late)
    while isinstance(function, partial):
        function = function.func
    if not (isinstance(function, type) or inspect.isroutine(inspect.unwrap(function))):  # an object with __call__
        function = type(function).__call__
    if sys.version_info < (3, 14):
        return typing.get_type_hints(function, localns=names, include_extras=include_extras)
    hints = typing.get_type_hints(function, localns=names, include_extras=include_extras, format=Format.FORWARDREF)
    for reference in _unresolved(list(hints.values())):
        reference.evaluate(globals=inspect.unwrap(function).__globals__, locals=names)  # raises, and names what is missing
    return hints


def _unresolved(hint: Any) -> Iterator[Any]:
    """Yield the forward references in `hint`, at any depth: they stand for names that are not defined."""
    if isinstance(hint, typing.ForwardRef):
        yield hint
    for part in cast("list[Any]", hint) if isinstance(hint, list) else typing.get_args(hint):
        yield from _unresolved(part)


class ToolArguments:
    """The arguments that a tool's function accepts.

    :param context_parameter: the parameter that receives the context; a call cannot give it.
    :raises NameError: a hint uses a name that is not defined.
    :raises TypeError: a parameter has no type hint, or cannot be given by name.
    """

    def __init__(self, name: str, function: Callable[..., Any], context_parameter: str | None) -> None:
        given = [parameter for parameter in parameters(function).values() if parameter.name != context_parameter]
        hints = type_hints(function, _late_names(), include_extras=True)
        for parameter in given:
            check_parameter(function, parameter, hinted=parameter.name in hints)
        self._name = name
        self._fields = {
            parameter.name: (hints[parameter.name], REQUIRED if parameter.default is parameter.empty else parameter.default)
            for parameter in given
        }
        self._records: dict[str, Any] = {}
        self._simple = _members(self._fields, self._records)

    @cached_property
    def model(self) -> type[BaseModel]:
        """The pydantic model of the arguments."""
        fields = self._fields
        if self._simple is not None and self._records:
            fields = {name: (_with_models(hint), default) for name, (hint, default) in fields.items()}
        return _model(f"{self._name}_arguments", fields)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments in pydantic's form, without the titles that pydantic generates."""
        if self._simple is None:
            return cast("dict[str, Any]", _without_titles(self.model.model_json_schema()))
        return {**({"$defs": self._records} if self._records else {}), **_object(self._simple)}

    @property
    def names(self) -> Sequence[str]:
        """The parameters that a call can give; pydantic reserves some names."""
        return tuple(self.model.model_fields if self._simple is None else self._simple)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return `args` checked and converted, as plain JSON types.

        :raises pydantic.ValidationError: an argument is missing, unknown or has the wrong type.
        """
        if self._simple is not None:
            try:
                return _read(self._simple, args)
            except _Unclear:
                pass
        return self.model.model_validate(args).model_dump(mode="json", exclude_unset=True, by_alias=True)

    def bind(self, canonical: bytes) -> dict[str, Any]:
        """Return fresh keyword arguments, made from the JSON of what :meth:`validate` returned."""
        if self._simple is not None:
            given = self.validate(json.loads(canonical))
            return {name: self._simple[name].kind.value(item) for name, item in given.items()}
        values = self.model.model_validate_json(canonical)
        return {name: getattr(values, name) for name in values.model_fields_set}


def _late_names() -> dict[str, Any]:
    """Return the names that a tool's module may import for type checkers only."""
    from .context import ToolContext, Turn

    return {"ToolContext": ToolContext, "Turn": Turn}


# ---------------------------------------------------------------- simple hints


class _Unclear(Exception):
    """The check here does not accept the value as it is; pydantic decides."""


class _Kind(NamedTuple):
    """A simple hint: its schema, a function that checks and copies a JSON value, and one that makes the function's argument."""

    schema: Mapping[str, Any]
    read: Callable[[Any], Any]
    value: Callable[[Any], Any]


class _Member(NamedTuple):
    kind: _Kind
    description: str | None
    default: Any


def _members(fields: Mapping[str, tuple[Any, Any]], records: dict[str, Any]) -> dict[str, _Member] | None:
    found: dict[str, _Member] = {}
    for name, (hint, default) in fields.items():
        texts = [extra for extra in get_args(hint)[1:] if isinstance(extra, str)] if get_origin(hint) is Annotated else []
        base, *extras = get_args(hint) if texts else (hint,)
        others = tuple(extra for extra in extras if not isinstance(extra, str))
        kind = _kind(Annotated[(base, *others)] if others else base, records)
        if kind is None or len(texts) > 1 or name.startswith(("_", "model_")) or not _is_plain(default):
            return None
        found[name] = _Member(kind, texts[0] if texts else None, default)
    return found


def _is_plain(default: Any) -> bool:
    kind = cast("type[Any]", type(default))
    return default is REQUIRED or kind in (str, bool, int, NoneType) or (kind is float and isfinite(default))


def _kind(hint: Any, records: dict[str, Any]) -> _Kind | None:
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type):
        return _SCALARS.get(cast("type[Any]", hint)) or (_record(hint, records) if _is_record(hint) else None)
    if origin is Annotated and len(inner) == 2 and isinstance(inner[1], Between):
        kind = _kind(inner[0], records)
        return _bounded(kind, inner[1]) if kind is not None else None
    if origin is Literal and all(type(item) is str for item in inner):
        return _choice(inner)
    if origin in (Union, UnionType) and len(inner) == 2 and inner[1] is NoneType:
        kind = _kind(inner[0], records)
        return _or_none(kind) if kind is not None else None
    if origin is list:
        kind = _kind(inner[0], records)
        return _list_of(kind) if kind is not None else None
    return None


def _exact(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind or (kind is float and not isfinite(value)):
            raise _Unclear
        return value

    return read


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Unclear
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise _Unclear from None
    return value


def _same(value: Any) -> Any:
    return value


_SCALARS: dict[type, _Kind] = {
    str: _Kind({"type": "string"}, _text, _same),
    int: _Kind({"type": "integer"}, _exact(int), _same),
    float: _Kind({"type": "number"}, _exact(float), _same),
    bool: _Kind({"type": "boolean"}, _exact(bool), _same),
}
_BOUNDS = {
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}


def _bounded(kind: _Kind, bounds: Between) -> _Kind | None:
    names = _BOUNDS.get(kind.schema.get("type", ""))
    if names is None:
        return None
    sized = kind.schema["type"] in ("string", "array")
    limits = {name: limit for name, limit in zip(names, bounds, strict=True) if isfinite(limit)}

    def read(value: Any) -> Any:
        checked = kind.read(value)
        if not bounds.least <= (len(checked) if sized else checked) <= bounds.most:
            raise _Unclear
        return checked

    return _Kind(_sorted({**kind.schema, **limits}), read, kind.value)


def _choice(texts: tuple[str, ...]) -> _Kind:
    def read(value: Any) -> Any:
        if type(value) is not str or value not in texts:
            raise _Unclear
        return value

    several: dict[str, Any] = {"const": texts[0]} if len(texts) == 1 else {"enum": list(texts)}
    return _Kind({**several, "type": "string"}, read, _same)


def _or_none(kind: _Kind) -> _Kind:
    def read(value: Any) -> Any:
        return None if value is None else kind.read(value)

    def value(given: Any) -> Any:
        return None if given is None else kind.value(given)

    return _Kind({"anyOf": [kind.schema, {"type": "null"}]}, read, value)


def _list_of(kind: _Kind) -> _Kind:
    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _Unclear
        return [kind.read(item) for item in cast("list[Any]", value)]

    def value(given: list[Any]) -> list[Any]:
        return [kind.value(item) for item in given]

    return _Kind({"items": kind.schema, "type": "array"}, read, value)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Frozen)


def _record(hint: type[Frozen], records: dict[str, Any]) -> _Kind | None:
    """Return the kind of an SDK value: for a model it is an object with the same members, described once in `records`."""
    name, before = hint.__name__, records.get(hint.__name__)
    if before == {}:  # the class contains itself
        return None
    records[name] = {}
    members = _members(_fields_of(hint), records)
    if members is None:
        return None
    records[name] = _object(members, hint.__doc__)
    if before not in (None, records[name]):  # two classes with the same name
        return None
    return _Kind({"$ref": f"#/$defs/{name}"}, partial(_read, members), hint.model_validate)


def _read(members: Mapping[str, _Member], given: Any) -> dict[str, Any]:
    if type(given) is not dict or not members.keys() >= cast("dict[str, Any]", given).keys():
        raise _Unclear
    if any(member.default is REQUIRED and name not in given for name, member in members.items()):
        raise _Unclear
    return {name: member.kind.read(given[name]) for name, member in members.items() if name in given}


def _object(members: Mapping[str, _Member], doc: str | None = None) -> dict[str, Any]:
    required = [name for name, member in members.items() if member.default is REQUIRED]
    return _sorted(
        {
            "additionalProperties": False,
            "properties": {name: _property(member) for name, member in members.items()},
            "type": "object",
            **({"description": inspect.cleandoc(doc)} if doc else {}),
            **({"required": required} if required else {}),
        }
    )


def _property(member: _Member) -> dict[str, Any]:
    description = {} if member.description is None else {"description": member.description}
    return _sorted({**member.kind.schema, **description, **({} if member.default is REQUIRED else {"default": member.default})})


def _sorted(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in sorted(schema)}


# ---------------------------------------------------------------- pydantic


def _fields_of(record: type[Frozen]) -> dict[str, tuple[Any, Any]]:
    hints = get_type_hints(record, include_extras=True)
    return {name: (hints[name], field.default) for name, field in record.model_fields.items()}


def _with_models(hint: Any) -> Any:
    """Replace SDK values in `hint` by pydantic models; pydantic then converts their fields and explains errors as elsewhere."""
    origin, inner = get_origin(hint), get_args(hint)
    if _is_record(hint):
        fields = {name: (_with_models(item), default) for name, (item, default) in _fields_of(hint).items()}
        return _model(hint.__name__, fields, hint.__doc__)
    if origin is Annotated:
        return Annotated[(_with_models(inner[0]), *inner[1:])]
    if origin is list:
        return list[_with_models(inner[0])]
    if origin in (Union, UnionType):
        return _with_models(inner[0]) | None
    return hint


def _model(name: str, fields: Mapping[str, tuple[Any, Any]], doc: str | None = None) -> type[BaseModel]:
    import warnings

    from pydantic import ConfigDict, create_model

    given: dict[str, Any] = {
        name: (_described(hint), ... if default is REQUIRED else default) for name, (hint, default) in fields.items()
    }
    with warnings.catch_warnings():  # an argument may have the name of a method of the model, `schema` or `json`
        warnings.filterwarnings("ignore", "Field name .* shadows an attribute", UserWarning)
        return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=doc, **given)


def _described(hint: Any) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    from pydantic import Field

    base, *extras = get_args(hint)
    turned = [Field(description=extra) if isinstance(extra, str) else extra for extra in extras]
    return Annotated[(base, *turned)]


def _without_titles(schema: Any) -> Any:
    """Drop pydantic's generated titles; they cost tokens and say nothing."""
    if isinstance(schema, dict):
        mapping = cast("dict[str, Any]", schema)
        return {k: _without_titles(v) for k, v in mapping.items() if not (k == "title" and isinstance(v, str))}
    if isinstance(schema, list):
        return [_without_titles(item) for item in cast("list[Any]", schema)]
    return schema
