"""The types of fields: each type hint is compiled once into a check; mappings and sequences are frozen, all the way down.

A check consists of the exact types that pass as they are, and a function for everything else: it returns the value to keep,
such as a tuple for a list, or raises :class:`WrongType`. A class is compiled when its first value is made, not on import.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, cast, get_args, get_origin

MAX_LEVELS = 100
"""How deep a value may be nested."""


# Constants, because `str | bytes` within a function makes a new object at each call, and this code sees every value.
_PLAIN: frozenset[type] = frozenset({str, int, float, bool, bytes, type(None)})
_TEXTS_AND_NUMBERS = (str, bytes, int, float)
_SEQUENCES = (list, tuple, set, frozenset)
_type_of: Callable[[Any], type[Any]] = type


class FrozenDict(dict[str, Any]):
    """A mapping that refuses to change; ``{**mapping, "key": value}`` makes a new, ordinary ``dict``.

    It is a subclass of ``dict`` so that ``json.dumps`` and ``match`` work with it.
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this value is frozen; build a new one, for example call.replace(args={**call.args, ...})")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, _memo: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", thaw(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


def freeze(value: Any, levels: int = MAX_LEVELS) -> Any:
    """Return `value` with every mapping a :class:`FrozenDict` and every sequence or set a tuple.

    :raises ValueError: `value` is nested more than `levels` deep.
    """
    kind = _type_of(value)
    if kind in _PLAIN or kind is FrozenDict or isinstance(value, _TEXTS_AND_NUMBERS):
        return value
    is_mapping = kind is dict or isinstance(value, Mapping)
    if not (is_mapping or isinstance(value, _SEQUENCES)):
        return cast("Any", value)
    if levels < 1:
        raise ValueError(f"it is nested more than {MAX_LEVELS} levels deep")
    if is_mapping:
        items = cast("Mapping[Any, Any]", value).items()
        return FrozenDict({str(key): item if type(item) in _PLAIN else freeze(item, levels - 1) for key, item in items})
    return tuple([freeze(item, levels - 1) for item in cast("list[Any]", value)])


def thaw(value: Any) -> Any:
    """Return a deep, ordinary copy: mappings become ``dict``, tuples become lists."""
    kind = _type_of(value)
    if kind in _PLAIN:
        return value
    if kind is FrozenDict or isinstance(value, Mapping):
        return {key: thaw(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in cast("list[Any]", value)]
    return value


Convert = Callable[[Any], Any]


class WrongType(Exception):
    """A field does not accept a value.

    :ivar message: such as ``str expected, not 5``; `path` leads to the wrong value within the field.
    """

    def __init__(self, message: str, path: tuple[int | str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


class Check(NamedTuple):
    """How a field is checked: values of exactly these `types` pass, all others go through `convert`."""

    types: frozenset[type]
    convert: Convert
    name: str


class Between(NamedTuple):
    """Inclusive bounds of a number; for a parameter of a tool also of the length of a text or a list.

    ``Annotated[int, Between(1, 100)]``
    """

    least: float
    most: float = inf

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Let pydantic apply the bounds too."""
        schema = handler(source)
        names = ("ge", "le") if schema["type"] in ("int", "float") else ("min_length", "max_length")
        return {**schema, **{name: limit for name, limit in zip(names, self, strict=True) if isfinite(limit)}}


class Narrowing:
    """Base class of other annotations that narrow a type (``Annotated[str, …]``); by itself it changes nothing."""

    def narrow(self, check: Check) -> Check:
        """Return the check that replaces the `check` of the type."""
        return check


def check_of(hint: Any) -> Check:
    """Return the check for a type hint.

    :raises TypeError: a field cannot have this type.
    """
    origin = get_origin(hint)
    if hint is Any or hint is object:
        return Check(frozenset(), _any, "anything")
    if origin is Annotated:
        return _annotated(hint)
    if origin is Literal:
        return _literal(get_args(hint))
    if origin in (Union, types.UnionType):
        return _union([check_of(item) for item in get_args(hint)])
    if origin is tuple or hint is tuple:
        return _tuple(get_args(hint))
    if hint is None or hint is type(None):
        return _instance(type(None), "None")
    plain = origin or hint
    if plain in (list, set, frozenset, Sequence):
        return _sequence(check_of((*get_args(hint), Any)[0]))
    if isinstance(plain, type) and issubclass(plain, Mapping):
        values = get_args(hint)[1:]
        return _mapping_of(check_of(values[0])) if values and values[0] is not Any else _MAPPING
    if isinstance(plain, type):
        return _class(plain)
    raise TypeError(f"a value cannot have a field of type {hint!r}")


def _any(value: Any) -> Any:
    return value


def _class(kind: type) -> Check:
    if hasattr(kind, "model_fields"):
        return Check(frozenset({kind}), _nested(kind), kind.__name__)
    if kind is float:
        return Check(frozenset({float}), _float, "float")
    return _instance(kind, kind.__name__)


def _is_a(value: Any, kind: Any) -> bool:
    """Whether `value` has the type `kind`. ``isinstance`` would also believe a ``__class__`` that the value claims."""
    return issubclass(type(value), kind)


_EXACT: dict[type, Convert] = {str: str.__str__, int: int.__int__, bytes: lambda value: b"".join((value,))}
"""Values of subclasses of these are copied to the plain type, because their methods may be foreign code."""


def _instance(kind: type, name: str) -> Check:
    copied = _EXACT.get(kind)

    def convert(value: Any) -> Any:
        if _is_a(value, kind) and not (kind is int and type(value) is bool):
            return copied(value) if copied else value
        raise WrongType(f"{name} expected, not {short_text(value)}")

    return Check(frozenset({kind}), convert, name)


def _float(value: Any) -> float:
    if _is_a(value, (float, int)) and type(value) is not bool:
        try:
            return float.__float__(value) if _is_a(value, float) else float(int.__int__(value))
        except OverflowError:
            pass
    raise WrongType(f"float expected, not {short_text(value)}")


def _nested(kind: Any) -> Convert:
    made = getattr(kind, "model_quick", kind.model_validate)

    def convert(value: Any) -> Any:
        if _is_a(value, kind):
            return value
        if _is_a(value, Mapping):
            try:
                return made(value)
            except ValueError as error:
                path, message = getattr(error, "problems", [((), str(error))])[0]
                raise WrongType(message, path) from error
        raise WrongType(f"{kind.__name__} expected, not {short_text(value)}")

    return convert


def _mapping(value: Any) -> FrozenDict:
    if not _is_a(value, Mapping):
        raise WrongType(f"a mapping expected, not {short_text(value)}")
    try:
        return cast("FrozenDict", freeze(value))
    except ValueError as error:  # nested too deep
        raise WrongType(str(error)) from error


_MAPPING = Check(frozenset({FrozenDict}), _mapping, "a mapping")


def _mapping_of(check: Check) -> Check:
    def convert(value: Any) -> FrozenDict:
        return FrozenDict({key: _item(check, item, key) for key, item in _mapping(value).items()})

    return Check(frozenset(), convert, f"a mapping of {check.name}")


def _literal(allowed: tuple[Any, ...]) -> Check:
    known: set[tuple[type[Any], Any]] = {(type(item), item) for item in allowed}
    name = " or ".join(map(repr, allowed))

    def convert(value: Any) -> Any:
        try:
            if (type(value), value) in known:
                return value
        except TypeError:
            pass  # not hashable
        raise WrongType(f"{name} expected, not {short_text(value)}")

    return Check(frozenset(), convert, name)


def _union(members: list[Check]) -> Check:
    name = " or ".join(member.name for member in members)

    def convert(value: Any) -> Any:
        found: list[WrongType] = []
        for member in members:
            if type(value) in member.types:
                return value
        for member in members:
            try:
                return member.convert(value)
            except WrongType as error:
                found.append(error)
        deeper = [error for error in found if error.path]
        raise deeper[0] if deeper else WrongType(f"{name} expected, not {short_text(value)}")

    return Check(frozenset().union(*(member.types for member in members)), convert, name)


def _annotated(hint: Any) -> Check:
    base, *extras = get_args(hint)
    check = check_of(base)
    for extra in extras:
        if isinstance(extra, Between):
            check = _between(check, extra)
        elif isinstance(extra, Narrowing):
            check = extra.narrow(check)
    return check


def _between(check: Check, bounds: Between) -> Check:
    name = f"{check.name} from {bounds.least:g} to {bounds.most:g}"

    def convert(value: Any) -> Any:
        number = value if type(value) in check.types else check.convert(value)
        if not bounds.least <= number <= bounds.most:
            raise WrongType(f"{name} expected, not {short_text(value)}")
        return number

    return Check(frozenset(), convert, name)


def _tuple(items: tuple[Any, ...]) -> Check:
    if len(items) == 2 and items[1] is Ellipsis:
        return _sequence(check_of(items[0]))
    checks = [check_of(item) for item in items]

    def convert(value: Any) -> Any:
        if not _is_a(value, (list, tuple)) or len(cast("list[Any]", value)) != len(checks):
            raise WrongType(f"{len(checks)} items expected, not {short_text(value)}")
        given = cast("list[Any]", value)
        return tuple([_item(check, item, index) for index, (check, item) in enumerate(zip(checks, given, strict=True))])

    return Check(frozenset(), convert, "tuple")


def _sequence(check: Check) -> Check:
    passing = check.types

    def convert(value: Any) -> Any:
        if not _is_a(value, _SEQUENCES):
            raise WrongType(f"a sequence of {check.name} expected, not {short_text(value)}")
        items = cast("tuple[Any, ...]", value)
        if passing.issuperset(map(type, items)):
            return items if type(items) is tuple else tuple(items)
        return tuple([_item(check, item, index) for index, item in enumerate(items)])

    return Check(frozenset(), convert, f"a sequence of {check.name}")


def _item(check: Check, value: Any, index: int | str) -> Any:
    if type(value) in check.types:
        return value
    try:
        return check.convert(value)
    except WrongType as error:
        raise WrongType(error.message, (index, *error.path)) from error


def short_text(value: Any) -> str:
    """Return a short text of `value` and its type for a message, without calling the code of a foreign class."""
    kind = cast("type[Any]", type(value))
    if kind in (list, tuple, dict):
        return f"a {kind.__name__}"
    text = ascii(value) if kind in (str, int, float, bool, bytes, FrozenDict) else ""
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind.__name__})".lstrip() if value is not None else "None"
