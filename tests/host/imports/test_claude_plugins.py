"""Plugins of Claude Code, as they are: installed from a folder or a marketplace, used, updated, removed (issue F)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Person

GUARD = "import sys\nprint('no lock files', file=sys.stderr)\nsys.exit(2 if '.lock' in sys.stdin.read() else 0)\n"


def plugin(person: Person, name: str, where: str = "market/plugins", **manifest: Any) -> Path:
    """Write a plugin with an agent, a command, a skill, a hook and a server."""
    root = person.home / where / name
    person.write(f"{where}/{name}/.claude-plugin/plugin.json", {"name": name, "version": "1.0", **manifest})
    person.write(f"{where}/{name}/agents/{name}-rev.md", f"---\nname: {name}-rev\ndescription: Reviews: x\n---\nReview.\n")
    person.write(
        f"{where}/{name}/commands/{name}-hi.md", "---\nargument-hint: [a] | [b]\n---\nLook at !`git log -1` for $ARGUMENTS\n"
    )
    person.write(
        f"{where}/{name}/skills/{name}-skill/SKILL.md", f"---\nname: {name}-skill\ndescription: Does it.\n---\nSteps.\n"
    )
    command = 'python3 "${CLAUDE_PLUGIN_ROOT}/guard.py"'
    hooks = {"PreToolUse": [{"matcher": "Write", "hooks": [{"type": "command", "command": command}]}]}
    person.write(f"{where}/{name}/hooks/hooks.json", {"hooks": hooks})
    person.write(f"{where}/{name}/guard.py", GUARD)
    servers = {f"{name}-srv": {"command": "${CLAUDE_PLUGIN_ROOT}/srv", "env": {"LEVEL": "debug"}}}
    person.write(f"{where}/{name}/.mcp.json", servers if name < "b" else {"mcpServers": servers})
    return root


def market(person: Person, *entries: dict[str, Any], **more: Any) -> None:
    person.write("market/.claude-plugin/marketplace.json", {"name": "tools", "owner": {}, "plugins": list(entries), **more})


def test_a_folder_is_installed_used_and_removed(person: Person) -> None:
    """Consent names every hook and program; what it brings works; removal leaves nothing in the configuration."""
    root = plugin(person, "alpha")
    refused = person.run("plugin", "install", f"claude:{root}", code=2)
    for text in ("hook: PreToolUse Write: python3", "server alpha-srv:", "agents: alpha-rev", "skills: alpha-skill"):
        assert text in refused.stderr
    assert not person.config.exists()
    person.run("plugin", "install", f"claude:{root}", "-y")
    assert "alpha-rev" in person.run("agent", "list", "-q").stdout
    assert "alpha-skill" in person.run("skill", "list", "-q").stdout
    denied = person.json("tool", "run", "write", "--args", '{"path": "a.lock", "content": "x"}')
    assert "no lock files" in denied["output"]
    text = person.config.read_text("utf-8")
    assert '"LEVEL": "debug"' in text and "${CLAUDE_PLUGIN_ROOT}" not in text
    row = next(row for row in person.json("plugin", "list") if row["name"] == "alpha")
    assert (row["version"], row["status"]) == ("1.0", "loaded")
    assert person.run("plugin", "sync", "-y").stdout == "everything is as plugins.lock says\n"
    person.run("plugin", "uninstall", "alpha", "-y")
    assert "alpha" not in (person.config.read_text("utf-8") if person.config.exists() else "")
    assert not (person.home / ".moryflow" / "claude-plugins" / "alpha").exists()


def test_a_marketplace_is_added_searched_and_installed_from(person: Person) -> None:
    """Paths, git repositories with a commit, renamed plugins, and entries that stand for a manifest."""
    plugin(person, "alpha")
    remote = plugin(person, "beta", where="remote")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=remote, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=remote, check=True, capture_output=True, text=True).stdout.strip()
    person.write("market/plugins/bare/commands/bare-cmd.md", "Do $1\n")
    market(
        person,
        {"name": "alpha", "source": "./plugins/alpha", "description": "First of all"},
        {"name": "beta", "source": {"source": "url", "url": f"file://{remote}", "sha": commit}},
        {"name": "bare", "source": "./plugins/bare", "strict": False, "version": "0.3", "description": "No manifest"},
        renames={"old-alpha": "alpha"},
    )
    assert "3 plugins" in person.run("plugin", "marketplace", "add", str(person.home / "market")).stdout
    assert [row["name"] for row in person.json("plugin", "marketplace", "list")] == ["tools"]
    assert [row["name"] for row in person.json("plugin", "marketplace", "search", "first")] == ["alpha"]
    for name in ("old-alpha", "beta", "bare"):
        person.run("plugin", "install", f"claude:{name}@tools", "-y")
    rows = {row["name"]: row for row in person.json("plugin", "list")}
    assert {"alpha", "beta", "bare"} <= {*rows} and rows["bare"]["version"] == "0.3"
    lock = json.loads((person.home / ".moryflow" / "plugins.lock").read_text("utf-8"))["installed"]
    assert lock["claude/beta"]["commit"] == commit
    assert "there are: alpha, beta, bare" in person.run("plugin", "install", "claude:gamma@tools", code=1).stderr


def test_an_update_shows_the_difference_and_asks(person: Person) -> None:
    """New hooks and new code are shown before they run; without a yes nothing changes."""
    root = plugin(person, "alpha")
    person.run("plugin", "install", f"claude:{root}", "-y")
    assert person.run("plugin", "update", "alpha").stdout == "claude/alpha is up to date\n"
    person.write("market/plugins/alpha/guard.py", f"import socket\n{GUARD}")
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": "curl https://x.example"}]}]}
    person.write("market/plugins/alpha/hooks/hooks.json", hooks)
    refused = person.run("plugin", "update", "alpha", code=2)
    assert "new imports: socket" in refused.stderr and "new hook: Stop: curl https://x.example" in refused.stderr
    assert person.run("plugin", "sync", "--dry-run").stdout == "everything is as plugins.lock says\n"
    person.run("plugin", "update", "alpha", "-y")
    assert person.run("plugin", "update", "alpha").stdout == "claude/alpha is up to date\n"


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ("{", "cannot be read"),
        ('{"name": "../../x"}', "is not a name for a plugin"),
        ('{"name": "x", "agents": "../../../etc"}', "leads out of the plugin"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(person: Person, manifest: str, problem: str) -> None:
    """Nothing is installed, and nothing is written."""
    root = plugin(person, "alpha")
    person.write("market/plugins/alpha/.claude-plugin/plugin.json", manifest)
    assert problem in person.run("plugin", "install", f"claude:{root}", "-y", code=1).stderr
    assert not person.config.exists() and not (person.home / ".moryflow" / "plugins.lock").exists()
    assert "neither a folder nor a repository" in person.run("plugin", "install", "claude:nothing", "-y", code=1).stderr


def test_commands_in_a_prompt_are_left_to_the_model(person: Person) -> None:
    """``!`cmd` `` is run through the model's own tool, where every rule holds, and by nobody else."""
    from moryflow_builtins.user_commands import fill_in

    text = fill_in("Look at !`git log -1` for $ARGUMENTS", "me")
    assert text == "Look at (run `git log -1` first, and use what it prints) for me"


