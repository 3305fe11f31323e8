"""Read what an agent file allows and forbids: tools, parts of tools, and permission rules; ours, and those of other systems.

What is not understood never makes the agent freer: a list of allowed tools that cannot be read allows none, a list of denied
ones denies all, and a rule makes its domain ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from moryflow_sdk.calls import DOMAINS
from moryflow_sdk.verdicts import Rule

from .foreign_names import DOMAINS_ELSEWHERE, is_known, is_of_server, plain_name, tools_here
from .rule_entries import read_entries

DENIED = ("disallowedTools", "disallowed-tools", "disallowed_tools")
"""The fields in which files of other systems name the tools that an agent may not use."""
PERMISSION = ("permission", "permissions")
Remark = tuple[tuple[str, ...], str]
"""A problem with a field: the path of names to the field, and a sentence."""
Line = Callable[..., int | None]
_HALF = re.compile("[\ud800-\udfff]")
_ENTRY = re.compile(r"\s*([^()]*?)\s*(?:\((.*)\))?\s*", re.DOTALL)
_DOMAIN = {plain_name(domain): domain for domain in DOMAINS} | {plain_name(a): b for a, b in DOMAINS_ELSEWHERE.items()}
_DOMAIN_OF = {
    **dict.fromkeys(("read", "ls", "glob", "grep"), "read"),
    **dict.fromkeys(("edit", "write", "multiedit", "apply_patch", "move", "delete"), "edit"),
    "bash": "bash",
    "web_fetch": "web_fetch",
    "task": "task",
}
"""The domain whose rules say which part of a tool may be used."""
_WHOLE = ("", "*", "**", ":*")


class Rights(NamedTuple):
    """What an agent may do; see :class:`~moryflow_sdk.Agent`."""

    tools: tuple[str, ...] | None
    denied: tuple[str, ...]
    rules: tuple[Rule, ...]


class _Entry(NamedTuple):
    """A tool in a list; `part` is what its parentheses hold: ``git:*`` in ``Bash(git:*)``."""

    tool: str
    part: str

    def __str__(self) -> str:
        return f"{self.tool}({self.part})" if self.part else self.tool


def read_rights(metadata: Mapping[str, Any], source: str, warnings: list[Remark], line: Line) -> Rights:
    """Return the rights in the fields of an agent file; what is wrong is added to `warnings`."""
    rules: list[dict[str, Any]] = []
    tools, denied = _tools(metadata.get("tools"), rules, warnings)
    for key in (key for key in DENIED if metadata.get(key) is not None):
        entries = _entries(metadata[key])
        if entries is None:
            warnings.append(((key,), f"{key} must be a list of names; the agent gets no tools"))
        denied += ("*",) if entries is None else tuple(_deny(key, entries, rules, warnings))
    if isinstance(agents := metadata.get("agents"), list):  # Copilot: the only agents that it may start
        rules += _only("task", [str(name) for name in cast("list[Any]", agents)])
    found, taken = _rules(metadata, source, warnings, line)
    parts, _ = read_entries(rules, "agent tools", source)
    return Rights(tools, tuple(dict.fromkeys((*denied, *taken))), (*found, *parts))


# ---------------------------------------------------------------- tools


def _tools(value: Any, rules: list[dict[str, Any]], warnings: list[Remark]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    if value is None:
        return None, ()
    allow, deny = _sides(cast("dict[Any, Any]", value)) if isinstance(value, dict) else (_entries(value), list[_Entry]())
    if allow is None or deny is None:
        warnings.append((("tools",), "tools must be a list of names; the agent gets none"))
        return (), ()
    denied = tuple(_deny("tools", deny, rules, warnings))
    return None if allow == _ALL else tuple(_allow(allow, rules, warnings)), denied


_ALL = [_Entry("*", "")]


def _sides(value: dict[Any, Any]) -> tuple[list[_Entry] | None, list[_Entry] | None]:
    if value and all(isinstance(key, str) and isinstance(item, bool) for key, item in value.items()):
        on = _entries([name for name, wanted in value.items() if wanted and name != "*"])
        off = _entries([name for name, wanted in value.items() if not wanted and name != "*"])
        return (on if value.get("*") is False else _ALL), off
    if value.keys() - {"allow", "deny"}:
        return None, None
    return _entries(value["allow"]) if "allow" in value else _ALL, _entries(value.get("deny", []))


def _entries(value: Any) -> list[_Entry] | None:
    if isinstance(value, str):
        parts = (part.strip(" \t\n[]\"'") for part in re.split(r",(?![^(]*\))", value))
        value = [part for part in parts if part]
    if not isinstance(value, list) or not all(is_text(item) for item in cast("list[Any]", value)):
        return None
    found = [(text, _ENTRY.fullmatch(text)) for text in cast("list[str]", value)]
    return [_Entry(match[1], (match[2] or "").strip()) if match else _Entry(text, "") for text, match in found]


def is_text(value: Any) -> bool:
    """Whether `value` is text that can be printed and stored, without lone surrogates."""
    return isinstance(value, str) and not _HALF.search(value)


def _allow(entries: Sequence[_Entry], rules: list[dict[str, Any]], warnings: list[Remark]) -> Iterator[str]:
    """Yield the tools that are allowed. A tool of which only parts are allowed gets rules that deny the rest."""
    whole = {plain_name(entry.tool) for entry in entries if entry.part in _WHOLE}
    limited: dict[str, list[str]] = {}
    for entry in entries:
        if plain_name(entry.tool) not in whole:
            domain, patterns = _patterns(entry)
            if not domain:
                text = f"tools: {str(entry)!a:.60} is not understood; the agent does not get {entry.tool!a:.60} by it"
                warnings.append((("tools",), text))
                continue
            limited.setdefault(domain, []).extend(patterns)
        yield from tools_here(entry.tool)
    for domain, patterns in limited.items():
        rules += _only(domain, patterns)


def _only(domain: str, patterns: Sequence[str]) -> list[dict[str, Any]]:
    return [_rule(domain, "*", "deny"), *(_rule(domain, pattern, "allow") for pattern in patterns)]


def _rule(domain: str, pattern: str, decision: Any) -> dict[str, Any]:
    return {"domain": domain, "pattern": pattern, "decision": decision}


def _deny(key: str, entries: Sequence[_Entry], rules: list[dict[str, Any]], warnings: list[Remark]) -> Iterator[str]:
    """Yield the tools that are denied. A part of a tool gets a rule; if a part is not understood, the whole tool is denied."""
    for entry in entries:
        domain, patterns = _patterns(entry) if entry.part not in _WHOLE else ("", ())
        rules += [_rule(domain, pattern, "deny") for pattern in patterns]
        if domain:
            continue
        if entry.part:
            text = f"{key}: {str(entry)!a:.60} takes all of {entry.tool!a:.60} away; a part is taken away by permission rules"
            warnings.append(((key,), text))
        yield from tools_here(entry.tool, denied=True)


def _patterns(entry: _Entry) -> tuple[str, Sequence[str]]:
    domain, part = _domain_of(entry.tool), entry.part
    match domain:
        case "bash":
            command = part.removesuffix(":*").removesuffix(" *")
            return domain, (part,) if command == part else (command, f"{command} *")
        case "read" | "edit":
            return domain, (f"fs:{part[1:]}" if part.startswith("//") else part.removeprefix("./"),)
        case "web_fetch":
            host = part.removeprefix("domain:")
            return (domain, (f"https://{host}/**", f"http://{host}/**")) if host != part else ("", ())
        case "task":
            return domain, [name.strip().rpartition(":")[2] for name in part.split(",")]
        case _:
            return "", ()


def _domain_of(tool: str) -> str:
    return next((_DOMAIN_OF[name] for name in tools_here(tool) if name in _DOMAIN_OF), "")


# ---------------------------------------------------------------- rules


def _rules(metadata: Mapping[str, Any], source: str, warnings: list[Remark], line: Line) -> tuple[list[Rule], list[str]]:
    """Read permission rules, and the tools that they take away.

    They are a list of our rules, ``{rules: […]}`` as in the configuration, or ``{domain: decision}`` and ``{domain: {pattern:
    decision}}``. Each layer of rules gets a source of its own, because the gate judges the sources separately.
    """
    rules: list[Rule] = []
    denied: list[str] = []
    for field in PERMISSION:
        value = metadata.get(field)
        if isinstance(value, Mapping) and list(cast("Mapping[Any, Any]", value)) == ["rules"]:
            value = cast("Mapping[Any, Any]", value)["rules"]
        if value in ("ask", "deny"):
            value = {"*": value}
        elsewhere = isinstance(value, Mapping)
        if isinstance(value, Mapping):
            layers = _layers(field, cast("Mapping[Any, Any]", value), denied, line)
        else:
            entries = cast("list[Any]", value) if isinstance(value, list) else [] if value is None else [value]
            layers = [[(entry, None) for entry in entries]]
        own = f"agent {field}" if rules else "agent"
        for place, layer in enumerate(layers):
            lines = [number for _, number in layer]
            name = f"{own} {place + 1}" if place else own
            found, faults = read_entries(
                [entry for entry, _ in layer], name, source, line=lines.__getitem__, elsewhere=elsewhere
            )
            rules += found
            for fault in faults:
                which = field if elsewhere else f"permission rule {fault.index + 1}"
                warnings.append(((field,), f"{which}: {fault.message}{f' ({fault.hint})' if fault.hint else ''}"))
    return rules, denied


_Numbered = tuple[Any, int | None]
"""An entry of a list of rules, and its line."""


def _layers(field: str, value: Mapping[Any, Any], denied: list[str], line: Line) -> list[list[_Numbered]]:
    """Return the rules in ``{domain: {pattern: decision}}``; if a domain has several names, those of each name in its own list.

    With a list each, the stricter of ``edit`` and ``write`` counts, and not the last.
    """
    found = list(_as_list(value, denied))
    spellings: dict[Any, list[Any]] = {}
    for key, entry in found:
        names = spellings.setdefault(str(entry["domain"]), [])
        names += [key] if key not in (*names, "*") else []
    layers: list[list[_Numbered]] = [[] for _ in range(max(map(len, spellings.values()), default=1) or 1)]
    for key, entry in found:
        names = spellings[str(entry["domain"])]
        number = line(field, str(key), str(entry["pattern"])) or line(field, str(key))
        for place in [names.index(key)] if key != "*" else range(len(names) or 1):
            layers[place].append((entry, number))
    return layers


def _as_list(value: Mapping[Any, Any], denied: list[str]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each key with its rules. A key that is a tool and no domain takes the tool away, unless it only allows or asks."""
    for key, given in value.items():
        name = key if isinstance(key, str) else ""
        sides = cast("Mapping[Any, Any]", given) if isinstance(given, Mapping) else {"*": given}
        domains: Sequence[Any] = DOMAINS if name == "*" else [_DOMAIN.get(plain_name(name), key)]
        outside = plain_name(name) == "externaldirectory"  # OpenCode: everything outside the folder
        domains = ("read", "edit") if outside else domains
        if not outside and domains[0] not in DOMAINS and (is_known(name) or is_of_server(name)):
            if {str(decision).strip().casefold() for decision in sides.values()} - {"allow", "ask"}:
                denied += tools_here(name, denied=True)
            domains = [domain] if (domain := _domain_of(name)) and "ask" in sides.values() else []
            sides = {pattern: decision for pattern, decision in sides.items() if decision == "ask"}
        for domain in domains:
            for pattern, decision in sides.items():
                yield key, _rule(domain, f"fs:{'**' if pattern == '*' else pattern}" if outside else pattern, decision)
