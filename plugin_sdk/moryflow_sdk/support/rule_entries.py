"""Read permission rules as the user writes them. A rule that is not understood makes its domain ask; it never allows.

The configuration, agent files and commands such as ``permission test`` all use this reader, so that a mistake has the same
effect everywhere.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from moryflow_sdk.calls import DOMAINS, UNKNOWN_FOLDER
from moryflow_sdk.support.foreign_names import DOMAINS_ELSEWHERE
from moryflow_sdk.support.texts import nearest, visible
from moryflow_sdk.verdicts import Rule

DECISIONS = ("allow", "ask", "deny")
MAX_PATTERN = 4096
ANY_DOMAIN = "*"
"""The domain of a rule that names none: until the rule is corrected, every call is asked about."""

MEANWHILE = "meanwhile every call is asked about"
"""The end of every message about a rule that names no domain."""

_KEYS = ("domain", "pattern", "decision")
_BOUND = ("folder", "contents")
"""The keys that bind a rule for commands to a folder and to files, as *always* stores it."""

_PLACES = ("vault:/", "fs:/")
_STATE = re.compile(r"absent|is:/.+|sha256:[0-9a-f]{64}")
_MAY_FAIL = ("regex:", "{", "[")
"""Only patterns with one of these can be wrong; compiling all patterns to check them would slow every start."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in a list of rules.

    :param key: the key of the entry that is wrong; ``None`` for the whole entry.
    :param code: ``rule_invalid`` or ``config_unknown_key``.
    :param harmless: whether the entry was left out, because it makes no domain of ours stricter.
    """

    index: int
    message: str
    hint: str = ""
    key: str | None = None
    code: str = "rule_invalid"
    harmless: bool = False


_Line = Callable[[int], int | None]


class _Bad(Exception):
    def __init__(self, message: str, hint: str = "", key: str | None = None, code: str = "rule_invalid") -> None:
        super().__init__(message)
        self.message, self.hint, self.key, self.code = message, hint, key, code


def read_entries(
    entries: Sequence[Any], source: str, file: str | None = None, *, line: _Line = lambda _: None, elsewhere: bool = False
) -> tuple[list[Rule], list[Fault]]:
    """Return the rules for `entries`, in order, and the mistakes in them.

    :param line: returns the line on which an entry begins, by its index.
    :param elsewhere: whether the rules are written for another system, with domains that do not exist here; a rule that asks
        in such a domain is then left out, as one that allows always is.
    """
    rules: list[Rule] = []
    faults: list[Fault] = []
    for index, raw in enumerate(entries):
        place: dict[str, Any] = {"source": source, "file": file, "line": line(index), "index": index}
        entry: Mapping[Any, Any] = cast("Mapping[Any, Any]", raw) if isinstance(raw, Mapping) else {}
        try:
            rules.append(_rule(entry, place))
        except _Bad as bad:
            known = next((domain for domain in DOMAINS if domain == entry.get("domain")), None)
            lax = ("allow", "ask") if elsewhere else ("allow",)
            if known is None and isinstance(entry.get("domain"), str) and entry.get("decision") in lax:
                faults.append(Fault(index, f"{bad.message}; the rule is ignored", bad.hint, harmless=True))
                continue
            pattern: Any = entry.get("pattern")
            pattern = pattern if isinstance(pattern, str) and 0 < len(pattern) <= MAX_PATTERN else "*"
            fields: dict[str, Any] = {**place, "pattern": pattern}
            domain = known or ANY_DOMAIN
            if bad.code == "config_unknown_key" and entry["decision"] == "deny":
                rules.append(Rule(domain=domain, decision="deny", **fields))  # what can be read of it holds
            rules.append(not_understood(domain, bad.message, **fields))
            rest = MEANWHILE if known is None else MEANWHILE.replace("call", "call of its domain")
            faults.append(Fault(index, f"{bad.message}; {rest}", bad.hint, bad.key, bad.code))
    return rules, faults


def not_understood(domain: str, problem: str, **fields: Any) -> Rule:
    """Return a rule that replaces one that could not be read: it matches nothing, and `domain` asks in every mode."""
    return Rule.model_validate({"pattern": "*", **fields, "decision": "deny", "domain": domain, "problem": problem})


def _rule(entry: Mapping[Any, Any], place: dict[str, Any]) -> Rule:
    if not entry:
        raise _Bad("a rule is an object with domain, pattern and decision")
    for missing in (key for key in _KEYS if key not in entry):
        raise _Bad(f'the rule has no "{missing}"')
    domain, pattern, decision = (entry[key] for key in _KEYS)
    if decision not in DECISIONS:
        near = nearest(str(decision)[:20], DECISIONS)
        raise _Bad(f"{_quoted(decision)} is not a decision", f'did you mean "{near}"?' if near else "allow, ask or deny")
    if domain not in DOMAINS:
        plain = str(domain)[:40].strip().casefold().replace("-", "_")
        guess = DOMAINS_ELSEWHERE.get(plain) or nearest(plain, DOMAINS)
        raise _Bad(
            f"{_quoted(domain)} is not a domain", f'did you mean "{guess}"?' if guess else f"one of {', '.join(DOMAINS)}"
        )
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        raise _Bad(f"the pattern must be a text of 1 to {MAX_PATTERN} characters")
    if hidden := hidden_character(pattern):
        raise _Bad(f"the pattern holds {hidden}, which nobody sees", "type the pattern again instead of pasting it", "pattern")
    for extra in (key for key in entry if key not in (*_KEYS, *_BOUND)):
        raise _Bad(f"a rule has no key {_quoted(extra)}", f"it has {', '.join(_KEYS)}", str(extra), "config_unknown_key")
    rule = Rule(domain=domain, pattern=pattern, decision=decision, **place, **_binding(entry, domain, decision))
    if why := _pattern_problem(rule):
        said = "this deny rule cannot be used" if decision == "deny" else "this rule can never match"
        raise _Bad(f"{said}: {why}")
    return rule


def _binding(entry: Mapping[Any, Any], domain: str, decision: str) -> dict[str, Any]:
    found: dict[str, Any] = {key: entry[key] for key in _BOUND if key in entry}
    if found and domain != "bash":
        raise _Bad(f'only a rule of bash has "{next(iter(found))}"', key=next(iter(found)))
    folder, contents = found.get("folder", UNKNOWN_FOLDER), found.get("contents", {})
    if not isinstance(folder, str) or not (folder == UNKNOWN_FOLDER or _names_folder(folder, decision)):
        raise _Bad(f"{_quoted(folder)} is not a folder", "write it as vault:/sub, or vault:/ for the vault itself", "folder")
    states = cast("Mapping[Any, Any]", contents).items() if isinstance(contents, Mapping) else [("", "")]
    if not all(str(name).startswith(_PLACES) and _STATE.fullmatch(str(state)) for name, state in states):
        raise _Bad('"contents" names files and their SHA-256', 'it is {"vault:/x.sh": "sha256:…"}; or leave it out', "contents")
    if contents and decision != "allow":
        raise _Bad('only a rule that allows has "contents"', key="contents")
    return found


def _names_folder(text: str, decision: str) -> bool:
    """Whether `text` names a folder in the canonical spelling; a rule with any other spelling would never match.

    Invisible characters are accepted in an allow, because *always* stores names as they are, but not in a rule that the user
    types to forbid something.
    """
    path = text.partition(":")[2]
    if not text.startswith(_PLACES) or path.startswith("//") or posixpath.normpath(path) != path:
        return False
    return decision == "allow" or not hidden_character(path)


_JOINED = re.compile(r"(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
"""Joiners between letters or emoji; some scripts need them in names."""


def hidden_character(pattern: str) -> str:
    """Return the name of a character in `pattern` that has no width, reverses the text or is a control; or an empty text.

    A rule with such a character looks right, but does not match what the user reads in it.
    """
    from unicodedata import name

    text = _JOINED.sub("", pattern)
    shown = visible(text, keep="\t\n\r")
    if shown == text:
        return ""
    found = next(char for char, seen in zip(text, shown, strict=False) if char != seen)
    return f"U+{ord(found):04X} {name(found, '')}".rstrip()


def _pattern_problem(rule: Rule) -> str:
    from .patterns import KINDS, PREFIXES, compile_rule

    foreign = rule.pattern.startswith(KINDS) and not rule.pattern.startswith(PREFIXES[rule.domain])
    if rule.decision != "deny" and not foreign and not any(sign in rule.pattern for sign in _MAY_FAIL):
        return ""
    return compile_rule(rule).problem


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]
