"""What an agent is made of, each part seen to work."""

from __future__ import annotations

import json
from pathlib import Path

from moryflow import RunOptions, open_host


async def test_an_agent_is_a_name_rules_a_model_and_a_prompt(tmp_path: Path) -> None:
    """Its own model answers under its own prompt, and its own rule holds; without a model it takes the session's (S4.2)."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    (home / "agents").mkdir(parents=True)
    home.chmod(0o700)
    vault.mkdir()
    for name in ("own", "session"):
        write = {"calls": [{"name": "write", "arguments": {"path": f"{name}.md", "content": "x"}}]}
        (tmp_path / f"{name}.json").write_text(json.dumps([write, f"I am {name}"]))
    rule = {"domain": "edit", "pattern": "vault:**/*.md", "decision": "deny"}
    for agent, model in (("bound", {"model": f"script:{tmp_path / 'own.json'}"}), ("free", {})):
        head = {"id": agent, "name": agent.title(), "permission": [rule], **model}
        (home / "agents" / f"{agent}.md").write_text(f"---\n{json.dumps(head)}\n---\nYou are the {agent} one.\n")
        (home / "agents" / f"{agent}.md").chmod(0o600)
    async with await open_host(home, environ={}) as host:
        assert host.agent("bound").name == "Bound"
        said: dict[str, str] = {}
        for agent in ("bound", "free"):
            wish = None if agent == "bound" else f"script:{tmp_path / 'session.json'}"
            session = await host.new_session(vault, agent=agent, model=wish)
            said[agent] = (await session.prompt("go", options=RunOptions(on_ask="deny"))).text
            denied = [node.payload["status"] for node in await host.store.path(session.id) if node.kind == "tool"]
            assert denied == ["denied"]
        provider = next(item for item in host.plugin_set.providers if item.name == "script_model")
        systems = {
            name: provider._scripts[str(tmp_path / f"{name}.json")].requests[0].messages[0].text for name in ("own", "session")
        }
    assert said == {"bound": "I am own", "free": "I am session"}
    assert "You are the bound one." in systems["own"] and "You are the free one." in systems["session"]
    assert list(vault.iterdir()) == []
