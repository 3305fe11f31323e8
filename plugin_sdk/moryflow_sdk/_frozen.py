"""The base class of all values of the contract: immutable, checked when they are made, compared by content.

It is our own because every process creates these 40 classes at its start: as pydantic models, including the import of
pydantic, they took 40 % of a start. Methods that pydantic also has bear the same names.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self, cast, dataclass_transform, get_type_hints

from .field_types import Check, WrongType, check_of, freeze, short_text, thaw

FrozenMapping = Mapping[str, Any]
"""A field type: it accepts any mapping, keeps a deeply read-only copy, and is dumped as a plain ``dict``."""


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()


class FieldInfo(NamedTuple):
    """A field of a value. `default` is ``REQUIRED`` if the field must be given."""

    name: str
    default: Any


class ValidationError(ValueError):
    """A value has a field that is missing, unknown, or of the wrong type.

    :ivar title: name of the class.
    :ivar problems: pairs of the path to a field, such as ``("rules", 0, "domain")``, and what is wrong there.
    """

    def __init__(self, title: str, problems: Sequence[tuple[tuple[int | str, ...], str]]) -> None:
        super().__init__(title, problems)
        self.title = title
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(f"{'.'.join(map(str, (self.title, *path)))}: {message}" for path, message in self.problems)

    def errors(self) -> list[dict[str, Any]]:
        """Return the problems in pydantic's form: ``loc`` and ``msg`` of each."""
        return [{"loc": path, "msg": message} for path, message in self.problems]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Frozen:
    """Base of the SDK's values: fields are given by name and deeply read-only; unknown fields are refused.

    A subclass declares its fields as annotations, with or without defaults. Lists become tuples, mappings become
    :class:`FrozenDict`. A value in a field may be given as a mapping.

    :raises ValidationError: a field is missing, unknown or has the wrong type.
    """

    model_fields: ClassVar[Mapping[str, FieldInfo]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    _checks: ClassVar[dict[str, Check]] = {}
    _hints: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        fields = dict(cls.model_fields)
        for name, hint in _annotations(cls).items():
            if not name.startswith("_") and not str(hint).startswith(("ClassVar", "typing.ClassVar")):
                fields[name] = FieldInfo(name, freeze(cls.__dict__[name]) if name in cls.__dict__ else REQUIRED)
        cls.model_fields = fields
        cls._defaults = {name: field.default for name, field in fields.items() if field.default is not REQUIRED}
        cls._checks, cls._hints = {}, {}

    def __init__(self, **fields: Any) -> None:
        cls = type(self)
        if fields:
            fields = cls._checked(fields)
        object.__setattr__(self, "__dict__", {**cls._defaults, **fields})
        if len(vars(self)) != len(cls.model_fields):
            missing = [name for name in cls.model_fields if name not in vars(self)]
            raise ValidationError(cls.__name__, [((name,), "is missing") for name in missing])

    @classmethod
    def model_construct(cls, **fields: Any) -> Self:
        """Return a value with `fields` that are already valid and frozen; nothing is checked."""
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", {**cls._defaults, **fields})
        return made

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`, which are checked like the fields of a new value.

        :raises ValidationError: a field is unknown or has the wrong type.
        """
        cls = type(self)
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", {**vars(self), **cls._checked(changes)})
        return made

    @classmethod
    def _checked(cls, fields: dict[str, Any]) -> dict[str, Any]:
        problems: list[tuple[tuple[int | str, ...], str]] = []
        known = cls._checks
        for name, value in fields.items():
            check = known.get(name)
            if check is None:
                if name not in cls.model_fields:
                    problems.append(((name,), "there is no such field"))
                    continue
                check = cls._check_of(name)
            if type(value) not in check.types:
                try:
                    fields[name] = check.convert(value)
                except WrongType as error:
                    problems.append(((name, *error.path), error.message))
        if problems:
            raise ValidationError(cls.__name__, problems)
        return fields

    @classmethod
    def _check_of(cls, name: str) -> Check:
        if name not in cls._checks:
            cls._checks[name] = check_of(cls.model_hint(name))
        return cls._checks[name]

    @classmethod
    def model_hint(cls, name: str) -> Any:
        """Return the type hint of a field.

        Hints are evaluated on first use: each takes 30 µs, and most settings are never given.
        """
        if name not in cls._hints:
            own = name in _annotations(cls)
            owner = cls if own else next(base for base in cls.__mro__ if name in _annotations(base))
            alone = {"__module__": owner.__module__, "__annotations__": {name: _annotations(owner)[name]}}
            holder = type(owner.__name__, (), alone)
            cls._hints[name] = get_type_hints(holder, localns=dict(vars(owner)), include_extras=True)[name]
        return cls._hints[name]

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Return the value with the fields in a mapping such as :meth:`model_dump` returns.

        :raises ValidationError: `value` is not a mapping, or its fields are not valid.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValidationError(cls.__name__, [((), f"a mapping expected, not {short_text(value)}")])
        return cls(**{str(key): item for key, item in cast("Mapping[Any, Any]", value).items()})

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        exclude_defaults: bool = False,
    ) -> dict[str, Any]:
        """Return a plain ``dict``, in which nested values are plain too.

        :param mode: ``json`` leaves only JSON types: lists for tuples, text for a path or a time, ``None`` for infinity.
        :param exclude_defaults: leave out fields that have their default.
        :raises ValueError: with ``json``, if something cannot be written as JSON.
        """
        names = [name for name in type(self).model_fields if name not in exclude and (include is None or name in include)]
        return _dump(self, names, mode == "json", exclude_defaults)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise ValidationError(type(self).__name__, [((name,), "this value is frozen; replace() makes a changed copy")])

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in type(self).model_fields)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([f'{name}={getattr(self, name)!r}' for name in type(self).model_fields])})"

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        object.__setattr__(made, "__dict__", dict(vars(self)))
        return made

    def __deepcopy__(self, _memo: Any) -> Self:
        return self.__copy__()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Let a field of a pydantic model, or a tool's parameter, have this type."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls.model_validate,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.model_dump(mode="json")),
        )


def _annotations(cls: type) -> Mapping[str, Any]:
    if "__annotations__" in vars(cls) or sys.version_info < (3, 14):
        return vars(cls).get("__annotations__", {})
    import annotationlib

    return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)


def _dump(value: Frozen, names: Collection[str], as_json: bool, exclude_defaults: bool) -> dict[str, Any]:
    fields = type(value).model_fields
    made: dict[str, Any] = {}
    for name in names:
        item = getattr(value, name)
        if not exclude_defaults or item != fields[name].default:
            made[name] = _plain(item, as_json, exclude_defaults)
    return made


_LEAVES = frozenset({str, int, float, bool, type(None)})


def _plain(value: Any, as_json: bool, exclude_defaults: bool) -> Any:
    if type(value) in _LEAVES:
        return None if as_json and type(value) is float and not isfinite(value) else value
    if isinstance(value, Frozen):
        return _dump(value, type(value).model_fields, as_json, exclude_defaults)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", thaw(value))
        return {key: _plain(item, as_json, exclude_defaults) for key, item in items.items()} if as_json else items
    if isinstance(value, list | tuple):
        made = [_plain(item, as_json, exclude_defaults) for item in cast("list[Any]", value)]
        return made if as_json or isinstance(value, list) else tuple(made)
    if not as_json:
        return value
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)
