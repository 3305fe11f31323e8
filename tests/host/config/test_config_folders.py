"""``folders``: a model, an agent and rules for a folder, from the user's file (S0.85)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moryflow.config import load_config
from moryflow.testing import IsolatedHost

DENY = {"domain": "edit", "pattern": "*", "decision": "deny"}


def write(home: Path, **settings: Any) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.jsonc").write_text(json.dumps(settings), encoding="utf-8")
    (home / "config.jsonc").chmod(0o600)


def test_the_nearest_folder_decides_and_its_rules_come_last(tmp_path: Path) -> None:
    """Rules of the folders above hold too; a folder beside has none of it."""
    work, inner = tmp_path / "work", tmp_path / "work" / "x"
    folders = {
        str(inner): {"model": "a/inner", "rules": [{**DENY, "pattern": "vault:/x"}]},
        str(work): {"model": "a/outer", "agent": "plan", "rules": [DENY]},
    }
    write(tmp_path / "home", model="a/all", folders=folders)
    config = load_config(tmp_path / "home", environ={})
    assert config.problems == ()
    assert [config.chosen("model", vault) for vault in (inner / "deep", work, tmp_path, None)] == [
        "a/inner", "a/outer", "a/all", "a/all",
    ]  # fmt: skip
    assert config.chosen("agent", inner) == "plan" and config.chosen("agent", tmp_path) is None
    assert [rule.pattern for rule in config.rules(inner)] == ["*", "vault:/x"] and config.rules(tmp_path) == []
    environ = {"MORYFLOW_MODEL": "a/typed"}
    assert load_config(tmp_path / "home", environ=environ).chosen("model", inner) == "a/typed"


def test_what_is_wrong_is_named_and_never_laxer(tmp_path: Path) -> None:
    """A rule that cannot be read asks there; a folder that is none, with a deny in it, asks everywhere (D90)."""
    here = tmp_path / "x"
    write(tmp_path / "home", folders={str(here): {"rules": [{"domain": "edit", "pattern": "*", "decision": "dney"}]}})
    config = load_config(tmp_path / "home", environ={})
    assert [bool(rule.problem) for rule in config.rules(here)] == [True] and config.problems[0].line == 1
    for folders in ({str(here): {"rules": "deny"}}, {"work": {"rules": [DENY]}}):
        write(tmp_path / "home", folders=folders)
        config = load_config(tmp_path / "home", environ={})
        assert any(rule.problem for rule in config.rules(here)) and config.problems
    write(tmp_path / "home", folders={str(here): {"modle": "a/b"}})
    assert "did you mean" in str(load_config(tmp_path / "home", environ={}).checked(()).problems).lower()


def test_a_session_takes_what_its_folder_says(tmp_path: Path) -> None:
    """Agent, model and rules of the vault, and nothing of it elsewhere."""
    host = IsolatedHost(tmp_path / "home", tmp_path / "vault")
    try:
        host.configure({"folders": {str(host.vault): {"agent": "plan", "rules": [DENY]}}})
        assert host.session().agent.id == "plan"
        denied = host.call_tool("write", path="a.md", content="x").result
        assert denied.status == "denied" and not (host.vault / "a.md").exists()
    finally:
        host.close()
