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
from typing import Any, Literal, cast

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
"""Only patterns with one of these can be wrong; compiling all patterns to check them would slow every start. Patterns of deny
rules are always checked."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in a list of rules.

    :param key: the key of the entry that is wrong; ``None`` for the whole entry.
    :param code: ``rule_invalid``, ``rule_unusable`` (no engine accepts the pattern) or ``config_unknown_key``.
    :param harmless: whether the entry was left out, because without it no call can be treated less strictly.
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
        or allows in such a domain is left out.
    """
    rules: list[Rule] = []
    faults: list[Fault] = []
    missing: set[tuple[str, str]] = set()
    for index, raw in enumerate(entries):
        place: dict[str, Any] = {"source": source, "file": file, "line": line(index), "index": index}
        try:
            rules.append(_rule(raw, place, faults))
        except _Bad as bad:
            for rule in _replacement_rules(raw, bad, place, faults, elsewhere=elsewhere):
                if not rule.problem or (rule.domain, rule.decision) not in missing:  # one is enough for a thousand
                    rules.append(rule)
                if rule.problem:
                    missing.add((rule.domain, rule.decision))
    return rules, faults


def not_understood(domain: str, problem: str, **fields: Any) -> Rule:
    """Return a rule that replaces one that could not be read: it matches nothing, and `domain` asks.

    :param fields: more fields; with a ``decision`` of ``deny``, no mode lifts the question.
    """
    return Rule.model_validate({"pattern": "*", "decision": "deny", **fields, "domain": domain, "problem": problem})


def _rule(raw: Any, place: dict[str, Any], faults: list[Fault]) -> Rule:
    if not isinstance(raw, Mapping):
        raise _Bad("a rule is an object with domain, pattern and decision")
    entry = cast("Mapping[Any, Any]", raw)
    for missing in (key for key in _KEYS if key not in entry):
        raise _Bad(f'the rule has no "{missing}"', _suggestion(missing, [str(key) for key in entry if key not in _KEYS], "has"))
    decision, domain = _decision(entry["decision"]), entry["domain"]
    if not isinstance(domain, str) or domain not in DOMAINS:
        guess = _guess(domain)
        hint = f'did you mean "{guess}"?' if guess else f"one of {', '.join(DOMAINS)}"
        raise _Bad(f"{_quoted(domain)} is not a domain", hint)
    _check_pattern(entry["pattern"])
    for extra in (key for key in entry if key not in (*_KEYS, *_BOUND)):
        hint = _suggestion(extra, (*_KEYS, *_BOUND)) or f"it has {', '.join(_KEYS)}"
        raise _Bad(f"a rule has no key {_quoted(extra)}", hint, str(extra), "config_unknown_key")
    rule = Rule(domain=domain, pattern=entry["pattern"], decision=decision, **place, **_binding(entry, domain, decision))
    why = _pattern_problem(rule)
    if why and decision != "deny":
        raise _Bad(f"this rule can never match: {why}")
    if why:
        faults.append(
            Fault(place["index"], f"this deny rule cannot be used: {why}; {_consequence(domain)}", code="rule_unusable")
        )
    if decision != entry["decision"]:
        faults.append(Fault(place["index"], f'{_quoted(entry["decision"])} is read as "{decision}"', key="decision"))
    return rule


def _binding(entry: Mapping[Any, Any], domain: str, decision: str) -> dict[str, Any]:
    """Return the folder and the contents of a rule, checked."""
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


def _replacement_rules(raw: Any, bad: _Bad, place: dict[str, Any], faults: list[Fault], *, elsewhere: bool) -> list[Rule]:
    """Return the rules that replace an entry that is not understood: its domain asks, and a deny that can be read denies."""
    decision = _probable_decision(raw)
    domain = _asking_domain(raw, decision, elsewhere=elsewhere)
    rest = "the rule is ignored" if domain is None else _consequence(domain)
    faults.append(Fault(place["index"], f"{bad.message}; {rest}", bad.hint, bad.key, bad.code, harmless=domain is None))
    if domain is None:
        return []
    entry: Mapping[Any, Any] = cast("Mapping[Any, Any]", raw) if isinstance(raw, Mapping) else {}
    given = entry.get("pattern")
    pattern = given if isinstance(given, str) and 0 < len(given) <= MAX_PATTERN and _plain(given) else "*"
    rules = [not_understood(domain, bad.message, **place, pattern=pattern, decision="deny" if decision == "deny" else "ask")]
    if bad.code == "config_unknown_key" and str(entry["decision"]).strip().casefold() == "deny":
        rules.insert(0, Rule(domain=domain, pattern=pattern, decision="deny", **place))
    return rules


