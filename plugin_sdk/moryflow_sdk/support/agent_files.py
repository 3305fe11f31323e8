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

from .markdown_files import MarkdownFile, WrongFile, parse_markdown, read_markdown, shown_path
from .rule_entries import ANY_DOMAIN, DOMAINS_ELSEWHERE, MEANWHILE, not_understood, read_entries
from .texts import nearest

RESERVED = frozenset({"default_compact_agent", "build", "compaction", "title", "summary"})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_KNOWN = (
    "id", "name", "description", "modelSettings", "mode", "model", "tools", "permission", "hidden", "maxSteps",
    "maxTurns", "temperature", "top_p",
)  # fmt: skip
_DENIED = ("disallowedTools", "disallowed-tools", "disallowed_tools")
"""The fields in which files of other systems name the tools that an agent may not use."""
_RESTRICTS = {"tools": "tools", "rule": "permission", "perm": "permission", "steps": "maxSteps", "turns": "maxSteps"}
"""A part of the name of an unknown field, in lower case → the field that it probably means."""
_ASKS = ("permission", "maxSteps")
"""The fields that restrict an agent, besides its tools: while one is not understood, every call is asked about."""
_HALF = re.compile("[\ud800-\udfff]")
_PARAMETERS = {"temperature": "temperature", "topP": "top_p", "maxTokens": "max_tokens"}
_TAKES = {
    "temperature": "it takes a number from 0 to 2",
    "topP": "it takes a number from 0 to 1",
    "maxTokens": "it takes a whole number from 1 to 10,000,000",
}
_MODELS_ELSEWHERE = frozenset({"sonnet", "opus", "haiku", "default"})
"""Names of models that only the system knows for which the file was written."""
_PERMISSION = ("permission",)
MOST_STEPS = 1_000_000
Remark = tuple[tuple[str, ...], str]
"""A problem with a field: the path of names to the field, and a sentence."""


