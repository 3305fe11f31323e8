"""Read agents from Markdown files: the frontmatter has the agent's fields, the body is its prompt.

A file that is wrong gives a :class:`Diagnostic` with file and line instead of an agent. The fields are ours, and those of
the agent files of other systems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from moryflow_sdk._frozen import ValidationError
from moryflow_sdk.agents import Agent, ModelSettings
from moryflow_sdk.errors import Diagnostic
from moryflow_sdk.verdicts import Rule

from .agent_rights import DENIED, PERMISSION, Line, Remark, is_text, read_rights
from .foreign_names import is_foreign_model
from .markdown_files import WrongFile, read_markdown, shown_path
from .rule_entries import ANY_DOMAIN, MEANWHILE, not_understood
from .texts import nearest

RESERVED = frozenset({"default_compact_agent", "build", "compaction", "title", "summary"})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_ENDINGS = (".agent", ".chatmode")
"""What stands before ``.md`` in the names of Copilot's files."""
_KNOWN = (
    "id", "name", "description", "modelSettings", "mode", "model", "tools", "permission", "hidden", "maxSteps",
    "maxTurns", "temperature", "top_p", "reasoningEffort", "effort",
)  # fmt: skip
_ELSEWHERE = frozenset((
    *DENIED, *PERMISSION, "disable", "disabled", "enabled", "disable-model-invocation", "user-invocable", "infer", "agents",
    "color", "icon", "emoji", "version", "author", "authors", "category", "tags", "keywords", "type", "target", "license",
    "metadata", "homepage", "repo", "repository", "source", "created", "updated", "date", "argument-hint", "dependencies",
    "mcp-servers", "mcpServers", "handoffs", "skills", "memory", "background", "effort", "reasoningEffort", "initialPrompt",
    "examples", "when_to_use", "whenToUse", "displayName", "title", "summary", "agent", "priority", "kind", "vibe",
))  # fmt: skip
"""Fields of other systems. Those that do not restrict an agent are passed over without a word."""
_RESTRICTS = re.compile(r"tool|rule|perm|steps|turns")
"""What an unknown field has in its name, in lower case, if it may be meant to restrict the agent."""
_FREE_MODES = ("default", "acceptEdits", "bypassPermissions", "auto")
"""Values of Claude Code's ``permissionMode`` that restrict nothing; what they would allow is not allowed."""
_PARAMETERS = {"temperature": "temperature", "topP": "top_p", "maxTokens": "max_tokens", "reasoningEffort": "reasoning_effort"}
_ALSO = {"temperature": "temperature", "top_p": "topP", "effort": "reasoningEffort", "reasoningEffort": "reasoningEffort"}
"""Fields of other systems for parameters, and the parameter."""
_TAKES = {
    "temperature": "it takes a number from 0 to 2",
    "topP": "it takes a number from 0 to 1",
    "maxTokens": "it takes a whole number from 1 to 10,000,000",
    "reasoningEffort": "it takes none, minimal, low, medium, high, xhigh or max",
}
MAX_STEPS = 1_000_000