def _probable_decision(raw: Any) -> str:
    """Return the decision that an entry probably means; an entry that does not clearly say allow or ask may be a deny."""
    entry: Mapping[Any, Any] = cast("Mapping[Any, Any]", raw) if isinstance(raw, Mapping) else {}
    words = {str(key): item.strip().casefold() for key, item in entry.items() if isinstance(item, str) and len(item) < 20}
    if any(nearest(word, ["deny"], 0.75) for word in words.values()):
        return "deny"
    decisions = [word for key, word in words.items() if key not in ("domain", "pattern")]
    return next((close for word in decisions if (close := nearest(word, ["allow", "ask"]))), "deny")


def _asking_domain(raw: Any, decision: str, *, elsewhere: bool) -> str | None:
    """Return the domain that asks because an entry is not understood; ``None`` if the entry could not restrict any domain."""
    given = cast("Mapping[Any, Any]", raw).get("domain") if isinstance(raw, Mapping) else None
    if isinstance(given, str) and given in DOMAINS:
        return given
    if decision == "deny":
        return ANY_DOMAIN
    if elsewhere and isinstance(given, str):
        return None
    if decision == "ask":
        return DOMAINS_ELSEWHERE.get(str(given)) or ANY_DOMAIN  # a guess may be the wrong one
    return _guess(given) or None


def may_deny(raw: Any) -> bool:
    """Whether `raw`, which is not a valid rule, may be meant as a deny."""
    if not isinstance(raw, Mapping):
        return "deny" in json.dumps(raw, default=str).casefold()
    return _probable_decision(raw) == "deny"


def _decision(value: Any) -> Literal["allow", "ask", "deny"]:
    if value == "allow" or value == "ask" or value == "deny":
        return value
    if isinstance(value, str) and value.strip().casefold() == "deny":
        return "deny"
    raise _Bad(f"{_quoted(value)} is not a decision", _suggestion(value, DECISIONS) or f"one of {', '.join(DECISIONS)}")


def _check_pattern(pattern: Any) -> None:
    """Refuse a value that cannot be a pattern. Whether the pattern can match anything is checked later."""
    if not isinstance(pattern, str) or not pattern:
        raise _Bad("the pattern must be a text that is not empty")
    if len(pattern) > MAX_PATTERN:
        raise _Bad(f"the pattern is longer than {MAX_PATTERN} characters")
    if not _plain(pattern):
        raise _Bad("the pattern contains a NUL character or half a character")
    hidden = hidden_character(pattern)
    if hidden:
        raise _Bad(f"the pattern holds {hidden}, which nobody sees", "type the pattern again instead of pasting it", "pattern")


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


def _plain(text: str) -> bool:
    return "\0" not in text and not re.search("[\ud800-\udfff]", text)


def _pattern_problem(rule: Rule) -> str:
    """Return why the pattern of a rule can match nothing; empty if it can."""
    from .patterns import KINDS, PREFIXES, compile_rule

    foreign = rule.pattern.startswith(KINDS) and not rule.pattern.startswith(PREFIXES[rule.domain])
    if rule.decision != "deny" and not foreign and not any(sign in rule.pattern for sign in _MAY_FAIL):
        return ""
    return compile_rule(rule).problem


def _consequence(domain: str) -> str:
    return MEANWHILE if domain == ANY_DOMAIN else MEANWHILE.replace("call", "call of its domain")


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


def _guess(given: Any) -> str:
    """Return the domain that an unknown name probably means; empty if no domain has a similar name."""
    if not isinstance(given, str) or len(given) > 40:
        return ""
    plain = given.strip().casefold().replace("-", "_")
    return DOMAINS_ELSEWHERE.get(plain) or nearest(plain, DOMAINS)


def _suggestion(word: Any, known: Any, verb: str = "did you mean") -> str:
    folded = {str(name).casefold(): str(name) for name in known}
    close = nearest(str(word)[:80].strip().casefold(), folded)
    return f'{verb} "{folded[close]}"' + ("?" if verb == "did you mean" else "") if close else ""
