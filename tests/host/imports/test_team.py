"""``moryflow plugin sync --from``: a team's lock, agents and rules, shown as one list and taken over (issue F)."""

from __future__ import annotations

import json

from .conftest import Person


def test_a_team_is_shown_taken_over_and_brought_up_to_date(person: Person) -> None:
    """Nothing without a yes; rules do not loosen a deny of the user's; a second time there is nothing to do."""
    rules = [
        {"domain": "bash", "pattern": "make test", "decision": "allow"},
        {"domain": "bash", "pattern": "rm *", "decision": "deny"},
    ]
    person.write("team/config.jsonc", {"agents": {"runtime": {"permission": {"rules": rules}}}, "limits": {"maxSteps": 9}})
    person.write("team/agents/ours.md", "---\nid: ours\ndescription: Ours.\n---\nYou are ours.\n")
    own = {"agents": {"runtime": {"permission": {"rules": [{"domain": "bash", "pattern": "make test", "decision": "deny"}]}}}}
    person.write(".moryflow/config.jsonc", own).chmod(0o600)
    source = str(person.home / "team")
    shown = person.run("plugin", "sync", "--from", source, "--dry-run")
    assert "rule:" in shown.stderr and "agents: 1 in" in shown.stderr
    refused = person.run("plugin", "sync", "--from", source, code=2)
    assert "Take all of this over" in refused.stderr and json.loads(person.config.read_text("utf-8")) == own
    person.run("plugin", "sync", "--from", source, "-y")
    assert "ours" in person.run("agent", "list", "-q").stdout
    assert person.json("permission", "explain", "bash", "make test")["decision"] == "deny"
    assert person.json("permission", "explain", "bash", "rm x")["decision"] == "deny"
    assert "is as it was" in person.run("plugin", "sync", "--from", source, "-y").stderr
    person.write("team/agents/more.md", "---\nid: more\ndescription: More.\n---\nYou are more.\n")
    person.run("plugin", "sync", "--from", source, "-y")
    assert "more" in person.run("agent", "list", "-q").stdout
    (person.home / "empty").mkdir()
    assert "shares nothing" in person.run("plugin", "sync", "--from", str(person.home / "empty"), "-y", code=1).stderr
