"""The host's own settings by path, their defaults, and the JSON Schema of the whole configuration.

A setting is known because a model stands at its path; each plugin brings its own.
"""

from __future__ import annotations

from collections.abc import Iterable
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


Positive = Annotated[int, Field(gt=0, le=100_000_000)]
Count = Annotated[int, Field(ge=0, le=100_000_000)]


class CompactionSettings(Settings):
    """When long conversations are shortened, and by how much."""

    enabled: bool = Field(default=True, description="false: never by itself; a person can still compact")
    auto: bool = Field(default=True, description="false: as enabled=false")
    mode: Literal["auto", "before", "background", "off"] = Field(default="auto", description="when a summary is written")
    prune: bool = Field(default=True, description="replace old tool outputs by one line")
    policy: Literal["share", "buffer", "reserve"] = Field(default="share", description="what counts as too long")
    fallback_char_limit: Positive = Field(default=120_000, description="characters, where the window is unknown")
    output_budget: Positive | None = Field(default=None, description="tokens kept for the answer")
    buffer: Count = Field(default=20_000, description="tokens below the window, for the policy buffer")
    reserve: Count = Field(default=16_384, description="tokens below the window, for the policy reserve")
    keep_recent_tokens: Positive = Field(default=20_000, description="what stays verbatim at the end")
    protected_turns: Positive = Field(default=3, description="the newest turns stay verbatim where they fit")
    prune_protect_tokens: Count = Field(default=40_000, description="the newest tool outputs are not pruned")
    prune_minimum_tokens: Positive = Field(default=20_000, description="prune only when it saves this much")
    protected_tools: tuple[str, ...] = Field(
        default=("task", "tasks_*", "write", "edit", "move", "delete"), description="outputs never pruned, globs"
    )
    estimator: str = Field(default="chars", description="chars, script, or the name of a plugin with count_tokens")
    model: str | None = Field(default=None, min_length=1, description="the model that summarises; else the session's")
    instructions: str = Field(default="", description="replaces the prompt of the summarizer")
    max_output_tokens: Positive = Field(default=2048, description="of a summary")
    timeout: Annotated[float, Field(gt=0, le=3600)] = Field(default=180.0, description="seconds for a whole compaction")

    @property
    def automatic(self) -> bool:
        """Whether anything happens without being asked for."""
        return self.enabled and self.auto and self.mode != "off"


class ExternalToolSettings(Settings):
    """Tools of the person's own, in the folder ``tools`` of Moryflow's home."""

    enabled: bool = Field(default=False, description="load them")


Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


class ServerSettings(Settings):
    """One MCP server: a program that is started, or an address."""

    type: Literal["stdio", "http", "sse"] | None = Field(default=None, description="stdio with command, else http")
    command: Text | None = Field(default=None, description="the program, without its arguments")
    args: tuple[Annotated[str, Field(pattern=r"^[^\x00]*$")], ...] = ()
    env: dict[str, str] = Field(default={}, description="variables of the program besides PATH and HOME")
    cwd: Text | None = Field(default=None, description="a folder of the vault, relative to it")
    url: Text | None = None
    headers: dict[str, str] = {}
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False, description="seconds")] | None = None
    enabled: bool = True


class ServersSettings(Settings):
    """MCP servers by name. This version starts none."""

    servers: dict[str, ServerSettings] = {}


COMPACTION_PATH = "agents.runtime.compaction"
RULES_PATH = "agents.runtime.permission.rules"
"""Read rule by rule (see :mod:`.rules`), so that one bad rule does not take the others with it."""


def host_models() -> tuple[Known, ...]:
    """Return the host's own settings by path."""
    return (
        ("", RootSettings),
        (COMPACTION_PATH, CompactionSettings),
        ("agents.runtime.agent", AgentSettings),
        ("agents.runtime.mode", ModeSettings),
        ("agents.runtime.prompt", PromptSettings),
        ("agents.runtime.tools.external", ExternalToolSettings),
        ("mcp", ServersSettings),
    )


def defaults(known: Iterable[Known]) -> dict[str, Any]:
    """Return every default as one tree; what has no default is left out."""
    from pydantic_core import to_jsonable_python

    root: dict[str, Any] = {}
    for path, model in known:
        place = _place(root, path)
        for name, field in model.model_fields.items():
            if not field.is_required():
                value = field.get_default(call_default_factory=True)
                place.setdefault(field.alias or name, to_jsonable_python(value, by_alias=True, fallback=str))
    return root


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
