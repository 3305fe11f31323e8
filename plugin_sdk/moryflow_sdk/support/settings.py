"""Settings: classes for sections of the configuration, which need pydantic only for a section that is wrong.

Pydantic takes 100 ms to import, and most configurations are valid. So the checks of the SDK's values read a section first.
They accept less than pydantic does; whatever they refuse goes to a pydantic model made from the same class. Pydantic therefore
decides which values are accepted, and writes the messages about the others.

At the end are the settings that several plugins share: MCP servers, and the services and models of the section ``models``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypedDict, Unpack, cast
from urllib.parse import urlsplit

from moryflow_sdk._frozen import REQUIRED, Frozen, ValidationError
from moryflow_sdk.field_types import Check, Narrowing, WrongType, freeze, short_text, thaw
from moryflow_sdk.models import Effort, ModelInfo

from .texts import nearest

if TYPE_CHECKING:
    import pydantic


class FieldLimits(TypedDict, total=False):
    """The limits that :class:`Meta` accepts; each means the same as in pydantic's ``Field``."""

    gt: float
    ge: float
    le: float
    allow_inf_nan: bool
    min_length: int
    pattern: str
    strict: bool


class Meta(Narrowing):
    """The description and the limits of a field: ``Annotated[int, Meta("lines", gt=0, le=100)]``. Pydantic reads it too.

    :param then: a function that converts a value within the limits; it may raise :class:`ValueError`.
    """

    __is_annotated_types_grouped_metadata__ = True

    def __init__(
        self, description: str | None = None, *, then: Callable[[Any], Any] | None = None, **limits: Unpack[FieldLimits]
    ) -> None:
        self.description, self.then, self.limits = description, then, limits

    def narrow(self, check: Check) -> Check:
        """Return a check that refuses values beyond the limits."""
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
        """Yield pydantic's metadata for the same limits."""
        from pydantic import AfterValidator, Field

        field = Field(description=self.description, **self.limits)
        yield from field.metadata
        yield field
        if self.then:
            yield AfterValidator(self.then)

    def _holds(self, value: Any) -> bool:
        limits = self.limits
        if isinstance(value, str):
            value.encode()  # raises for a lone surrogate
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
        """The type hint of the field, with its :class:`Meta`."""
        return self.owner.model_hint(self.name)


