"""Wrong values in every setting of the host and of the plugins that come with it: each is named, and its default holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moryflow.config import load_config, nested
from moryflow.config.schema import defaults, host_models

RUNTIME: dict[str, list[Any]] = {
    "mode": ["agent", {"default": "root"}, {"default": 1}, {"default": "Full_Access"}, []],
    "agent": ["writer", {"id": 5}, {"id": ""}, None],
    "truncation": [
        [], {"maxLines": 0}, {"maxBytes": -1}, {"maxLines": True}, {"maxLines": None}, {"ttlDays": 1e300}, {"enabled": "no"},
    ],
    "doomLoop": [[1], {"maxAttempts": 0}, {"maxToolCalls": "60"}, {"cooldownToolCalls": -1}, {"enabled": "no"}],
    "compaction": ["off", {"fallbackCharLimit": "x"}, {"protectedTurns": -1}, {"mode": "sideways"}, {"enabled": "false"}],
    "tools": [[], {"external": True}, {"external": {"enabled": 1}}],
    "hooks": [
        [], {"chat": "x"}, {"chat": {"system": "x"}}, {"chat": {"system": {"text": 5}}}, {"chat": {"params": []}},
        {"chat": {"params": {"temperature": "hot"}}}, {"chat": {"params": {"seed": 1}}}, {"tool": {"before": {}}},
        {"tool": {"before": [{"tool": "read", "mergeInput": []}]}}, {"tool": {"before": [{"mergeInput": {}}]}},
        {"tool": {"after": [None]}}, {"tool": {"after": [{"tool": "", "appendText": "x"}]}},
    ],
    "permission": [
        [], {"rules": {}}, {"rules": "allow all"}, {"rules": None},
        {"rules": [{"domain": "bash", "pattern": "*", "decision": "Allow"}]},
        {"rules": [{"domain": "bash", "pattern": "", "decision": "allow"}]},
        {"rules": [{"domain": "bash", "pattern": "regex:(?=a)b", "decision": "allow"}]},
        {"rules": [{"domain": "read", "pattern": "{a,b}" * 20, "decision": "allow"}]},
    ],
    "prompt": ["x", {"mode": "x"}, {"params": {"temperature": 9}}],
    "trunkation": [{}],
}  # fmt: skip
TOP: list[Any] = [
    {"agents": None}, {"agents": "x"}, {"agents": {"runtime": []}}, {"model": 5}, {"model": ["a"]}, {"profile": "mobile"},
    {"language": "xx"}, {"disabledPlugins": "x"}, {"disabledPlugins": [1]}, {"limits": {"maxSteps": -1}}, {"limits": "x"},
    {"plugins": []}, {"models": []}, {"$schema": 5}, {"safeMode": "yes"}, {"foo": 1}, [], "x", 5, None, True,
]  # fmt: skip
WRONG = [*TOP, *({"agents": {"runtime": {key: value}}} for key, values in RUNTIME.items() for value in values)]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: json.dumps(value)[:70])
def test_every_wrong_value_is_named_and_loosens_nothing(known, tmp_path, value):
    """With the file and a line; the default holds, and no allow comes of it (S0.87, SECURITY §4)."""
    file = tmp_path / "config.jsonc"
    file.write_text(json.dumps(value))
    config = load_config(tmp_path, environ={}).checked(known)
    assert config.problems and all(problem.file == str(file) and problem.line == 1 for problem in config.problems)
    assert [rule for rule in config.rules() if rule.decision == "allow"] == []
    assert config.get("agents.runtime.tools.external.enabled") in (None, False)
    assert config.get("agents.runtime.mode.default") in (None, "agent")


def test_the_schema_key_of_editors_is_accepted(known, tmp_path):
    """``$schema`` is theirs (S0.87)."""
    (tmp_path / "config.jsonc").write_text('{"$schema": "./moryflow.schema.json"}')
    assert load_config(tmp_path, environ={}).checked(known).problems == ()


def test_twenty_thousand_unknown_keys_are_read_in_no_time(known, tmp_path, expect_linear_growth):
    """What was meant is looked for only as long as somebody reads on (SECURITY §4)."""

    def work(count):
        (tmp_path / "config.jsonc").write_text(json.dumps({f"k{number}": 1 for number in range(count)}))
        return lambda: load_config(tmp_path, environ={}).checked(known)

    expect_linear_growth(work, 2_500)
    assert len(load_config(tmp_path, environ={}).checked(known).problems) == 50


PLACES: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "group-writable": lambda path: (path.write_text("{}"), path.chmod(0o620)),
    "large": lambda path: path.write_text('{"a":"' + "x" * 20_000_000 + '"}'),
}


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES.keys())
def test_what_is_no_file_of_the_persons_own_is_named(known, tmp_path, make):
    """Pipes, folders, devices and loops hold up nothing (R17, SECURITY §4)."""
    make(tmp_path / "config.jsonc")
    [problem] = load_config(tmp_path, environ={}).checked(known).problems
    assert problem.file == str(tmp_path / "config.jsonc")


def test_a_key_that_no_section_has_is_named_in_every_section(known, tmp_path):
    """A file is looked into where it says something, at any depth, and the rest of the settings is not (CONTRACT §1)."""

    def sections(value, path=()):
        if isinstance(value, dict) and value:  # in one without names anything may be a name
            yield path
            for name, inner in value.items():
                yield from sections(inner, (*path, name))

    every = set(sections(defaults((*host_models(), *known)))) - {(), ("models",)}  # a plugin may have a section of models
    assert len(every) > 20
    for path in every:
        value = nested(path, {"nothingLikeIt": 1})
        (tmp_path / "config.jsonc").write_text(json.dumps(value))
        said = [problem.message for problem in load_config(tmp_path, environ={}).checked(known).problems]
        assert said == [f'unknown key "{".".join((*path, "nothingLikeIt"))}"'], path