class WrongAgent(Exception):
    """The file does not describe an agent.

    :param field: the field that is wrong.
    """

    def __init__(self, code: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code, self.field = code, field


def agent_id(metadata: Mapping[str, Any], default_id: str, reserved: frozenset[str]) -> str:
    """Return the agent's id; a file with a description needs none, and gets `default_id`, the name of its file.

    :raises WrongAgent: the file has no id, or the id is not valid.
    """
    found: Any = default_id if "id" not in metadata and "description" in metadata else metadata.get("id")
    if not isinstance(found, str) or not found:
        missing = "id" not in metadata or found == ""
        hint = f": add a line 'id: {default_id or 'NAME'}', or a description" if missing else ""
        raise WrongAgent("agent_id" if missing else "agent_frontmatter", f"it needs an id, a text{hint}", "id")
    if not _ID.match(found):
        raise WrongAgent("agent_id", f"the id {found[:80]!a} may hold letters, digits, '-', '_' and '.' only", "id")
    if found.lower() in reserved:
        raise WrongAgent("agent_id", f"the id {found!r} is the host's own", "id")
    return found


def file_id(path: Path) -> str:
    """Return the id of an agent whose file names none: ``reviewer`` for ``reviewer.md`` and ``reviewer.agent.md``."""
    stem = path.stem
    stem = next((stem.removesuffix(ending) for ending in _ENDINGS if stem.endswith(ending)), stem)
    return re.sub(r"[ ()&+,#]+", "-", stem).strip("-")


def is_disabled(metadata: Mapping[str, Any]) -> bool:
    """Whether the file says that the agent shall not be used."""
    off = {"", "false", "no", "off", "0", "none"}
    said = [str(metadata.get(key)).strip().casefold() not in off for key in ("disable", "disabled")]
    return any(said) or str(metadata.get("enabled", True)).strip().casefold() in off


def make_agent(
    metadata: Mapping[str, Any], body: str, source: str, name: str, distrusted: str = "", line: Line = lambda *_: None
) -> tuple[Agent, list[Remark]]:
    """Return the agent, and the problems with its fields.

    :param distrusted: why allow rules in the file are not used; empty if they are.
    :param line: returns the line of a field, by its path of names.
    :raises WrongAgent: an agent cannot have one of the values.
    """
    warnings: list[Remark] = []
    lost = list(_unknown_fields(metadata, warnings))
    tools, denied, rules = read_rights(metadata, source, warnings, line)
    rules = _without_distrusted_allows(rules, distrusted, warnings)
    steps, wrong_steps = _steps(metadata, warnings)
    others = [f"the field {key!a:.80} is not known" for key in lost if "tool" not in key.lower()]
    if problem := next(iter(others), wrong_steps):
        rules = (*rules, not_understood(ANY_DOMAIN, problem, source="agent", file=source))
    fields = {
        "id": name,
        "name": _string(metadata, "name", warnings),
        "description": _string(metadata, "description", warnings),
        "mode": _mode(metadata, warnings),
        "model": _model(metadata, warnings),
        "prompt": body,
        "tools": tools if len(others) == len(lost) else (),
        "deny_tools": denied,
        "rules": rules,
        "settings": _settings(metadata, warnings),
        "hidden": _flag(metadata, "hidden", warnings),
        "max_steps": steps,
        "source": source,
    }
    try:
        return Agent.model_validate(fields), warnings
    except ValidationError as error:  # an error that the checks above do not foresee must not be a crash
        first = error.errors()[0]
        raise WrongAgent("agent_field", f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _unknown_fields(metadata: Mapping[str, Any], warnings: list[Remark]) -> Iterator[str]:
    """Name the fields that are not known, and yield those that may be meant to restrict the agent."""
    for key in (str(key) for key in metadata if key not in _KNOWN and key not in _ELSEWHERE):
        near = nearest(key, _KNOWN, 0.75)
        if key == "permissionMode" and metadata[key] in _FREE_MODES:
            continue
        if key == "hooks":
            effect = "is not used here: what its commands check is not checked"
        elif near in ("tools", "permission", "maxSteps") or _RESTRICTS.search(key.lower().replace("return", "")):
            effect = f"is not known; {MEANWHILE if 'tool' not in key.lower() else 'the agent gets no tools of it'}"
            yield key
        else:
            effect = "is not known and is ignored"
        said = f"; did you mean {near!r}?" if near and key != "hooks" else ""
        warnings.append(((key,), f"the field {key!a:.80} {effect}{said}"))


def _string(metadata: Mapping[str, Any], key: str, warnings: list[Remark]) -> str:
    value = metadata.get(key, "")
    if is_text(value):
        return cast("str", value)
    warnings.append(((key,), f"{key} must be text; it is ignored"))
    return ""


def _mode(metadata: Mapping[str, Any], warnings: list[Remark]) -> str:
    value = metadata.get("mode")
    if value in ("primary", "subagent", "all"):
        return cast("str", value)
    if value is not None and value not in _MODES_ELSEWHERE:
        warnings.append((("mode",), "mode must be primary, subagent or all; it is ignored"))
    if metadata.get("disable-model-invocation") is True or metadata.get("infer") is False:
        return "primary"
    return "subagent" if metadata.get("user-invocable") is False else "all"


_MODES_ELSEWHERE = ("agent", "ask", "edit")
"""Copilot's modes of a conversation, which say nothing about who may choose the agent."""


def _model(metadata: Mapping[str, Any], warnings: list[Remark]) -> str | None:
    """Return the model; for a name that only another system knows, return ``None``: the user's default model is used."""
    given = metadata.get("model")
    model = str(cast("list[Any]", given)[0]) if isinstance(given, list) and given else _string(metadata, "model", warnings)
    if is_foreign_model(model):
        warnings.append((("model",), f"the model {model!r} does not exist here; the default model is used"))
        return None
    return None if model == "inherit" else model or None


def _flag(metadata: Mapping[str, Any], key: str, warnings: list[Remark]) -> bool:
    value = metadata.get(key, False)
    if not isinstance(value, bool):
        warnings.append(((key,), f"{key} must be true or false; it is ignored"))
    return value is True


def _steps(metadata: Mapping[str, Any], warnings: list[Remark]) -> tuple[int | None, str]:
    field = "maxSteps" if metadata.get("maxSteps") is not None else "maxTurns"
    value = metadata.get(field)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_STEPS):
        return value, ""
    problem = f"{field}: {value!a:.60} is not a whole number from 1 to {MAX_STEPS:,}"
    warnings.append(((field,), f"{problem}; {MEANWHILE}"))
    return None, problem


def _without_distrusted_allows(rules: tuple[Rule, ...], distrusted: str, warnings: list[Remark]) -> tuple[Rule, ...]:
    kept = tuple(rule for rule in rules if rule.decision != "allow" or rule.problem)
    if not distrusted or len(kept) == len(rules):
        return rules
    warnings.append((("permission",), f"no allow rule is taken from it, because {distrusted}"))
    return kept


# ---------------------------------------------------------------- parameters


def _settings(metadata: Mapping[str, Any], warnings: list[Remark]) -> ModelSettings:
    value = metadata.get("modelSettings")
    if value is not None and not isinstance(value, dict):
        warnings.append((("modelSettings",), "modelSettings must be an object; it is ignored"))
        value = None
    own = cast("dict[str, Any]", value or {})
    elsewhere = {name: metadata[key] for key, name in _ALSO.items() if key in metadata}
    kept: dict[str, Any] = {}
    for key, item in {**elsewhere, **own}.items():
        try:
            if key not in _PARAMETERS or isinstance(item, bool) or isinstance(item, str) is not (key == "reasoningEffort"):
                raise ValueError(key)
            ModelSettings.model_validate({_PARAMETERS[key]: item})
        except (ValidationError, ValueError):
            there = next((name for name, same in _ALSO.items() if same == key and name in metadata), key)
            place = ("modelSettings", str(key)) if key in own else (there,)
            takes = _TAKES.get(key, "it has temperature, topP, maxTokens and reasoningEffort")
            warnings.append((place, f"{'.'.join(place):.60}: {item!a:.60} cannot be used and is dropped; {takes}"))
        else:
            kept[_PARAMETERS[key]] = item
    return ModelSettings.model_validate(kept)


def read_agent(path: Path, *, reserved: frozenset[str] = RESERVED) -> tuple[Agent | None, list[Diagnostic]]:
    """Return the agent in the file at `path`, or ``None``, and the problems in the file. Never raises.

    :param reserved: ids that the agent may not have; only the plugin with the built-in agents passes another set.
    """
    source = shown_path(path)
    try:
        read = read_markdown(path)
    except WrongFile as wrong:
        return None, [_diagnostic_of(wrong, source)]
    if is_disabled(read.metadata):
        return None, []
    distrusted = read.distrusted or (f"its frontmatter is not YAML: {read.loose}" if read.loose else "")
    try:
        name = agent_id(read.metadata, file_id(path), reserved)
        agent, warnings = make_agent(read.metadata, read.body, source, name, distrusted, read.line_of)
    except WrongAgent as wrong:
        if read.loose:
            return None, [_diagnostic_of(read.loose, source)]
        line = (read.line_of(wrong.field) if wrong.field else None) or 2
        return None, [Diagnostic(file=source, code=wrong.code, message=str(wrong), line=line)]
    return agent, [
        Diagnostic(file=source, code="agent_field", message=text, line=read.line_of(*field)) for field, text in warnings
    ]


def _diagnostic_of(wrong: WrongFile, source: str) -> Diagnostic:
    return Diagnostic(file=source, code=f"agent_{wrong.code}", message=str(wrong), line=wrong.line, column=wrong.column)