def in_git(folder: Path) -> str:
    """Commit everything in a folder; return the commit."""
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_a_marketplace_of_ten_is_installed_used_updated_and_removed(person: Person) -> None:
    """Every shape of a source and of a plugin side by side, and nothing is left of them (issue F)."""
    whole = ["one", "two", "three", "four"]
    for name in whole[:2]:
        plugin(person, name)
    for name in whole[2:]:
        plugin(person, name, where="remote/packages")
    commit = in_git(person.home / "remote")
    person.write("market/plugins/words/commands/words-cmd.md", "Say $ARGUMENTS in $1 words\n")
    person.write("market/plugins/skilled/skills/skilled-skill/SKILL.md", "---\nname: skilled-skill\ndescription: x\n---\nDo.\n")
    person.write("market/plugins/expert/agents/expert-rev.md", "---\nname: expert-rev\ndescription: x\n---\nReview.\n")
    person.write("market/plugins/tongue/.claude-plugin/plugin.json", {"name": "tongue", "lspServers": {"py": {"command": "x"}}})
    person.write("market/plugins/tongue/commands/tongue-cmd.md", "Hi\n")
    person.write(
        "market/plugins/served/.mcp.json", {"mcpServers": {"served-srv": {"type": "http", "url": "https://a.example/mcp"}}}
    )
    person.write("market/plugins/coded/.codex-plugin/plugin.json", {"name": "coded", "version": "2.0", "skills": "./skills/"})
    person.write("market/plugins/coded/skills/coded-skill/SKILL.md", "---\nname: coded-skill\ndescription: x\n---\nDo.\n")
    loose = {"strict": False, "version": "0.1"}
    market(
        person,
        {"name": "one", "source": "./plugins/one"},
        {"name": "two", "source": "./plugins/two", "category": "x", "tags": ["y"]},
        {"name": "three", "source": {"source": "git-subdir", "url": f"file://{person.home}/remote", "path": "packages/three"}},
        {"name": "four", "source": {
            "source": "git-subdir", "url": f"file://{person.home}/remote", "path": "packages/four", "sha": commit}},
        {"name": "words", "source": "./plugins/words", **loose},
        {"name": "skilled", "source": "./plugins/skilled", **loose},
        {"name": "expert", "source": "./plugins/expert", **loose},
        {"name": "tongue", "source": "./plugins/tongue"},
        {"name": "served", "source": "./plugins/served", **loose},
        {"name": "coded", "source": "./plugins/coded"},
    )  # fmt: skip
    assert "10 plugins" in person.run("plugin", "marketplace", "add", str(person.home / "market")).stdout
    names = [*whole, "words", "skilled", "expert", "tongue", "served", "coded"]
    said = "".join(person.run("plugin", "install", f"claude:{name}@tools", "-y").stderr for name in names)
    assert "lspServers" in said or "language server" in said
    assert set(names) <= {row["name"] for row in person.json("plugin", "list")}
    assert {*(f"{name}-rev" for name in whole), "expert-rev"} <= {row["id"] for row in person.json("agent", "list")}
    skills = {row["name"] for row in person.json("skill", "list")}
    assert {*(f"{name}-skill" for name in whole), "skilled-skill", "coded-skill"} <= skills
    assert "no lock files" in person.json("tool", "run", "write", "--args", '{"path": "a.lock", "content": "x"}')["output"]
    (person.home / "market/plugins/words/commands/words-more.md").write_text("More\n")
    person.run("plugin", "update", "words", "-y")
    assert person.run("plugin", "sync", "--dry-run").stdout == "everything is as plugins.lock says\n"
    for name in names:
        person.run("plugin", "uninstall", name, "-y")
    left = person.config.read_text("utf-8") if person.config.exists() else ""
    assert [name for name in names if name in left] == []
    assert not {*names} & {row["name"] for row in person.json("plugin", "list")}
    assert person.json("tool", "run", "write", "--args", '{"path": "a.lock", "content": "x"}')["status"] == "ok"
