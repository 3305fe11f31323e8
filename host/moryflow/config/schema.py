"""The host's own settings by path, their defaults, and the JSON Schema of the whole configuration.

A setting is known if the model at its path declares it; each plugin has a model of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from moryflow_sdk.support.settings import Meta, Settings, pydantic_model

from moryflow.config import RULES

# A dotted path, and the `Settings` or pydantic model of the settings there.
Known = tuple[str, Any]


class LimitSettings(Settings):
    """What one turn may use at most.

    :ivar max_steps: how many model calls a turn may make; an agent may set a lower limit.
    :ivar max_cost: how many US dollars a turn may cost, sub-agents included.
    """

    max_steps: Annotated[int, Meta(gt=0, le=1_000_000)] | None = None
    max_cost: Annotated[float, Meta("US dollars", gt=0, le=1_000_000, allow_inf_nan=False)] | None = None


class FolderEntry(Settings):
    """What holds in one folder and below it."""

    model: Annotated[str, Meta("the model of sessions there")] = ""
    agent: Annotated[str, Meta("the agent of new sessions there")] = ""
    rules: Annotated[Any, Meta("permission rules there, after those of `agents.runtime.permission`")] = ()
    queue: Annotated[str, Meta("the workers that take sessions there, where `store.url` is set")] = ""
    volume: Annotated[str, Meta("what a cluster calls the folder, on each machine that has it; sessions say volume:NAME")] = ""


class RootSettings(Settings):
    """The keys at the top."""

    aliases = {"schema_": "$schema"}
    strictest = {"safeMode": True, "strict": True, "profile": "remote", "onlyPlugins": []}

    schema_: Annotated[str | None, Meta("for editors; Moryflow does not read it")] = None
    model: Annotated[str | None, Meta("the model to use, for example openai/gpt-5", min_length=1)] = None
    profile: Annotated[Literal["local", "remote"], Meta("remote: external tools stay off")] = "local"
    language: Annotated[Literal["en", "zh"], Meta("the language of texts that people see")] = "en"
    disabled_plugins: Annotated[tuple[str, ...], Meta("plugins that are not loaded, by name")] = ()
    only_plugins: Annotated[tuple[str, ...] | None, Meta("load only these plugins, and the built-in ones")] = None
    safe_mode: Annotated[bool, Meta("load built-in plugins only, and ask about every call")] = False
    strict: Annotated[bool, Meta("a plugin that fails ends the run with exit code 6")] = False
    trace: Annotated[bool, Meta("after each `run`, print what the hooks did on standard error")] = False
    keep_inputs: Annotated[bool, Meta("store what each hook of a plugin is given, for `replay`")] = False
    limits: LimitSettings = LimitSettings()
    folders: Annotated[dict[str, FolderEntry], Meta("what holds in a folder and below it, by its path: ~/projects/x")] = {}
    models: Annotated[dict[str, Any], Meta("settings of single models, by name")] = {}
    plugins: Annotated[dict[str, dict[str, Any]], Meta("settings of plugins, by name")] = {}


class StoreSettings(Settings):
    """Where sessions are kept."""

    url: Annotated[
        str | None,
        Meta(
            "`postgresql://USER@HOST/NAME` keeps them there; unset: in a file of Moryflow's folder",
            pattern=r"^postgres(ql)?://",
        ),
    ] = None
    outputs: Annotated[str | None, Meta("where stored outputs of over 256 KB are copied to: `s3://BUCKET/PREFIX`")] = None
    lease: Annotated[float, Meta("seconds after which another process may go on, in PostgreSQL", ge=2, le=3600)] = 30.0


class ChatSettings(Settings):
    """Conversations at a terminal."""

    notify: Annotated[bool, Meta("ring, and show a notice, when a turn of over 20 seconds ends or asks")] = True


class TelemetrySettings(Settings):
    """Traces of turns for OpenTelemetry. Without `otlp` nothing is sent."""

    strictest = {"otlp": None, "content": False}

    otlp: Annotated[
        str | None, Meta("send a trace of each turn to this OTLP/HTTP collector: its URL", pattern=r"^https?://\S+$")
    ] = None
    content: Annotated[bool, Meta("send prompts, answers, arguments and results of calls too")] = False


class AgentSettings(Settings):
    """Which agent answers."""

    id: Annotated[str | None, Meta("the agent of new sessions; if it is unknown, the default agent", min_length=1)] = None


class ModeSettings(Settings):
    """How freely the agent works."""

    strictest = {"default": "agent"}

    default: Annotated[Literal["agent", "full_access"], Meta("the mode of new sessions")] = "agent"


class PromptParams(Settings):
    """Parameters of the custom prompt; one that is absent is the model's own default.

    :ivar temperature: 0 is the least random.
    :ivar top_p: the share of likely words that the model chooses from.
    :ivar max_tokens: the most tokens of one answer.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(gt=0, le=10_000_000)] | None = None


class PromptSettings(Settings):
    """The system prompt: the built-in one, or the user's own in its place.

    :ivar mode: ``custom`` puts `text` in place of the built-in prompt.
    :ivar text: the prompt; ``moryflow config prompt edit`` opens it in an editor.
    """

    mode: Literal["default", "custom"] = "default"
    text: str = ""
    params: PromptParams = PromptParams()