class Settings(Frozen):
    """Base of settings: camelCase in the configuration, read-only in the program; unknown settings are ignored.

    Write limits and descriptions as ``Annotated[int, Meta("lines shown", gt=0)]``.

    :ivar aliases: names in the configuration, for fields whose name there is not their own in camelCase.
    :ivar strictest: by name in the configuration, the value that replaces a wrong one, where the default would be laxer than
        what the user may have meant.
    """

    model_fields: ClassVar[Mapping[str, Setting]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}
    strictest: ClassVar[Mapping[str, Any]] = {}
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
        """The fields that were given; all others have their defaults."""
        return cast("frozenset[str]", vars(self)["model_fields_set"])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, name) == getattr(other, name) for name in self.model_fields)

    __hash__ = Frozen.__hash__

    @classmethod
    def model_quick(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings in a section of the configuration, without pydantic.

        :raises ValidationError: a value is wrong, or only pydantic can convert it.
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
        """Return the settings in a section of the configuration.

        :raises pydantic.ValidationError: the section is not valid.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls.model_quick(value)
        except (ValidationError, TypeError):
            return cls._of(cls.model_pydantic().model_validate(value))

    @classmethod
    def model_pydantic(cls) -> type[pydantic.BaseModel]:
        """Return a pydantic model with the same fields; it has the error messages and the JSON Schema."""
        if cls._pydantic is None:
            from pydantic import ConfigDict, Field, create_model

            fields: dict[str, Any] = {}
            for name, (_, alias, default, _) in cls.model_fields.items():
                is_nested = isinstance(default, Settings)
                start = ... if default is REQUIRED else default.model_pydantic()() if is_nested else thaw(default)
                fields[name] = (cls.model_hint(name), Field(default=start, alias=alias, validate_default=is_nested))
            config = ConfigDict(populate_by_name=True, extra="ignore")
            cls._pydantic = create_model(cls.__name__, __config__=config, __doc__=cls.__doc__, **fields)
        return cls._pydantic

    @classmethod
    def _of(cls, made: pydantic.BaseModel) -> Self:
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
    """Return an instance of `model` made from a section of a JSON file; a ``config_model`` may be a pydantic model too.

    :param strict: whether ``"2000"`` is refused as a number.
    :raises pydantic.ValidationError: the section is not valid.
    """
    if issubclass(model, Settings):
        try:
            json.dumps(section, ensure_ascii=False, allow_nan=False).encode()  # raises for a lone surrogate
            return model.model_quick(section)
        except ValueError:
            pass
    return pydantic_model(model).model_validate_json(json.dumps(section), strict=strict or None)


def not_valid() -> type[pydantic.ValidationError]:
    """Return the class of the error that :func:`from_json` raises, imported only then: ``except not_valid() as error``."""
    from pydantic import ValidationError

    return ValidationError


def _camel(name: str) -> str:
    return re.sub("_([a-z0-9])", lambda found: found[1].upper(), name)


Text = Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]*$")]


class ServerSettings(Settings):
    """One MCP server: a program that Moryflow starts, or the address of a server.

    :ivar args: arguments of the program.
    :ivar url: the address of a server that Moryflow does not start.
    :ivar timeout: seconds that a call may take.
    :ivar enabled: if false, the entry stays but the server is not used.
    :ivar always_load: offer its tools in every request, however many tokens they cost.
    """

    type: Annotated[Literal["stdio", "http", "sse"] | None, Meta("by default stdio if there is a command, else http")] = None
    command: Annotated[Text | None, Meta("the program, without its arguments")] = None
    args: tuple[Annotated[str, Meta(pattern=r"^[^\x00]*$")], ...] = ()
    env: Annotated[
        dict[str, str], Meta("variables of the program besides PATH and HOME; ${NAME} stands for your variable")
    ] = {}
    cwd: Annotated[Text | None, Meta("a folder of the vault to run in; by default a folder of Moryflow's")] = None
    url: Text | None = None
    headers: Annotated[dict[str, str], Meta("sent with every request; ${NAME} stands for your variable")] = {}
    client_id: Annotated[Text | None, Meta("for mcp login, if clients cannot register themselves")] = None
    client_secret: Annotated[Text | None, Meta("the client's secret, if it has one; ${NAME} stands for your variable")] = None
    timeout: Annotated[float, Meta("seconds", gt=0, allow_inf_nan=False)] | None = None
    enabled: bool = True
    always_load: bool = False


class ServersSettings(Settings):
    """MCP servers.

    :ivar servers: MCP servers by name.
    :ivar search_above: how many tokens the tools of all servers may cost; above that, the model finds them with tool_search.
    """

    servers: dict[str, ServerSettings] = {}
    search_above: Annotated[int, Meta(ge=0, le=100_000_000, strict=True)] = 2000


_NAME = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def wrong_name(name: str) -> str:
    """Return why a server cannot have this name; empty if it can."""
    if _NAME.fullmatch(name):
        return ""
    return "a name has 1 to 64 letters, digits, dots, dashes, underscores and @, and begins with one of the first"


def wrong_values(server: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the mistakes that types do not find, each with its path: no clear way to reach the server, a folder elsewhere …"""
    command, url = server.get("command"), server.get("url")
    if (command is None) == (url is None):
        near = next((key for key in server if nearest(key.casefold(), ("command", "url"), 0.7)), None)
        neither = f"it has neither command nor url{f'; {near[:60]!r} is neither' if near else ''}"
        yield (), "it has both command and url" if command else neither
    wanted = "url" if server.get("type") in ("http", "sse") else "command" if server.get("type") else ""
    if wanted and server.get(wanted) is None:
        yield ("type",), f"the type {server['type']!r} needs {wanted}"
    if command is not None and not command.strip():
        yield ("command",), "the command is empty"
    if url is not None and not _is_address(url):
        yield ("url",), f"url: {url[:60]!r} is not an http or https address without a password"
    cwd: str = server.get("cwd") or ""
    parts = cwd.split("/")
    if cwd.startswith("/") or ".." in parts or parts[0] == "~":
        yield ("cwd",), f"cwd: {cwd[:60]!r} lies outside the vault; write a folder of it, without .."
    variables: Mapping[str, str] = server.get("env") or {}
    for variable in variables:
        if not _VARIABLE.fullmatch(variable):
            yield ("env", variable), f"env: {variable[:60]!r} is not the name of a variable"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


Tokens = Annotated[int, Meta(gt=0, le=100_000_000, strict=True)]
Price = Annotated[float, Meta(ge=0, le=1_000_000, strict=True)]


class ModelLimits(Settings):
    """Limits, prices and abilities of one model; prices are US dollars per million tokens.

    :param custom_context: tokens of the context window; this goes before all other values for it.
    :param context_window: tokens of prompt and answer together.
    :param max_output: tokens of one answer.
    :param input_price: per million tokens of the prompt.
    :param output_price: per million tokens of the answer.
    :param cached_price: per million tokens of the prompt that the service had cached.
    :param tools: whether it can call tools.
    :param images: whether it can see images.
    :param note: shown by ``moryflow model list``.
    :param reasoning_effort: how long it reasons, if neither the session nor the agent says so.
    """

    custom_context: Tokens | None = None
    context_window: Tokens | None = None
    max_output: Tokens | None = None
    input_price: Price | None = None
    output_price: Price | None = None
    cached_price: Price | None = None
    tools: bool | None = None
    images: bool | None = None
    note: str | None = None
    reasoning_effort: Effort | None = None


def _address(value: str) -> str:
    if value and not value.lower().startswith(("http://", "https://")):
        raise ValueError("an address begins with http:// or https://")
    return value.rstrip("/")


Address = Annotated[str, Meta(then=_address)]
"""The address of a service, without a slash at its end; empty if there is none."""


class ProviderSettings(Settings):
    """One service: ``models.providers.<prefix>``.

    :param managed: limits come from the registry only; ``customContext`` is ignored.
    :param system_messages: whether the service accepts ``several``, or ``one``; by default what is known about the service.
    :param base_url: the address, such as ``http://127.0.0.1:8080/v1``.
    :param api_key_env: the environment variable that holds the key.
    :param api_key: the key itself; a variable is safer.
    :param headers: sent with every request.
    :param send_reasoning: send the model its earlier reasoning back; by default as it came, to the service that it came from.
    :param output_field: name of the field that limits the answer, ``max_tokens`` or ``max_completion_tokens``.
    """

    base_url: Address = ""
    api_key_env: str = ""
    api_key: str = ""
    headers: Mapping[str, str] = {}
    models: Mapping[str, ModelLimits] = {}
    managed: bool = False
    send_reasoning: bool | None = None
    output_field: str = ""
    system_messages: Literal["one", "several"] | None = None

    def __repr__(self) -> str:  # without the key and the headers
        return f"ProviderSettings(base_url={self.base_url!r})"


class ModelsSettings(Settings):
    """The section ``models``.

    :param fallback: models to go on with, in order, when the service of the chosen one fails before it answered.
    :param timeout: seconds without a byte until a call counts as stalled.
    """

    providers: Mapping[str, ProviderSettings] = {}
    fallback: tuple[str, ...] = ()
    timeout: Annotated[float, Meta(gt=0, le=3600, strict=True)] = 300.0


def with_limits(info: ModelInfo, settings: ProviderSettings) -> ModelInfo:
    """Return `info` changed by what `settings` says about the model.

    The context window is ``customContext``, else ``contextWindow``, else the registry's value; for a managed service
    ``customContext`` is ignored.
    """
    own = settings.models.get(info.name, ModelLimits())
    window = own.context_window if settings.managed else own.custom_context or own.context_window
    changes = {
        "context_window": window,
        "max_output": own.max_output,
        "input_price": own.input_price,
        "output_price": own.output_price,
        "cached_price": own.cached_price,
        "tools": own.tools,
        "images": own.images,
        "note": own.note,
        "reasoning_effort": own.reasoning_effort,
        "managed": settings.managed or None,
    }
    return info.replace(**{name: value for name, value in changes.items() if value is not None})
