"""What is left out of a file and may have been a deny, a limit or a plugin switched off fails the check, wherever it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moryflow.config import load_config

RULE = {"domain": "bash", "pattern": "rm *"}
DENY = {**RULE, "decision": "deny"}


def as_rule(rule: Any) -> dict[str, Any]:
    return {"agents": {"runtime": {"permission": {"rules": [rule]}}}}


LOST: dict[str, dict[str, Any]] = {
    "a rule without a decision": as_rule(RULE),
    "a rule without anything": as_rule({}),
    "a decision that is a list": as_rule({**RULE, "decision": ["deny"]}),
    "a decision that is false": as_rule({**RULE, "decision": False}),
    "a decision in words of its own": as_rule({**RULE, "decision": "block"}),
    "an allow with a mistake": as_rule({**RULE, "decision": "alow"}),
    "an allow under a key of another spelling": as_rule({**RULE, "decison": "allow"}),
    "an ask with a mistake": as_rule({**RULE, "decision": "aks"}),
    "a list in the list": as_rule([DENY]),
    "rules one level too high": {"agents": {"runtime": {"permission": [DENY]}}},
    "rules at the top": {"permission": {"rules": [DENY]}},
    "rules under a key of another spelling": {"agents": {"runtime": {"permision": {"rules": [DENY]}}}},
    "the spelling of another system": {"permission": {"bash": {"rm *": "deny"}}},
    "a section that is a list": {"agents": [{"runtime": {"permission": {"rules": [DENY]}}}]},
    "a plugin switched off by another name": {"disabledPlugin": ["notes"]},
    "safe mode by another name": {"safemode": True},
    "a limit by another name": {"limits": {"maxTurns": 3}},
}
HARMLESS: dict[str, dict[str, Any]] = {
    "an allow in a domain that nobody knows": as_rule({**RULE, "domain": "teleport", "decision": "allow"}),
    "allow rules at the top": {"permission": {"rules": [{**RULE, "decision": "allow"}]}},
    "another unknown key": {"colour": "red"},
    "a section that is not an object": {"agents": []},
}


def fatal(settings: dict[str, Any], home: Path, known: Any) -> list[bool]:
    (home / "config.jsonc").write_text(json.dumps(settings))
    return [problem.fatal for problem in load_config(home, environ={}).checked(known).problems]


@pytest.mark.parametrize("settings", LOST.values(), ids=LOST.keys())
def test_what_may_have_forbidden_something_is_never_only_a_warning(
    settings: dict[str, Any], tmp_path: Path, known: Any
) -> None:
    """`config check` fails and every run says so (D26)."""
    assert any(fatal(settings, tmp_path, known))


@pytest.mark.parametrize("settings", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_forbade_nothing_is_a_warning(settings: dict[str, Any], tmp_path: Path, known: Any) -> None:
    """What is lost was not a deny, so nothing got looser (D26)."""
    found = fatal(settings, tmp_path, known)
    assert found and not any(found)
