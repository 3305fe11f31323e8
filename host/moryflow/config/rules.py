"""Permission rules as they stand in a configuration: a bad one is named, a readable deny is never lost (D26)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moryflow_sdk import DOMAINS, Rule

from .layers import Layer
from .problems import MOST, Problem

if TYPE_CHECKING:
    from typing import Literal

RULES = ("agents", "runtime", "permission", "rules")
"""Where the rules stand."""

DECISIONS = ("allow", "ask", "deny")
MAX_PATTERN = 4096
UNUSABLE = "rule_unusable"
"""The code of a deny rule that was read but whose pattern no engine takes."""
_MAY_FAIL = ("regex:", "{", "[")
"""What stands in patterns that can be wrong; compiling all of them just to look would slow every start. A deny is always
looked at."""
_KEYS = ("domain", "pattern", "decision")


@dataclass(frozen=True, slots=True)
class _Bad(Exception):
    message: str
    hint: str = ""


def read_rules(layer: Layer) -> tuple[list[Rule], list[Problem]]:
    """Return the good rules of `layer` in order, and what is wrong with the others."""
    rules: list[Rule] = []
    problems: list[Problem] = []
    entries = layer.find(RULES)
    for index, raw in enumerate(entries if isinstance(entries, list) else []):
        try:
            rules.append(_rule(layer, index, raw, problems))
        except _Bad as bad:
            problems.append(layer.problem((*RULES, index), bad.message, bad.hint, code="rule_invalid", fatal=_may_deny(raw)))
    if len(problems) > MOST:
        fatal = any(problem.fatal for problem in problems[MOST:])
        more = layer.problem(RULES, f"{len(problems) - MOST} more rules are wrong", code="rule_invalid", fatal=fatal)
        problems = [*problems[:MOST], more]
    return rules, problems


def _rule(layer: Layer, index: int, raw: Any, problems: list[Problem]) -> Rule:
    if not isinstance(raw, Mapping):
        raise _Bad("a rule is an object with domain, pattern and decision")
    for missing in (key for key in _KEYS if key not in raw):
        raise _Bad(f'the rule has no "{missing}"', _meant(missing, [str(key) for key in raw if key not in _KEYS], "has"))
    decision = _decision(raw["decision"])
    if not isinstance(raw["domain"], str) or raw["domain"] not in DOMAINS:
        raise _Bad(f"{_shown(raw['domain'])} is not a domain", _meant(raw["domain"], DOMAINS) or f"one of {', '.join(DOMAINS)}")
    check_pattern(raw["pattern"])
    if decision != raw["decision"]:
        message = f'{_shown(raw["decision"])} is read as "{decision}"'
        problems.append(layer.problem((*RULES, index, "decision"), message, code="rule_invalid", fatal=decision == "deny"))
    for extra in (key for key in raw if key not in _KEYS):
        message = f"a rule has no key {_shown(extra)}; it is ignored"
        problems.append(layer.problem((*RULES, index, extra), message, _meant(extra, _KEYS), code="config_unknown_key"))
    source: Literal["inline", "user"] = "user" if layer.source == "user" else "inline"
    line = layer.position((*RULES, index))[0]
    rule = Rule(
        domain=raw["domain"],
        pattern=raw["pattern"],
        decision=decision,
        source=source,
        file=layer.file if layer.is_file else None,
        line=line,
        index=index,
    )
    why = _unusable(rule)
    if why and decision != "deny":
        raise _Bad(f"this rule can never match: {why}")
    if why:
        message = f"this deny rule cannot be used: {why}; meanwhile every call of its domain is asked about"
        problems.append(layer.problem((*RULES, index), message, code=UNUSABLE, fatal=True))
    return rule


def _unusable(rule: Rule) -> str:
    """Say why the pattern of a rule can match nothing. The rule stays, so that its gate knows that one is missing (D26)."""
    if rule.decision != "deny" and not any(sign in rule.pattern for sign in _MAY_FAIL):
        return ""
    from moryflow_sdk.patterns import compile_rule

    return compile_rule(rule).problem


def _decision(value: Any) -> Literal["allow", "ask", "deny"]:
    if value == "allow" or value == "ask" or value == "deny":
        return value
    if isinstance(value, str) and value.strip().casefold() == "deny":
        return "deny"
    raise _Bad(f"{_shown(value)} is not a decision", _meant(value, DECISIONS) or f"one of {', '.join(DECISIONS)}")


def check_pattern(pattern: Any) -> None:
    """Refuse a pattern that is none. Whether it can be used is another question, see :func:`_unusable`."""
    if not isinstance(pattern, str) or not pattern:
        raise _Bad("the pattern must be a text that is not empty")
    if len(pattern) > MAX_PATTERN:
        raise _Bad(f"the pattern is longer than {MAX_PATTERN} characters")
    if "\0" in pattern:
        raise _Bad("the pattern holds a NUL character")


def _may_deny(raw: Any) -> bool:
    """Whether `raw`, which is no rule, may have been meant as a deny: what does not plainly say allow or ask may (D26)."""
    if not isinstance(raw, Mapping):
        return "deny" in json.dumps(raw, default=str).casefold()
    words = {key: value.strip().casefold() for key, value in raw.items() if isinstance(value, str) and len(value) < 20}
    if any(difflib.get_close_matches(word, ["deny"], cutoff=0.75) for word in words.values()):
        return True
    said = [word for key, word in words.items() if key not in ("domain", "pattern")]
    return not any(difflib.get_close_matches(word, ["allow", "ask"]) for word in said)


def holds_deny(value: Any) -> bool:
    """Whether `value`, which stands where nothing is read, holds what may have been meant as a deny (D26)."""
    if isinstance(value, Mapping):
        return ("decision" in value and _may_deny(value)) or any(map(holds_deny, value.values()))
    if isinstance(value, list):
        return any(map(holds_deny, value))
    return isinstance(value, str) and value.strip().casefold() == "deny"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


def _meant(word: Any, known: Any, verb: str = "did you mean") -> str:
    close = difflib.get_close_matches(str(word).strip().casefold(), [str(name).casefold() for name in known], n=1)
    if not close:
        return ""
    original = next(str(name) for name in known if str(name).casefold() == close[0])
    return f'{verb} "{original}"' + ("?" if verb == "did you mean" else "")
