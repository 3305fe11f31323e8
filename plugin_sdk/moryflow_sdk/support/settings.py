"""Settings: what a section of the configuration may say, read without pydantic where nothing is wrong.

pydantic takes 100 ms to import, and most configurations are right. So a section is read by the checks of the SDK's values,
which take less than pydantic does; what they refuse, a pydantic model is asked about that is made of the same class. What
is taken and what people read about it is thereby what pydantic says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypedDict, Unpack, cast

from moryflow_sdk._frozen import REQUIRED, Frozen, ValidationError
from moryflow_sdk.field_types import Check, Narrowing, WrongType, freeze, short_text, thaw

if TYPE_CHECKING:
    import pydantic


class FieldLimits(TypedDict, total=False):
    """What :class:`Meta` takes; each means what it means in pydantic's ``Field``."""

    gt: float
    ge: float
    le: float
    allow_inf_nan: bool
    min_length: int
    pattern: str
    strict: bool


class Meta(Narrowing):
    """What a hint says beside the type: ``Annotated[int, Meta("lines", gt=0, le=100)]``. pydantic reads it too.

    :param then: a function that a good value goes through; it may raise :class:`ValueError`.
    """

    __is_annotated_types_grouped_metadata__ = True

    def __init__(
        self, description: str | None = None, *, then: Callable[[Any], Any] | None = None, **limits: Unpack[FieldLimits]
    ) -> None:
        self.description, self.then, self.limits = description, then, limits

    def narrow(self, check: Check) -> Check:
        """Return a check that refuses what is beyond the limits."""
        if self.then is None and self.limits.keys() <= {"strict"}:
            return check

        def convert(value: Any) -> Any:
            kept = value if type(value) in check.types else check.convert(value)
            if kept is None:
                return None
            try:
                if not self._holds(kept):
                    raise WrongType(f"{short_text(value)} is beyond its limits")
                return self.then(kept) if self.then else kept
            except ValueError as error:
                raise WrongType(str(error)) from error

        return Check(frozenset(), convert, check.name)

    def __iter__(self) -> Iterator[Any]:
        """Yield what pydantic knows for it."""
        from pydantic import AfterValidator, Field

        field = Field(description=self.description, **self.limits)
        yield from field.metadata
        yield field
        if self.then:
            yield AfterValidator(self.then)

    def _holds(self, value: Any) -> bool:
        limits = self.limits
        if isinstance(value, str):
            value.encode()  # half a character is refused
            return len(value) >= limits.get("min_length", 0) and bool(re.fullmatch(limits.get("pattern", "(?s:.*)"), value))
        if not isinstance(value, int | float):
            return not limits
        over = value > limits["gt"] if "gt" in limits else value >= limits.get("ge", -inf)
        return over and value <= limits.get("le", inf) and abs(value) < inf


class Setting(NamedTuple):
    """A field of settings: its name in the program, in the configuration, and its default."""

    name: str
    alias: str
    default: Any
    owner: type[Settings]

    @property
    def annotation(self) -> Any:
        """The type, with what is said beside it."""
        return self.owner.model_hints()[self.name]


class Settings(Frozen):
    """Base of settings: camelCase in the configuration, read-only in the program; what it does not know is left out.

    Limits and descriptions are written as ``Annotated[int, Meta("lines shown", gt=0)]``.

    :ivar aliases: names in the configuration that are not the field's own in camelCase.
    """

    model_fields: ClassVar[Mapping[str, Setting]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}
    _pydantic: ClassVar[Any] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = {name: cls.aliases.get(name) or _camel(name) for name in cls.model_fields}
        fields = {name: Setting(name, alias, cls.model_fields[name].default, cls) for name, alias in names.items()}
        cls.model_fields = fields  # pyright: ignore[reportIncompatibleVariableOverride]
        cls._pydantic = None

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        vars(self)["model_fields_set"] = frozenset(fields)

    @property
    def model_fields_set(self) -> frozenset[str]:
        """The fields that were given; all others are at their defaults."""
        return cast("frozenset[str]", vars(self)["model_fields_set"])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, name) == getattr(other, name) for name in self.model_fields)

    __hash__ = Frozen.__hash__

    @classmethod
    def model_quick(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that a section of the configuration gives, without pydantic.

        :raises ValidationError: a value is wrong, or takes pydantic to understand.
        """
        given: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            if field.alias in values:
                given[name] = values[field.alias]
            elif name in values:
                raise ValidationError(cls.__name__, [((name,), "is written in camelCase")])
        return cls(**given)

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Return the settings that a section of the configuration gives.

        :raises pydantic.ValidationError: it is not valid.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls.model_quick(value)
        except (ValidationError, TypeError):
            return cls._of(cls.model_pydantic().model_validate(value))

    @classmethod
    def model_pydantic(cls) -> type[pydantic.BaseModel]:
        """Return the pydantic model that says the same: it has the messages and the JSON Schema."""
        if cls._pydantic is None:
            from pydantic import ConfigDict, Field, create_model

            fields: dict[str, Any] = {}
            for name, (_, alias, default, _) in cls.model_fields.items():
                is_nested = isinstance(default, Settings)
                start = ... if default is REQUIRED else default.model_pydantic()() if is_nested else thaw(default)
                fields[name] = (cls.model_hints()[name], Field(default=start, alias=alias, validate_default=is_nested))
            config = ConfigDict(populate_by_name=True, extra="ignore")
            cls._pydantic = create_model(cls.__name__, __config__=config, __doc__=cls.__doc__, **fields)
        return cls._pydantic

    @classmethod
    def _of(cls, made: pydantic.BaseModel) -> Self:
        """Return the settings that hold what `made` does, which is a :meth:`model_pydantic`."""
        self = cls.__new__(cls)
        vars(self).update({name: freeze(getattr(made, name)) for name in cls.model_fields})
        vars(self)["model_fields_set"] = frozenset(made.model_fields_set)
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(cls._of, handler.generate_schema(cls.model_pydantic()))


def pydantic_model(model: Any) -> type[pydantic.BaseModel]:
    """Return the pydantic model of a plugin's ``config_model``, which may be one itself."""
    return model.model_pydantic() if issubclass(model, Settings) else model


def from_json(model: Any, section: Mapping[str, Any], *, strict: bool = False) -> Any:
    """Return what `model` makes of a section as it stands in a file; a ``config_model`` may be a pydantic model too.

    :param strict: ``"2000"`` is not 2000.
    :raises pydantic.ValidationError: it is not valid.
    """
    if issubclass(model, Settings):
        try:
            json.dumps(section, ensure_ascii=False, allow_nan=False).encode()  # half a character is no JSON
            return model.model_quick(section)
        except ValueError:
            pass
    return pydantic_model(model).model_validate_json(json.dumps(section), strict=strict or None)


def not_valid() -> type[pydantic.ValidationError]:
    """Return the error of :func:`from_json`, imported when one was raised: ``except not_valid() as error``."""
    from pydantic import ValidationError

    return ValidationError


def _camel(name: str) -> str:
    return re.sub("_([a-z0-9])", lambda found: found[1].upper(), name)


__all__ = ["Meta", "Setting", "Settings", "from_json", "not_valid", "pydantic_model"]