class PermissionRule(Settings):
    """One rule. The last rule that matches decides.

    :ivar domain: what kind of thing a call does.
    :ivar pattern: what the target must match: ``vault:/src/**``, ``git status *``, ``https://example.org/*``, ``regex:…``.
    :ivar decision: what to do with a call that matches.
    """

    domain: Literal["read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool"]
    pattern: str
    decision: Literal["allow", "ask", "deny"]
    folder: Annotated[str | None, Meta("for a command: only in this folder, such as vault:/sub")] = None
    contents: Annotated[dict[str, str], Meta("files that must have these hashes, or the rule does not apply")] = {}


Positive = Annotated[int, Meta(gt=0, le=100_000_000)]
Count = Annotated[int, Meta(ge=0, le=100_000_000)]

# Tokens to assume if a model's window is unknown, about as much as `fallback_char_limit`.
UNKNOWN_WINDOW = 32_000


class CompactionSettings(Settings):
    """When long conversations are shortened, and by how much."""

    enabled: Annotated[bool, Meta("false: compact only when the user asks for it")] = True
    auto: Annotated[bool, Meta("false is the same as enabled=false")] = True
    mode: Annotated[Literal["auto", "before", "background", "off"], Meta("when a summary is written")] = "auto"
    prune: Annotated[bool, Meta("replace old tool outputs by one line")] = True
    policy: Annotated[Literal["share", "buffer", "reserve"], Meta("what counts as too long")] = "share"
    fallback_char_limit: Annotated[Positive, Meta("the limit in characters, if the window is unknown")] = 120_000
    output_budget: Annotated[Positive | None, Meta("tokens of the window that are kept for the answer")] = None
    buffer: Annotated[Count, Meta("tokens below the window, for the policy buffer")] = 20_000
    reserve: Annotated[Count, Meta("tokens below the window, for the policy reserve")] = 16_384
    keep_recent_tokens: Annotated[Positive, Meta("tokens at the end that stay word for word")] = 20_000
    protected_turns: Annotated[Positive, Meta("how many of the newest turns stay word for word, if they fit")] = 3
    prune_protect_tokens: Annotated[Count, Meta("tokens of the newest tool outputs that are not pruned")] = 40_000
    prune_minimum_tokens: Annotated[Positive, Meta("prune only if this saves so many tokens")] = 20_000
    protected_tools: Annotated[tuple[str, ...], Meta("tools whose outputs are never pruned; names and globs")] = (
        "task",
        "tasks_*",
        "write",
        "edit",
        "move",
        "delete",
    )
    estimator: Annotated[str, Meta("how to count tokens: chars, or a plugin with count_tokens")] = "chars"
    model: Annotated[str | None, Meta("the model that writes summaries, in place of the session's", min_length=1)] = None
    instructions: Annotated[str, Meta("replaces the prompt of the summarizer")] = ""
    max_output_tokens: Annotated[Positive, Meta("the most tokens of a summary")] = 2048
    timeout: Annotated[float, Meta("seconds that a compaction may take", gt=0, le=3600)] = 180.0

    @property
    def automatic(self) -> bool:
        """Whether conversations are compacted without the user asking for it."""
        return self.enabled and self.auto and self.mode != "off"


class ExternalToolSettings(Settings):
    """Tools of the user's own, in the folder ``tools`` of Moryflow's home."""

    strictest = {"enabled": False}

    enabled: Annotated[
        bool | None, Meta("load every file of the tools folder, and edits; unset: the files you allowed; `false`: none")
    ] = None


COMPACTION_PATH = "agents.runtime.compaction"
# Rules are read one by one (see `moryflow.config.read_rules`), so that one bad rule does not invalidate the others.
RULES_PATH = ".".join(RULES)


def host_models() -> tuple[Known, ...]:
    """Return the models of the host's own settings, by path."""
    return (
        ("", RootSettings),
        ("telemetry", TelemetrySettings),
        ("store", StoreSettings),
        ("chat", ChatSettings),
        (COMPACTION_PATH, CompactionSettings),
        ("agents.runtime.agent", AgentSettings),
        ("agents.runtime.mode", ModeSettings),
        ("agents.runtime.prompt", PromptSettings),
        ("agents.runtime.tools.external", ExternalToolSettings),
    )


def defaults(known: Iterable[Known]) -> dict[str, Any]:
    """Return all defaults as one tree, without settings that have none."""
    from pydantic_core import to_jsonable_python

    root: dict[str, Any] = {}
    for path, model in known:
        place = _place(root, path)
        for name, field in pydantic_model(model).model_fields.items():
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
    for path, model in [*host_models(), *known, (RULES_PATH, PermissionRule)]:
        schema = pydantic_model(model).model_json_schema(by_alias=True)
        definitions.update(schema.pop("$defs", {}))
        if path == RULES_PATH:
            schema = {"type": "array", "items": schema}
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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Moryflow configuration",
        **root,
        "$defs": definitions,
    }
