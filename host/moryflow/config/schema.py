"""The host's own settings, and the JSON Schema of the whole configuration.

A setting is known because a model stands at its path: the host's are in :func:`host_models`, each plugin brings its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Known = tuple[str, type[BaseModel]]
"""A dotted path and the model of what stands there."""


class Settings(BaseModel):
    """Base of the host's settings: camelCase in the file, read-only in the program."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, defer_build=True)


class LimitSettings(Settings):
    """What one turn may use at most."""

    max_steps: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    max_cost: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False, description="US dollars")] | None = None


class RootSettings(Settings):
    """The keys at the top."""

    schema_: str | None = Field(default=None, alias="$schema", description="for editors; Moryflow does not read it")
    model: str | None = Field(default=None, min_length=1, description="the model to use, for example openai/gpt-5")
    profile: Literal["local", "remote"] = Field(default="local", description="remote: external tools stay off")
    language: Literal["en", "zh"] = Field(default="en", description="of what people are shown")
    disabled_plugins: tuple[str, ...] = Field(default=(), description="plugins that are not loaded, by name")
    only_plugins: tuple[str, ...] | None = Field(default=None, description="load these besides the built-in ones, no others")
    safe_mode: bool = Field(default=False, description="load built-in plugins only, and ask about every call")
    strict: bool = Field(default=False, description="a plugin that fails ends the run with exit code 6")
    trace: bool = Field(default=False, description="after each `run`, print what the hooks did on standard error")
    limits: LimitSettings = LimitSettings()
    models: dict[str, Any] = Field(default={}, description="settings of single models, by name")
    plugins: dict[str, dict[str, Any]] = Field(default={}, description="settings of plugins, by name")


class AgentSettings(Settings):
    """Which agent answers."""

    id: str | None = Field(default=None, min_length=1, description="the agent of new sessions; unknown: the default one")


class ModeSettings(Settings):
    """How freely the agent works."""

    default: Literal["agent", "full_access"] = Field(default="agent", description="the mode of new sessions")


class PromptParams(Settings):
    """Parameters of the custom prompt; one that is absent is the model's own default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(gt=0, le=10_000_000)] | None = None


class PromptSettings(Settings):
    """The system prompt: the built-in one, or the person's own in its place."""

    mode: Literal["default", "custom"] = "default"
    text: str = ""
    params: PromptParams = PromptParams()


class PermissionRule(Settings):
    """One rule. The last rule that matches decides."""

    domain: Literal["read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool"]
    pattern: str
    decision: Literal["allow", "ask", "deny"]
    folder: str | None = Field(default=None, description="of a command: only in this folder, such as vault:/sub")
    contents: dict[str, str] = Field(default={}, description="files that have to be as they were when this was stored")


class ExternalToolSettings(Settings):
    """Tools of the person's own, in the folder ``tools`` of Moryflow's home."""

    enabled: bool = Field(default=False, description="load them")


RULES_PATH = "agents.runtime.permission.rules"
"""Read rule by rule (see :mod:`.rules`), so that one bad rule does not take the others with it."""


def host_models() -> tuple[Known, ...]:
    """Return the host's own settings by path."""
    from moryflow.compaction.settings import PATH, CompactionSettings

    from .servers import ServersSettings

    return (
        ("", RootSettings),
        (PATH, CompactionSettings),
        ("agents.runtime.agent", AgentSettings),
        ("agents.runtime.mode", ModeSettings),
        ("agents.runtime.prompt", PromptSettings),
        ("agents.runtime.tools.external", ExternalToolSettings),
        ("mcp", ServersSettings),
    )


def defaults(known: Iterable[Known]) -> dict[str, Any]:
    """Return every default as one tree; what has no default is left out."""
    root: dict[str, Any] = {}
    for path, model in known:
        place = _place(root, path)
        for name, field in model.model_fields.items():
            if not field.is_required():
                value = field.get_default(call_default_factory=True)
                place.setdefault(field.alias or name, _plain(value))
    return root


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _place(root: dict[str, Any], path: str) -> dict[str, Any]:
    place = root
    for name in path.split(".") if path else ():
        step = place.setdefault(name, {})
        place = step if isinstance(step, dict) else {}
    return place


def json_schema(known: Iterable[Known]) -> dict[str, Any]:
    """Return the JSON Schema of the whole configuration, for editors and for ``config schema``."""
    definitions: dict[str, Any] = {}
    root: dict[str, Any] = {"type": "object", "properties": {}}
    for path, model in [*host_models(), *known, ("agents.runtime.permission.rules", PermissionRule)]:
        schema = model.model_json_schema(by_alias=True)
        definitions.update(schema.pop("$defs", {}))
        if path == RULES_PATH:
            schema = {"type": "array", "items": schema}
        _join(root, path, schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Moryflow configuration",
        **root,
        "$defs": definitions,
    }


def _join(root: dict[str, Any], path: str, schema: dict[str, Any]) -> None:
    place = root
    *parents, last = path.split(".") if path else [""]
    for name in parents:
        place = place.setdefault("properties", {}).setdefault(name, {"type": "object", "properties": {}})
    if last:
        place = place.setdefault("properties", {}).setdefault(last, {})
    properties = {**schema.pop("properties", {}), **place.get("properties", {})}
    place.update(schema)
    if properties:
        place["properties"] = properties