class WrongAgent(Exception):
    """The file does not describe an agent.

    :param field: the field that is wrong.
    """

    def __init__(self, code: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code, self.field = code, field


def agent_id(metadata: Mapping[str, Any], default_id: str, reserved: frozenset[str]) -> str:
    """Return the agent's id; a file of another system has no id, and gets `default_id`, the name of its file.

    :raises WrongAgent: the file has no id, or the id is not valid.
    """
    elsewhere = "id" not in metadata and "modelSettings" not in metadata and isinstance(metadata.get("description"), str)
    found: Any = default_id if elsewhere else metadata.get("id")
    if not isinstance(found, str) or not found:
        raise WrongAgent(
            "agent_id" if "id" not in metadata or found == "" else "agent_frontmatter", "it needs an id, a text", "id"
        )
    if not _ID.match(found):
        raise WrongAgent("agent_id", f"the id {found[:80]!a} may hold letters, digits, '-' and '_' only", "id")
    if found.lower() in reserved:
        raise WrongAgent("agent_id", f"the id {found!r} is the host's own", "id")
    return found


def make_agent(
    metadata: Mapping[str, Any], body: str, source: str, name: str, distrusted: str = ""
) -> tuple[Agent, list[Remark]]:
    """Return the agent, and the problems with its fields.

    :param distrusted: why allow rules in the file are not used; empty if they are.
    :raises WrongAgent: an agent cannot have one of the values.
    """
    unknown = {str(key): _probable_field(str(key)) for key in metadata if key not in _KNOWN and key not in _DENIED}
    warnings: list[Remark] = [((key,), f"the field {key!a:.80} {_unknown_field_effect(near)}") for key, near in unknown.items()]
    tools, denied = _tools([] if "tools" in unknown.values() else metadata.get("tools"), warnings)
    denied = (*denied, *_denied_elsewhere(metadata, warnings))
    rules = _without_distrusted_allows(_rules(metadata.get("permission"), source, warnings), distrusted, warnings)
    steps, wrong_steps = _steps(metadata, warnings)
    lost = [f"the field {key!a:.80} is not known" for key, near in unknown.items() if near in _ASKS]
    if problem := next(iter(lost), wrong_steps):
        rules = (*rules, not_understood(ANY_DOMAIN, problem, source="agent", file=source))
    fields = {
        "id": name,
        "name": _string(metadata, "name", warnings),
        "description": _string(metadata, "description", warnings),
        "mode": _choice(metadata, warnings),
        "model": _model(metadata, warnings),
        "prompt": body,
        "tools": tools,
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


def _probable_field(key: str) -> str:
    """Return the field that an unknown one probably means; any name with ``tools`` in it may be meant to restrict tools."""
    plain = key.lower().replace("return", "")  # it has nothing to do with turns
    if part := next((part for part in _RESTRICTS if part in plain), ""):
        return _RESTRICTS[part]
    near = nearest(key, _KNOWN)
    return nearest(key, [near], 0.75) if near in _ASKS else near  # `version` is like `permission`, but not meant so


def _denied_elsewhere(metadata: Mapping[str, Any], warnings: list[Remark]) -> tuple[str, ...]:
    """Return the tools that an agent file of another system denies; a list that is not understood denies all."""
    denied: tuple[str, ...] = ()
    for key in _DENIED:
        if metadata.get(key) is None:
            continue
        names = _names(metadata[key])
        if names is None:
            warnings.append(((key,), f"{key} must be a list of names; the agent gets no tools"))
        for name in ("*",) if names is None else names:
            tool, part, _ = name.partition("(")
            denied += (tool, _spelled_here(tool))
            if part:
                text = f"{key}: {name!a:.60} takes all of {tool!a:.60} away; a part is taken away by permission rules"
                warnings.append(((key,), text))
    return tuple(dict.fromkeys(denied))


def _unknown_field_effect(near: str) -> str:
    """Return the effect of an unknown field, for a message. A field that may be meant to restrict the agent always has one."""
    costs = {**dict.fromkeys(_ASKS, MEANWHILE), "tools": "the agent gets no tools of it"}
    return (
        f"is not known{f'; {costs[near]}' if near in costs else ' and is ignored'}{f'; did you mean {near!r}?' if near else ''}"
    )


def _string(metadata: Mapping[str, Any], key: str, warnings: list[Remark]) -> str:
    value = metadata.get(key, "")
    if _is_text(value):
        return cast("str", value)
    warnings.append(((key,), f"{key} must be text; it is ignored"))
    return ""


def _is_text(value: Any) -> bool:
    """Whether `value` is text that can be printed and stored, without lone surrogates."""
    return isinstance(value, str) and not _HALF.search(value)


def _choice(metadata: Mapping[str, Any], warnings: list[Remark]) -> str:
    value = metadata.get("mode", "all")
    if value in ("primary", "subagent", "all"):
        return cast("str", value)
    warnings.append((("mode",), "mode must be primary, subagent or all; it is ignored"))
    return "all"


def _model(metadata: Mapping[str, Any], warnings: list[Remark]) -> str | None:
    """Return the model; for a name that only another system knows, return ``None``: the person's default model is used."""
    model = _string(metadata, "model", warnings)
    if model in _MODELS_ELSEWHERE:
        warnings.append((("model",), f"the model {model!r} does not exist here; the default model is used"))
        return None
    return None if model == "inherit" else model or None


def _flag(metadata: Mapping[str, Any], key: str, warnings: list[Remark]) -> bool:
    value = metadata.get(key, False)
    if not isinstance(value, bool):
        warnings.append(((key,), f"{key} must be true or false; it is ignored"))
    return value is True


def _steps(metadata: Mapping[str, Any], warnings: list[Remark]) -> tuple[int | None, str]:
    """Return the limit of model calls, and what is wrong with it, if anything. Another system calls it ``maxTurns``."""
    field = "maxSteps" if metadata.get("maxSteps") is not None else "maxTurns"
    value = metadata.get(field)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_STEPS):
        return value, ""
    problem = f"{field}: {value!a:.60} is not a whole number from 1 to {MOST_STEPS:,}"
    warnings.append(((field,), f"{problem}; {MEANWHILE}"))
    return None, problem


# ---------------------------------------------------------------- tools


def _tools(value: Any, warnings: list[Remark]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the allowed and the denied tools from a list of names or globs, ``a, b``, ``{allow, deny}``, or ``{name: bool}``.

    If the value is not understood, no tool is allowed.
    """
    if value is None:
        return None, ()
    if isinstance(value, dict):
        sides = _sides(cast("dict[Any, Any]", value))
        if sides is not None:
            return sides
    elif (names := _names(value)) is not None:
        return names, ()
    warnings.append((("tools",), "tools must be a list of names; the agent gets none"))
    return (), ()


def _sides(value: dict[Any, Any]) -> tuple[tuple[str, ...] | None, tuple[str, ...]] | None:
    if value and all(isinstance(key, str) and isinstance(item, bool) for key, item in value.items()):
        on = _names([name for name, wanted in value.items() if wanted and name != "*"]) or ()
        off = _names([name for name, wanted in value.items() if not wanted and name != "*"]) or ()
        return (on, off) if value.get("*") is False else (None, off)
    if value.keys() - {"allow", "deny"}:
        return None
    allow, deny = _names(value.get("allow", [])), _names(value.get("deny", []))
    if allow is None or deny is None:
        return None
    return allow if "allow" in value else None, deny


def _names(value: Any) -> tuple[str, ...] | None:
    """Return names and globs; ``Read`` and ``WebFetch`` mean ``read`` and ``web_fetch`` too."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(_is_text(item) for item in cast("list[Any]", value)):
        return None
    names = cast("list[str]", value)
    return tuple(dict.fromkeys(name for given in names for name in (given, _spelled_here(given))))


def _spelled_here(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() if name[:1].isupper() and name.isalpha() else name


# ---------------------------------------------------------------- rules


def _rules(value: Any, source: str, warnings: list[Remark]) -> tuple[Rule, ...]:
    """Read permission rules: a list of our rules, or ``{domain: decision}`` and ``{domain: {pattern: decision}}``.

    The form of the configuration, ``{rules: […]}``, works too. A rule that is not understood makes its domain ask.
    """
    if isinstance(value, Mapping) and list(cast("Mapping[Any, Any]", value)) == ["rules"]:
        value = cast("Mapping[Any, Any]", value)["rules"]
    if value is None:
        return ()
    elsewhere = isinstance(value, Mapping)
    if isinstance(value, Mapping):
        value = list(_as_list(cast("Mapping[Any, Any]", value)))
    entries = cast("list[Any]", value) if isinstance(value, list) else [value]
    rules, faults = read_entries(entries, "agent", source, elsewhere=elsewhere)
    for fault in faults:
        place = f"permission rule {fault.index + 1}: " if not elsewhere else "permission: "
        warnings.append((_PERMISSION, f"{place}{fault.message}{f' ({fault.hint})' if fault.hint else ''}"))
    return tuple(rules)


def _as_list(value: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    for domain, given in value.items():
        named = DOMAINS_ELSEWHERE.get(domain, domain) if isinstance(domain, str) else domain
        sides = cast("Mapping[Any, Any]", given) if isinstance(given, Mapping) else {"*": given}
        for pattern, decision in sides.items():
            yield {"domain": named, "pattern": pattern, "decision": decision}


def _without_distrusted_allows(rules: tuple[Rule, ...], distrusted: str, warnings: list[Remark]) -> tuple[Rule, ...]:
    kept = tuple(rule for rule in rules if rule.decision != "allow" or rule.problem)
    if not distrusted or len(kept) == len(rules):
        return rules
    warnings.append((_PERMISSION, f"no allow rule is taken from it, because {distrusted}"))
    return kept


# ---------------------------------------------------------------- parameters


def _settings(metadata: Mapping[str, Any], warnings: list[Remark]) -> ModelSettings:
    """Return the valid parameters: each is checked separately, and a wrong one is dropped with a warning."""
    value = metadata.get("modelSettings")
    if value is not None and not isinstance(value, dict):
        warnings.append((("modelSettings",), "modelSettings must be an object; it is ignored"))
        value = None
    own = cast("dict[str, Any]", value or {})
    elsewhere = {name: metadata[key] for key, name in (("temperature", "temperature"), ("top_p", "topP")) if key in metadata}
    kept: dict[str, Any] = {}
    for key, item in {**elsewhere, **own}.items():
        try:
            if key not in _PARAMETERS or isinstance(item, bool | str):
                raise ValueError(key)
            ModelSettings.model_validate({_PARAMETERS[key]: item})
        except (ValidationError, ValueError):
            place = ("modelSettings", str(key)) if key in own else ("top_p" if key == "topP" else key,)
            takes = _TAKES.get(key, "it has temperature, topP and maxTokens")
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
    return _agent(read, source, path.stem, reserved)


def parse_agent(
    data: bytes, source: str, *, default_id: str = "", reserved: frozenset[str] = RESERVED, distrusted: str = ""
) -> tuple[Agent | None, list[Diagnostic]]:
    """Return the agent that `data` describes, or ``None``, and the problems in it.

    :param default_id: the id for files of other systems, which have a ``name`` and no ``id``; it must be valid too.
    :param distrusted: why somebody else could have written the file; its allow rules are then ignored.
    """
    try:
        read = parse_markdown(data, distrusted)
    except WrongFile as wrong:
        return None, [_diagnostic_of(wrong, source)]
    return _agent(read, source, default_id, reserved)


def _agent(read: MarkdownFile, source: str, default_id: str, reserved: frozenset[str]) -> tuple[Agent | None, list[Diagnostic]]:
    try:
        name = agent_id(read.metadata, default_id, reserved)
        agent, warnings = make_agent(read.metadata, read.body, source, name, read.distrusted)
    except WrongAgent as wrong:
        line = (read.line_of(wrong.field) if wrong.field else None) or 2
        return None, [Diagnostic(file=source, code=wrong.code, message=str(wrong), line=line)]
    return agent, [
        Diagnostic(file=source, code="agent_field", message=text, line=read.line_of(*field)) for field, text in warnings
    ]


def _diagnostic_of(wrong: WrongFile, source: str) -> Diagnostic:
    return Diagnostic(file=source, code=f"agent_{wrong.code}", message=str(wrong), line=wrong.line, column=wrong.column)
